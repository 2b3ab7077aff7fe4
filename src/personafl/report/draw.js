// Scales, axes, lines and colours: what the figures are drawn with.

// --- scales: each is a function to pixels, with `ticks` ---------------------------------------------------------

// From a to b, as `through` counts, is from one end of the range to the other.
const scale = (through, [a, b], range, ticks = []) =>
  Object.assign((v) => range[0] + ((through(v) - a) / (b - a)) * (range[1] - range[0]), { ticks });

function linear([a, b], range, count = 5) {
  if (a === b) {
    const pad = Math.abs(a) * 0.05 || 0.5;
    a -= pad;
    b += pad;
  }
  const rough = (b - a) / count,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999),
    ticks = [];
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + step * 1e-9; k++)
    ticks.push(Number((k * step).toPrecision(12)));
  return scale((v) => v, [a, b], range, ticks);
}

function logarithmic(domain, range) {
  let [a, b] = domain.map(Math.log10);
  if (b - a < 0.05) {
    a -= 0.15;
    b += 0.15;
  }
  const every = Math.ceil((b - a) / 6),
    steps = b - a < 1.2 ? [1, 2, 5] : b - a < 2.5 ? [1, 3] : [1],
    ticks = [];
  for (let e = Math.floor(a); e <= b; e += every) {
    for (const s of steps) {
      const v = s * 10 ** e;
      if (Math.log10(v) >= a - 1e-9 && Math.log10(v) <= b + 1e-9) ticks.push(Number(v.toPrecision(6)));
    }
  }
  return scale(Math.log10, [a, b], range, ticks);
}

// Values far apart need a logarithm; others get some room, as a share of their spread.
const logOrLinear = (useLog, domain, share, count) => (range) =>
  useLog ? logarithmic(domain, range) : linear(padded(domain, share), range, count);
// `count` rows or columns from the top or the left, without ticks.
const counted = (count) => (range) => scale((v) => v, range[0] < range[1] ? [0, count] : [count, 0], range);

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
const normalDeviate = ([low, high], range) =>
  scale(
    (p) => probit(Math.min(Math.max(p, low), high)),
    [probit(low), probit(high)],
    range,
    RATES.filter((v) => v >= low && v <= high),
  );

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

const rule = (kind, x1, y1, x2, y2, dashes) => svg("line", { class: kind, x1, y1, x2, y2, "stroke-dasharray": dashes });
const words = (x, y, anchor, text, more) => svg("text", { x, y, "text-anchor": anchor, ...more }, text);

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
  const end = width - right,
    floor = height - bottom,
    sx = x.make([left, end]),
    sy = y.make([floor, top]);
  const back = svg("g"),
    front = svg("g");
  for (const t of sy.ticks || [])
    back.append(rule("grid", left, sy(t), end, sy(t)), words(left - 8, sy(t) + 4, "end", (y.format || brief)(t)));
  let last = -Infinity;
  for (const t of sx.ticks) {
    const text = (x.format || brief)(t),
      at = sx(t),
      half = text.length * 3.6;
    back.append(rule("axis", at, floor, at, floor + 4));
    if (at - half < last + 6) continue;
    last = at + half;
    back.append(words(at, floor + 18, "middle", text));
  }
  const middle = (top + floor) / 2;
  back.append(rule("axis", left, floor, end, floor), words((left + end) / 2, height - 6, "middle", x.title));
  if (y.title) back.append(words(12, middle, "middle", y.title, { transform: `rotate(-90 12 ${middle})` }));
  root.append(back, front);
  host.replaceChildren(root);
  return { root, front, x: sx, y: sy, width, height, left, right, bottom, top, end, floor };
}

// --- lines, bands and clouds of a method, through pixels ----------------------------------------------------------

const joined = (points) => points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
const path = (points) => (points.length ? `M${joined(points)}` : "");
const area = (upper, lower) => (upper.length ? `${path(upper)}L${joined(lower.reverse())}z` : "");
const band = (i, upper, lower) => svg("path", { class: "band", d: area(upper, lower), fill: colour(i) });
const line = (i, points, dashed) =>
  svg("path", { class: "line", d: path(points), stroke: colour(i), "stroke-dasharray": dashed ? "5 5" : null });
const cloud = (ink, points, size) =>
  svg("path", {
    class: "cloud",
    d: points.map(([a, b]) => `M${a.toFixed(1)},${b.toFixed(1)}h0`).join(""),
    stroke: ink,
    "stroke-width": size,
  });
const bar = (i, x, top, width, floor) => svg("rect", { x, y: top, width, height: floor - top, fill: colour(i) });

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
