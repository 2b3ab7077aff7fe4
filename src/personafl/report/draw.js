"use strict";
// Elements, scales, axes and readouts: what the figures are made of. Text goes in as text, never as markup.

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
      el("thead", {}, el("tr", {}, head.map((h) => (typeof h === "string" ? el("th", { scope: "col" }, h) : h)))),
      el("tbody", {}, rows),
    ),
  );

// --- numbers --------------------------------------------------------------------------------------------------

const known = (v) => v !== null && v !== undefined;
const fixed = (v, digits) => (known(v) ? v.toFixed(digits).replace("-", "−") : "–");
function brief(v) {
  if (!known(v)) return "–";
  if (Number.isInteger(v)) return v.toLocaleString("en");
  const size = Math.abs(v);
  return (size >= 1e5 || size < 1e-3 ? v.toExponential(2) : String(Number(v.toPrecision(4)))).replace("-", "−");
}
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

// --- scales: each is a function to pixels, with `ticks` and the way back ----------------------------------------

function linear(domain, range, count = 5) {
  let [a, b] = domain;
  if (a === b) {
    const pad = Math.abs(a) * 0.05 || 0.5;
    a -= pad;
    b += pad;
  }
  const scale = (v) => range[0] + ((v - a) / (b - a)) * (range[1] - range[0]);
  const rough = (b - a) / count,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  scale.ticks = [];
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + step * 1e-9; k++)
    scale.ticks.push(Number((k * step).toPrecision(12)));
  scale.back = (p) => a + ((p - range[0]) / (range[1] - range[0])) * (b - a);
  return scale;
}

function logarithmic(domain, range) {
  let [a, b] = domain.map(Math.log10);
  if (b - a < 0.05) {
    a -= 0.15;
    b += 0.15;
  }
  const scale = (v) => range[0] + ((Math.log10(v) - a) / (b - a)) * (range[1] - range[0]);
  const every = Math.ceil((b - a) / 6),
    steps = b - a < 1.2 ? [1, 2, 5] : b - a < 2.5 ? [1, 3] : [1];
  scale.ticks = [];
  for (let e = Math.floor(a); e <= b; e += every) {
    for (const s of steps) {
      const v = s * 10 ** e;
      if (Math.log10(v) >= a - 1e-9 && Math.log10(v) <= b + 1e-9) scale.ticks.push(Number(v.toPrecision(6)));
    }
  }
  scale.back = (p) => 10 ** (a + ((p - range[0]) / (range[1] - range[0])) * (b - a));
  return scale;
}

// The normal quantile function, by Acklam's rational approximation: far closer than a pixel.
function probit(p) {
  const a = [
    -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239,
  ];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
  const c = [
    -0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
    2.938163982698783,
  ];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
  const poly = (k, x) => k.reduce((sum, v) => sum * x + v, 0);
  if (p < 0.02425) {
    const q = Math.sqrt(-2 * Math.log(p));
    return poly(c, q) / (poly(d, q) * q + 1);
  }
  if (p > 1 - 0.02425) return -probit(1 - p);
  const q = p - 0.5,
    r = q * q;
  return (poly(a, r) * q) / (poly(b, r) * r + 1);
}
const RATES = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9];
function normalDeviate([low, high], range) {
  const a = probit(low),
    b = probit(high);
  const scale = (p) => range[0] + ((probit(Math.min(Math.max(p, low), high)) - a) / (b - a)) * (range[1] - range[0]);
  scale.ticks = RATES.filter((v) => v >= low && v <= high);
  return scale;
}

// --- methods: a colour and a marker each ------------------------------------------------------------------------

const colour = (i) => `var(--m${i % 8})`;
const MARKS = [
  (r) => `M${-r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`,
  (r) => `M${-r * 0.9},${-r * 0.9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}z`,
  (r) => `M0,${-r * 1.15}L${r * 1.1},${r * 0.85}H${-r * 1.1}z`,
  (r) => `M0,${-r * 1.25}L${r * 1.25},0L0,${r * 1.25}L${-r * 1.25},0z`,
  (r) => `M0,${r * 1.15}L${r * 1.1},${-r * 0.85}H${-r * 1.1}z`,
  (r) =>
    `M${-r * 0.4},${-r * 1.1}h${r * 0.8}v${r * 0.7}h${r * 0.7}v${r * 0.8}h${-r * 0.7}v${r * 0.7}h${-r * 0.8}v${-r * 0.7}h${-r * 0.7}v${-r * 0.8}h${r * 0.7}z`,
  (r) =>
    `M${-r},${-r * 0.5}L${-r * 0.5},${-r}L0,${-r * 0.5}L${r * 0.5},${-r}L${r},${-r * 0.5}L${r * 0.5},0L${r},${r * 0.5}L${r * 0.5},${r}L0,${r * 0.5}L${-r * 0.5},${r}L${-r},${r * 0.5}L${-r * 0.5},0z`,
  (r) =>
    `M${[...Array(10).keys()]
      .map((k) => {
        const s = k % 2 ? r * 0.55 : r * 1.35,
          t = (Math.PI * k) / 5;
        return `${s * Math.sin(t)},${-s * Math.cos(t)}`;
      })
      .join("L")}z`,
];
const mark = (i, x, y, r = 4) =>
  svg("path", { d: MARKS[(i + Math.floor(i / 8)) % 8](r), transform: `translate(${x},${y})`, fill: colour(i) });
const swatch = (i) => svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, mark(i, 7, 7, 4.5));

// --- a frame: axes around an empty plot -------------------------------------------------------------------------

// `x` and `y` are { make: (range) => scale, title, format }; gives the parts to draw with.
function frame(host, { height, left = 52, right = 12, bottom = 44, top = 10, x, y, label }) {
  const width = Math.max(host.clientWidth, 240);
  const root = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": label,
    tabindex: "0",
  });
  const sx = x.make([left, width - right]),
    sy = y.make([height - bottom, top]);
  const back = svg("g"),
    front = svg("g");
  for (const t of sy.ticks) {
    back.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(t), y2: sy(t) }));
    back.append(svg("text", { x: left - 8, y: sy(t) + 4, "text-anchor": "end" }, (y.format || brief)(t)));
  }
  let last = -Infinity;
  for (const t of sx.ticks) {
    const text = (x.format || brief)(t),
      at = sx(t),
      half = text.length * 3.6;
    back.append(svg("line", { class: "axis", x1: at, x2: at, y1: height - bottom, y2: height - bottom + 4 }));
    if (at - half < last + 6) continue;
    last = at + half;
    back.append(svg("text", { x: at, y: height - bottom + 18, "text-anchor": "middle" }, text));
  }
  back.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  back.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, x.title));
  if (y.title)
    back.append(
      svg(
        "text",
        {
          x: 12,
          y: (top + height - bottom) / 2,
          "text-anchor": "middle",
          transform: `rotate(-90 12 ${(top + height - bottom) / 2})`,
        },
        y.title,
      ),
    );
  root.append(back, front);
  host.replaceChildren(root);
  return { root, front, x: sx, y: sy, width, height, left, right, bottom, top };
}

const path = (points) =>
  points.length ? `M${points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L")}` : "";
const area = (upper, lower) =>
  upper.length
    ? `${path(upper)}L${lower
        .reverse()
        .map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`)
        .join("L")}z`
    : "";
const dots = (points) => points.map(([a, b]) => `M${a.toFixed(1)},${b.toFixed(1)}h0`).join("");

// Names at the ends of lines, pushed apart where they would touch.
function endLabels(f, ends) {
  ends.sort((a, b) => a.y - b.y);
  const least = 15,
    groups = []; // of labels that touch, each centred on its lines
  for (const e of ends) {
    groups.push({ labels: [e], centre: e.y });
    for (let k = groups.length - 1; k > 0; k--) {
      const [a, b] = [groups[k - 1], groups[k]];
      if (b.centre - a.centre >= (least * (a.labels.length + b.labels.length)) / 2) break;
      const labels = [...a.labels, ...b.labels],
        middle = labels.reduce((sum, l) => sum + l.y, 0) / labels.length;
      const half = (least * labels.length) / 2;
      groups.splice(k - 1, 2, {
        labels,
        centre: Math.min(Math.max(middle, f.top + half - 4), f.height - f.bottom - half + 4),
      });
    }
  }
  for (const g of groups)
    g.labels.forEach((e, k) => {
      const y = g.centre + (k - (g.labels.length - 1) / 2) * least;
      f.front.append(
        svg("path", { class: "leader", d: `M${e.x + 6},${e.y}L${e.x + 16},${y}h4` }),
        svg("text", { class: "name", x: e.x + 24, y: y + 4 }, e.text),
      );
    });
}

// --- readouts: what a pointer or the arrow keys are at ------------------------------------------------------------

function showTip(x, y, title, rows) {
  const tip = byId("tip");
  tip.replaceChildren(
    el("b", {}, title),
    ...rows.map(([name, value]) => el("span", { class: "row" }, el("span", {}, name), el("span", {}, value))),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y - height - 12 < 8 ? y + 16 : y - height - 12}px`;
}
const hideTip = () => {
  byId("tip").hidden = true;
};

// `stops` are { x, y, title, rows }; `across` looks for the nearest by x alone, as for curves.
function readout(f, stops, across = false) {
  if (!stops.length) return;
  const cross = svg("g", { visibility: "hidden" });
  if (across) cross.append(svg("line", { class: "hair", x1: 0, x2: 0, y1: f.top, y2: f.height - f.bottom }));
  else cross.append(svg("circle", { class: "hair", r: 6, fill: "none" }));
  f.front.append(cross);
  let at = -1;
  const show = (k, aloud) => {
    at = k;
    const stop = stops[k],
      box = f.root.getBoundingClientRect();
    cross.setAttribute("transform", across ? `translate(${stop.x},0)` : `translate(${stop.x},${stop.y})`);
    cross.setAttribute("visibility", "visible");
    const rows = typeof stop.rows === "function" ? stop.rows() : stop.rows;
    showTip(box.left + stop.x, box.top + (stop.y ?? f.top + 40), stop.title, rows);
    if (aloud) byId("spoken").textContent = `${stop.title}: ${rows.map((r) => `${r[0]} ${r[1]}`).join(", ")}`;
  };
  const hide = () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  };
  const follow = (event) => {
    const box = f.root.getBoundingClientRect(),
      px = event.clientX - box.left,
      py = event.clientY - box.top;
    let best = -1,
      least = across ? Infinity : 900;
    stops.forEach((s, k) => {
      const d = across ? Math.abs(s.x - px) : (s.x - px) ** 2 + (s.y - py) ** 2;
      if (d < least) {
        least = d;
        best = k;
      }
    });
    if (best < 0) hide();
    else show(best, false);
  };
  f.root.addEventListener("pointermove", follow);
  f.root.addEventListener("pointerdown", follow);
  f.root.addEventListener("pointerleave", hide);
  f.root.addEventListener("blur", hide);
  f.root.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return hide();
    if (move === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(stops.length - 1, at < 0 ? 0 : at + move)), true);
  });
}

// --- heat maps: an image with a pixel for each cell ---------------------------------------------------------------

function ramp() {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3].map((k) =>
    style
      .getPropertyValue(`--ramp${k}`)
      .trim()
      .match(/[0-9a-f]{2}/gi)
      .map((h) => parseInt(h, 16)),
  );
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * 3,
      k = Math.min(2, Math.floor(at));
    return stops[k].map((v, c) => Math.round(v + (at - k) * (stops[k + 1][c] - v)));
  };
}
// The cell in row r, column c has the colour of share(r, c), between 0 and 1; null is left empty.
function heat(f, rows, columns, share) {
  const canvas = el("canvas", { width: columns, height: rows }),
    context = canvas.getContext("2d"),
    shade = ramp();
  const image = context.createImageData(columns, rows);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const v = share(r, c);
      if (v !== null) image.data.set([...shade(v), 255], 4 * (r * columns + c));
    }
  context.putImageData(image, 0, 0);
  f.front.append(
    svg("image", {
      href: canvas.toDataURL(),
      x: f.left,
      y: f.top,
      width: f.width - f.left - f.right,
      height: f.height - f.top - f.bottom,
      preserveAspectRatio: "none",
    }),
  );
}
function cells(f, rows, columns, say) {
  let at = null;
  const size = () => [(f.width - f.left - f.right) / columns, (f.height - f.top - f.bottom) / rows];
  const ring = svg("rect", { class: "hair", fill: "none", visibility: "hidden" });
  f.front.append(ring);
  const hide = () => {
    ring.setAttribute("visibility", "hidden");
    hideTip();
  };
  const show = (r, c, aloud) => {
    const [w, h] = size(),
      box = f.root.getBoundingClientRect(),
      [title, lines] = say(r, c);
    at = [r, c];
    fill(ring, { x: f.left + c * w, y: f.top + r * h, width: w, height: h, visibility: "visible" }, []);
    showTip(box.left + f.left + (c + 0.5) * w, box.top + f.top + r * h, title, lines);
    if (aloud) byId("spoken").textContent = `${title}: ${lines.map((l) => l.join(" ")).join(", ")}`;
  };
  const follow = (event) => {
    const [w, h] = size(),
      box = f.root.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - f.left) / w),
      r = Math.floor((event.clientY - box.top - f.top) / h);
    if (c < 0 || r < 0 || c >= columns || r >= rows) hide();
    else show(r, c, false);
  };
  f.root.addEventListener("pointermove", follow);
  f.root.addEventListener("pointerdown", follow);
  f.root.addEventListener("pointerleave", hide);
  f.root.addEventListener("blur", hide);
  f.root.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") return hide();
    if (!move) return;
    event.preventDefault();
    const [r, c] = at ? [at[0] + move[0], at[1] + move[1]] : [0, 0];
    show(Math.max(0, Math.min(rows - 1, r)), Math.max(0, Math.min(columns - 1, c)), true);
  });
}
