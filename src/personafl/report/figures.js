// The figures. Each is a function of the data and the state that draws into its place, and is drawn anew when either changes.

const nameOf = (i) => data.methods[i].name;
const labelOf = (i, who = "personal") => (who === "global" ? `${nameOf(i)}, global model` : data.methods[i].label);
const shown = (i) => !state.hidden.has(nameOf(i));
const scaled = (v) => (known(v) ? v * data.measure.scale : null);
const written = (v) => (known(v) ? `${fixed(v, data.measure.digits)}${data.measure.unit && " %"}` : "–");
const axisTitle = () => data.measure.title + (data.measure.unit && `, ${data.measure.unit}`);
const short = (text, most = 16) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const sentence = (text) => text[0].toUpperCase() + text.slice(1);
const wide = (host) => host.clientWidth > 560;

// All clients' values of a method, over its seeds.
function valuesOf(method, who = "personal") {
  const all = [];
  data.runs.forEach((run, k) => {
    if (run.method === method && data.values[k][who])
      for (const v of data.values[k][who]) if (known(v)) all.push(scaled(v));
  });
  return all;
}

const figures = {
  dots(host) {
    const judged = data.judgement,
      column = judged.columns.find((c) => c.key === judged.primary);
    const rows = judged.rows.map((row) => ({ i: row.method, ...metricOf(row, column.key) })).filter((r) => known(r.mean));
    rows.sort((a, b) => column.better * (b.mean - a.mean));
    const all = rows
      .flatMap((r) => [r.mean - (r.standard_error || 0), r.mean + (r.standard_error || 0), ...r.values])
      .filter(known);
    const [low, high] = extent(all.map((v) => v * column.scale)),
      pad = (high - low) * 0.06 || 0.5;
    const letters = host.clientWidth > 420 ? 30 : 18;
    const left = 24 + Math.max(...rows.map((r) => Math.min(r.label.length, letters))) * 6.6;
    const f = frame(host, {
      height: 54 + rows.length * 32,
      left,
      top: 4,
      x: {
        make: (range) => linear([low - pad, high + pad], range),
        title: axisTitle(),
        format: (v) => fixed(v, low > 100 || high - low > 4 ? 0 : data.measure.digits),
      },
      y: { make: (range) => Object.assign((k) => range[1] + (k + 0.5) * 32, { ticks: [] }), title: "" },
      label: `${column.title} of each method: ${rows.map((r) => `${r.label} ${fixed(r.mean * column.scale, column.digits)}`).join(", ")}`,
    });
    const stops = rows.map((r, k) => {
      const y = f.y(k),
        x = f.x(r.mean * column.scale),
        se = (r.standard_error || 0) * column.scale;
      f.front.append(svg("line", { class: "grid", x1: f.left, x2: f.width - f.right, y1: y, y2: y }));
      for (const v of r.values.filter(known))
        f.front.append(svg("circle", { cx: f.x(v * column.scale), cy: y, r: 2.5, fill: colour(r.i), opacity: 0.4 }));
      f.front.append(
        svg("line", {
          x1: f.x(r.mean * column.scale - se),
          x2: f.x(r.mean * column.scale + se),
          y1: y,
          y2: y,
          stroke: colour(r.i),
          "stroke-width": 3,
        }),
      );
      f.front.append(
        mark(r.i, x, y, 5.5),
        svg("text", { class: "name", x: f.left - 12, y: y + 4, "text-anchor": "end" }, short(r.label, letters)),
      );
      return {
        x,
        y,
        title: r.label,
        rows: [
          [column.title, fixed(r.mean * column.scale, column.digits)],
          ...(r.seeds > 1 ? [["standard error", fixed(se, column.digits)]] : []),
          ...r.values.map((v, s) => [
            `seed ${data.methods[r.i].seeds[s]}`,
            known(v) ? fixed(v * column.scale, column.digits) : "–",
          ]),
        ],
      };
    });
    readout(f, stops);
    byId("dots-caption").textContent =
      `${sentence(column.about)}. ${rows.some((r) => r.seeds > 1) ? "Bar: standard error over seeds; small points: the seeds." : ""}`;
  },

  curves(host) {
    const measure = state.measure,
      scale = measure === "accuracy" ? 100 : 1;
    const lines = data.curves.filter(
      (c) => c.measure === measure && shown(c.method) && (state.who === "both" || c.who === state.who),
    );
    const at = (v) => v * scale,
      room = wide(host);
    const [first, last] = extent(lines.flatMap((c) => [c.rounds[0], c.rounds.at(-1)]));
    const [low, high] = extent(
        lines
          .flatMap((c) => [...c.low, ...c.high])
          .filter(known)
          .map(at),
      ),
      pad = (high - low) * 0.04;
    const useLog = measure === "loss" && low > 0 && high > 8 * low;
    const unit = measure === "accuracy" ? ", %" : "",
      digits = measure === "accuracy" ? 1 : 4;
    const f = frame(host, {
      height: room ? 400 : 300,
      right: room ? 120 : 14,
      label: `${measure} on test data over rounds, ${plural(lines.length, "line")}`,
      x: {
        make: (r) => linear([first, last], r, room ? 8 : 4),
        title: "round",
        format: (v) => (Number.isInteger(v) ? brief(v) : ""),
      },
      y: {
        make: (r) => (useLog ? logarithmic([low, high], r) : linear([low - pad, high + pad], r)),
        title: `test ${measure}${unit}`,
      },
    });
    const ends = [];
    for (const c of lines) {
      const points = (key) => c.rounds.map((r, k) => [f.x(r), f.y(at(c[key][k]))]);
      if (Math.max(...c.seeds) > 1)
        f.front.append(svg("path", { class: "band", d: area(points("high"), points("low")), fill: colour(c.method) }));
      const line = points("mean");
      f.front.append(
        svg("path", {
          class: "line",
          d: path(line),
          stroke: colour(c.method),
          "stroke-dasharray": c.who === "global" ? "5 5" : null,
        }),
      );
      const every = Math.ceil(line.length / 8);
      line.forEach(([x, y], k) => {
        if ((line.length - 1 - k) % every === 0) f.front.append(mark(c.method, x, y, c.who === "global" ? 2.6 : 3.6));
      });
      if (c.who === "personal" || state.who === "global")
        ends.push({ x: line.at(-1)[0], y: line.at(-1)[1], text: short(nameOf(c.method), 14) });
    }
    if (room) endLabels(f, ends);
    const rounds = [...new Set(lines.flatMap((c) => c.rounds))].sort((a, b) => a - b);
    readout(
      f,
      rounds.map((r) => ({
        x: f.x(r),
        title: `round ${r}`,
        rows: () =>
          lines
            .map((c) => [c, c.rounds.indexOf(r)])
            .filter(([, k]) => k >= 0)
            .sort(([a, j], [b, k]) => (measure === "accuracy" ? b.mean[k] - a.mean[j] : a.mean[j] - b.mean[k]))
            .map(([c, k]) => [
              labelOf(c.method, c.who),
              fixed(at(c.mean[k]), digits) +
                (c.seeds[k] > 1 ? ` (${fixed(at(c.low[k]), digits)}–${fixed(at(c.high[k]), digits)})` : ""),
            ]),
      })),
      true,
    );
    byId("curves-caption").textContent =
      "Over all test samples of all clients, mean over seeds; the band reaches from the lowest to the highest seed. " +
      (lines.some((c) => c.who === "global") ? "Dashed: the method’s global model. " : "") +
      "Arrow keys move through the rounds.";
  },

  histogram(host) {
    const rows = data.methods
      .map((_, i) => i)
      .filter(shown)
      .map((i) => ({ i, values: valuesOf(i) }))
      .filter((r) => r.values.length);
    const everything = rows.flatMap((r) => r.values);
    const accuracy = data.measure.key === "accuracy",
      sorted = everything.slice().sort((a, b) => a - b);
    let [low, high] = accuracy ? [Math.floor((sorted[0] ?? 0) / 10) * 10, 100] : extent(everything);
    if (!accuracy && sorted.length > 20) high = Math.max(quantile(sorted, 0.98), low); // a few large losses would squeeze the rest
    const bins = 20,
      height = 46,
      place = (v) => Math.min(bins - 1, Math.floor(((v - low) / (high - low || 1)) * bins));
    const left = wide(host) || host.clientWidth > 420 ? 96 : 78;
    const f = frame(host, {
      height: 54 + rows.length * height,
      left,
      top: 6,
      label: `Histogram over clients for ${plural(rows.length, "method")}`,
      x: { make: (r) => linear([low, high], r, 5), title: axisTitle() },
      y: { make: (r) => Object.assign((k) => r[1] + k * height, { ticks: [] }), title: "" },
    });
    const stops = [];
    rows.forEach((row, k) => {
      const counts = Array(bins).fill(0),
        base = f.y(k + 1) - 4,
        w = (f.width - f.left - f.right) / bins;
      for (const v of row.values) counts[place(v)]++;
      const most = Math.max(...counts),
        top = (c) => base - (c / most) * (height - 12);
      f.front.append(svg("line", { class: "grid", x1: f.left, x2: f.width - f.right, y1: base, y2: base }));
      counts.forEach((c, b) => {
        if (c)
          f.front.append(
            svg("rect", {
              x: f.left + b * w + 0.5,
              y: top(c),
              width: w - 1,
              height: base - top(c),
              fill: colour(row.i),
            }),
          );
        stops.push({
          x: f.left + (b + 0.5) * w,
          y: top(c),
          title: `${labelOf(row.i)}: ${plural(c, "client")}`,
          rows: [
            ["from", written(low + (b * (high - low)) / bins)],
            ["to", b === bins - 1 && !accuracy ? "more" : written(low + ((b + 1) * (high - low)) / bins)],
            ["share", `${fixed((100 * c) / row.values.length, 1)} %`],
          ],
        });
      });
      const middle = quantile(
          row.values.sort((a, b) => a - b),
          0.5,
        ),
        x = f.x(Math.min(middle, high));
      f.front.append(
        svg("line", { class: "hair", x1: x, x2: x, y1: base, y2: base - height + 12, "stroke-dasharray": "2 2" }),
      );
      f.front.append(
        svg(
          "text",
          { class: "name", x: f.left - 10, y: base - 8, "text-anchor": "end" },
          short(nameOf(row.i), left > 80 ? 13 : 10),
        ),
      );
    });
    readout(f, stops);
    byId("histogram-caption").textContent =
      `Each client’s ${data.measure.title} with its personalized model, at the last evaluation, clients of all seeds. Dotted: the median.` +
      (accuracy ? "" : " The last bar holds everything beyond.") +
      thinned();
  },

  cdf(host) {
    const rows = data.methods
      .map((_, i) => i)
      .filter(shown)
      .map((i) => ({ i, values: valuesOf(i).sort((a, b) => a - b) }))
      .filter((r) => r.values.length);
    const accuracy = data.measure.key === "accuracy";
    let [low, high] = extent(rows.flatMap((r) => [r.values[0], accuracy ? 100 : quantile(r.values, 0.98)]));
    const f = frame(host, {
      height: Math.max(260, 54 + rows.length * 46),
      label: `Empirical distribution over clients for ${plural(rows.length, "method")}`,
      x: { make: (r) => linear([low, high], r, 5), title: axisTitle() },
      y: { make: (r) => linear([0, 100], r), title: "clients, %" },
    });
    for (const { i, values } of rows) {
      const thin = Math.max(1, Math.floor(values.length / 500)),
        points = [[f.x(low), f.y(0)]];
      values.forEach((v, k) => {
        if (k % thin && k !== values.length - 1) return;
        const x = f.x(Math.min(v, high));
        points.push([x, points.at(-1)[1]], [x, f.y((100 * (k + 1)) / values.length)]);
      });
      f.front.append(svg("path", { class: "line", d: path(points), stroke: colour(i) }));
      for (const q of [0.1, 0.5, 0.9])
        f.front.append(mark(i, f.x(Math.min(quantile(values, q), high)), f.y(100 * q), 3.6));
    }
    const steps = 60,
      count = (values, x) => {
        let a = 0,
          b = values.length;
        while (a < b) {
          const m = (a + b) >> 1;
          if (values[m] <= x) a = m + 1;
          else b = m;
        }
        return a;
      };
    readout(
      f,
      [...Array(steps + 1).keys()].map((k) => {
        const x = low + ((high - low) * k) / steps;
        return {
          x: f.x(x),
          title: `at most ${written(x)}`,
          rows: () =>
            rows.map((r) => [labelOf(r.i), `${fixed((100 * count(r.values, x + 1e-9)) / r.values.length, 1)} %`]),
        };
      }),
      true,
    );
    byId("cdf-caption").textContent =
      `${accuracy ? "A line further right serves its clients better" : "A line further left serves its clients better"}; how early it rises tells how many are left behind. Markers: 10, 50 and 90 % of the clients.`;
  },

  scatter(host) {
    const sides = [state.pairX, state.pairY].map((key) => pairOptions().find((o) => o.key === key));
    const [from, to] = sides,
      better = data.measure.better,
      groups = { good: [], bad: [], even: [] },
      points = [];
    data.runs.forEach((run, k) => {
      if (run.method !== from.method) return;
      data.runs.forEach((other, j) => {
        if (other.method !== to.method || other.federation !== run.federation) return;
        const a = data.values[k][from.who],
          b = data.values[j][to.who],
          clients = data.federations[run.federation];
        if (a && b)
          a.forEach((v, m) => {
            if (known(v) && known(b[m]))
              points.push({ a: scaled(v), b: scaled(b[m]), id: clients.ids[m], seed: clients.label });
          });
      });
    });
    const sorted = points.flatMap((p) => [p.a, p.b]).sort((a, b) => a - b),
      accuracy = data.measure.key === "accuracy";
    const useLog = !accuracy && sorted[0] > 0 && sorted.at(-1) > 50 * quantile(sorted, 0.5);
    const pad = (sorted.at(-1) - sorted[0]) * 0.03 || 0.5;
    const domain = !sorted.length
      ? [0, 1]
      : useLog
        ? [sorted[0], sorted.at(-1)]
        : [accuracy ? Math.max(sorted[0] - pad, -2) : sorted[0] - pad, accuracy ? 102 : sorted.at(-1) + pad];
    const make = (r) => (useLog ? logarithmic(domain, r) : linear(domain, r, 5));
    const f = frame(host, {
      height: Math.min(host.clientWidth, 560) * 0.9,
      label: `Each client with ${from.name} against ${to.name}`,
      x: { make, title: `${from.name}: ${axisTitle()}` },
      y: { make, title: `${to.name}: ${axisTitle()}` },
    });
    f.front.append(
      svg("line", {
        class: "hair",
        x1: f.x(domain[0]),
        y1: f.y(domain[0]),
        x2: f.x(domain[1]),
        y2: f.y(domain[1]),
        "stroke-dasharray": "4 4",
      }),
    );
    const stops = points.map((p) => {
      const gain = better * (p.b - p.a),
        x = f.x(p.a),
        y = f.y(p.b);
      groups[gain > 1e-9 ? "good" : gain < -1e-9 ? "bad" : "even"].push([x, y]);
      return {
        x,
        y,
        title: p.id,
        rows: [
          [from.name, written(p.a)],
          [to.name, written(p.b)],
          ["difference", (p.b > p.a ? "+" : "") + fixed(p.b - p.a, data.measure.digits)],
          ["", p.seed],
        ],
      };
    });
    for (const [kind, ink] of [
      ["even", "var(--soft)"],
      ["bad", "var(--bad)"],
      ["good", "var(--good)"],
    ])
      f.front.append(
        svg("path", {
          class: "cloud",
          d: dots(groups[kind]),
          stroke: ink,
          "stroke-width": points.length > 2000 ? 4 : 7,
        }),
      );
    const corners = [
      [f.left + 10, f.top + (accuracy ? 32 : 14), "start"],
      [f.width - f.right - 8, f.height - f.bottom - 12, "end"],
    ];
    (better > 0 ? [to, from] : [from, to]).forEach((who, k) =>
      f.front.append(
        svg(
          "text",
          { class: "halo", x: corners[k][0], y: corners[k][1], "text-anchor": corners[k][2] },
          `better with ${short(who.name, 22)}`,
        ),
      ),
    );
    drawMoved(
      points.map((p) => ({ ...p, gain: better * (p.b - p.a) })),
      from,
      to,
    );
    readout(f, stops);
    const n = points.length,
      part = (g) => `${groups[g].length.toLocaleString("en")} (${fixed((100 * groups[g].length) / n, 0)} %)`;
    byId("pair-says").textContent = !n
      ? "These two were not trained on the same data."
      : from.key === to.key
        ? "Choose two different models."
        : `Of ${plural(n, "client")}${data.federations.length > 1 ? " over all seeds" : ""}, ${part("good")} do better with ${to.name} than with ${from.name}, ${part("bad")} do worse, ${part("even")} do as well.`;
    byId("scatter-caption").textContent =
      `A point is a client of a seed: its ${data.measure.title} at the last evaluation with the one and with the other. On the dashed line both are equal.` +
      thinned();
  },

  sizes(host) {
    const federation = data.federations[state.federation],
      n = federation.n_train || [];
    const order = n.map((_, m) => m).sort((a, b) => n[b] - n[a]),
      sorted = order.map((m) => n[m]);
    const useLog = sorted.at(-1) > 0 && sorted[0] > 30 * sorted.at(-1);
    const domain = useLog ? [sorted.at(-1), sorted[0]] : [0, sorted[0] || 1];
    const f = frame(host, {
      height: 290,
      label: `Training samples of ${plural(n.length, "client")}, largest first`,
      x: {
        make: (r) => linear([0, n.length], r, 4),
        title: "clients, largest first",
        format: (v) => (Number.isInteger(v) ? brief(v) : ""),
      },
      y: { make: (r) => (useLog ? logarithmic(domain, r) : linear(domain, r, 4)), title: "training samples" },
    });
    const floor = f.height - f.bottom,
      points = [];
    sorted.forEach((v, k) => points.push([f.x(k), f.y(v)], [f.x(k + 1), f.y(v)]));
    f.front.append(
      svg("path", {
        d: `${path([[f.x(0), floor], ...points, [f.x(n.length), floor]])}z`,
        fill: "var(--ramp2)",
        opacity: 0.85,
      }),
    );
    const lines = (m) => [
      ["train", brief(n[m])],
      ...(federation.n_val ? [["validation", brief(federation.n_val[m])]] : []),
      ["test", brief(federation.n_test[m])],
      ...(federation.groups ? [["group", federation.groups[m]]] : []),
      ...(federation.classes ? [["classes", brief(federation.classes[m])]] : []),
    ];
    readout(
      f,
      order.map((m, k) => ({ x: f.x(k + 0.5), y: f.y(sorted[k]), title: federation.ids[m], rows: () => lines(m) })),
      true,
    );
    const rising = sorted.slice().reverse();
    byId("sizes-caption").textContent =
      `${plural(federation.clients, "client")}: from ${brief(rising[0] ?? 0)} to ${brief(sorted[0] ?? 0)} training samples, median ${brief(quantile(rising, 0.5) ?? 0)}.` +
      thinned();
  },

  classes(host) {
    const shares = data.federations[state.federation].shares;
    byId("classes-figure").hidden = !shares;
    if (!shares) return;
    const columns = shares.values.length,
      rows = shares.labels.length;
    const left = Math.min(110, 40 + Math.max(...shares.labels.map((l) => Math.min(l.length, 11))) * 6);
    const cell = (290 - 54) / rows,
      every = Math.ceil(14 / cell);
    const f = frame(host, {
      height: 290,
      left,
      label: `Shares of ${rows} classes in the test data of ${columns} columns of clients`,
      x: { make: (r) => Object.assign(linear([0, columns], r), { ticks: [] }), title: `clients, by ${shares.by}` },
      y: {
        make: (r) => Object.assign((k) => r[1] + ((k + 0.5) / rows) * (r[0] - r[1]), { ticks: [] }),
        title: "class",
      },
    });
    heat(f, rows, columns, (r, c) => Math.sqrt(shares.values[c][r]));
    shares.labels.forEach((l, r) => {
      if (r % every === 0)
        f.front.append(svg("text", { x: f.left - 8, y: f.y(r) + 4, "text-anchor": "end" }, short(l, 12)));
    });
    cells(f, rows, columns, (r, c) => [
      shares.clients[c],
      [[`class ${shares.labels[r]}`, `${fixed(100 * shares.values[c][r], 0)} %`]],
    ]);
    byId("classes-caption").textContent =
      `Share of each class in a client’s test data; the stronger the colour, the more.${shares.each > 1 ? ` A column is up to ${shares.each} neighbours.` : ""}`;
  },
};

// Who moves most: the ends of the list that the scatter draws.
function drawMoved(points, from, to) {
  const sorted = points.filter((p) => Math.abs(p.gain) > 1e-9).sort((a, b) => b.gain - a.gain),
    several = data.federations.length > 1;
  const part = (title, rows) => [
    el("h3", {}, title),
    rows.length
      ? scrolling(
          title,
          [
            "client",
            several ? el("th", { scope: "col", class: "text" }, "federation") : null,
            ...[from.name, to.name, "difference"].map((t) => short(t, 18)),
          ],
          rows.map((p) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, p.id),
              several ? el("td", { class: "text" }, p.seed) : null,
              el("td", {}, fixed(p.a, data.measure.digits)),
              el("td", {}, fixed(p.b, data.measure.digits)),
              el("td", {}, (p.b > p.a ? "+" : "") + fixed(p.b - p.a, data.measure.digits)),
            ),
          ),
        )
      : el("p", { class: "caption" }, "Nobody."),
  ];
  byId("moved").replaceChildren(
    ...part("Gain most", sorted.filter((p) => p.gain > 0).slice(0, 5)),
    ...part(
      "Lose most",
      sorted
        .filter((p) => p.gain < 0)
        .slice(-5)
        .reverse(),
    ),
  );
}

function thinned() {
  const all = data.federations.reduce((sum, f) => sum + f.clients, 0),
    kept = data.federations.reduce((sum, f) => sum + f.ids.length, 0);
  return kept < all
    ? ` Of ${all.toLocaleString("en")} clients, ${kept.toLocaleString("en")} are shown, evenly spaced.`
    : "";
}
