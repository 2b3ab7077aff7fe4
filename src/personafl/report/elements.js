"use strict";
// Elements, and numbers as text: what figures, tables and sections are made of. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A table that scrolls where the page is narrow; `head` are titles, cells of their own, or nothing.
const scrolling = (label, head, rows) =>
  el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((h) => (typeof h === "string" ? el("th", { scope: "col" }, h) : h)),
        ),
      ),
      el("tbody", {}, rows),
    ),
  );

const known = (v) => v !== null && v !== undefined;
const fixed = (v, digits) => (known(v) ? v.toFixed(digits).replace("-", "−") : "–");
function brief(v) {
  if (!known(v)) return "–";
  if (Number.isInteger(v)) return v.toLocaleString("en");
  const size = Math.abs(v);
  return (size >= 1e5 || size < 1e-3 ? v.toExponential(2) : String(Number(v.toPrecision(4)))).replace("-", "−");
}
const whole = (v) => (Number.isInteger(v) ? brief(v) : "");
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
function quantile(sorted, q) {
  if (!sorted.length) return null;
  const at = (sorted.length - 1) * q,
    low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}
function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const v of values)
    if (known(v)) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
  return low > high ? [0, 1] : [low, high];
}
const padded = ([low, high], share) => [low - (high - low) * share, high + (high - low) * share];
const short = (text, most = 16) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const sentence = (text) => text[0].toUpperCase() + text.slice(1);
