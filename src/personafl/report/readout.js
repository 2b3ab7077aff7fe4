// Readouts, what the pointer or the arrow keys are at; and heat maps, which are read out cell by cell.

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

// `find(x, y)` and `move(at, key)` give a place in the figure, or null; `tell(place)` gives { x, y, title, rows } there
// and the attributes that bring the `hair` to it.
function follow(f, hair, find, move, tell) {
  let at = null;
  fill(hair, { visibility: "hidden" }, []);
  f.front.append(hair);
  const hide = () => {
    hair.setAttribute("visibility", "hidden");
    hideTip();
  };
  const show = (place, aloud) => {
    const { x, y, title, rows, attributes } = tell((at = place)),
      box = f.root.getBoundingClientRect();
    fill(hair, { ...attributes, visibility: "visible" }, []);
    showTip(box.left + x, box.top + y, title, rows);
    if (aloud) byId("spoken").textContent = `${title}: ${rows.map((r) => r.join(" ")).join(", ")}`;
  };
  const point = (event) => {
    const box = f.root.getBoundingClientRect(),
      found = find(event.clientX - box.left, event.clientY - box.top);
    if (found === null) hide();
    else show(found, false);
  };
  f.root.addEventListener("pointermove", point);
  f.root.addEventListener("pointerdown", point);
  f.root.addEventListener("pointerleave", hide);
  f.root.addEventListener("blur", hide);
  f.root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const next = move(at, event.key);
    if (next === null) return;
    event.preventDefault();
    show(next, true);
  });
}
const within = (v, count) => Math.max(0, Math.min(count - 1, v));

// `stops` are { x, y, title, rows() }; `across` looks for the nearest by x alone, as for curves.
function readout(f, stops, across = false) {
  if (!stops.length) return;
  const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  const find = (px, py) => {
    let best = null,
      least = across ? Infinity : 900;
    stops.forEach((s, k) => {
      const d = across ? Math.abs(s.x - px) : (s.x - px) ** 2 + (s.y - py) ** 2;
      if (d < least) [least, best] = [d, k];
    });
    return best;
  };
  follow(
    f,
    across ? rule("hair", 0, f.top, 0, f.floor) : svg("circle", { class: "hair", r: 6, fill: "none" }),
    find,
    (at, key) => (key in moves ? (at === null ? 0 : within(at + moves[key], stops.length)) : null),
    (k) => {
      const { x, y, title, rows } = stops[k],
        attributes = { transform: `translate(${x},${across ? 0 : y})` };
      return { x, y: y ?? f.top + 40, title, rows: rows(), attributes };
    },
  );
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
// The cell in row r, column c has the colour of share(r, c), between 0 and 1, null is left empty; say(r, c) is its readout.
function heat(f, rows, columns, share, say) {
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
      width: f.end - f.left,
      height: f.floor - f.top,
      preserveAspectRatio: "none",
    }),
  );
  cells(f, rows, columns, say);
}
function cells(f, rows, columns, say) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] },
    width = (f.end - f.left) / columns,
    height = (f.floor - f.top) / rows;
  const find = (px, py) => {
    const [r, c] = [Math.floor((py - f.top) / height), Math.floor((px - f.left) / width)];
    return r === within(r, rows) && c === within(c, columns) ? [r, c] : null;
  };
  const move = (at, key) => {
    const [down, right] = moves[key] || [];
    if (down === undefined) return null;
    return at === null ? [0, 0] : [within(at[0] + down, rows), within(at[1] + right, columns)];
  };
  follow(f, svg("rect", { class: "hair", fill: "none" }), find, move, ([r, c]) => {
    const [x, y] = [f.left + c * width, f.top + r * height],
      [title, lines] = say(r, c);
    return { x: x + width / 2, y, title, rows: lines, attributes: { x, y, width, height } };
  });
}
