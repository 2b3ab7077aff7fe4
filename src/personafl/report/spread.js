// Figures over the clients: how many get how much, and who does better with which of two methods.

// All clients' values of each shown method, over its seeds, rising.
function spreads() {
  const valuesOf = (i) =>
    data.runs
      .flatMap((run, k) => (run.method === i && data.values[k].personal) || [])
      .filter(known)
      .map(scaled);
  return data.methods
    .map((_, i) => ({ i, values: valuesOf(i).sort((a, b) => a - b) }))
    .filter((r) => shown(r.i) && r.values.length);
}

Object.assign(figures, {
  histogram(host) {
    const rows = spreads(),
      share = isShare(),
      full = data.measure.scale,
      sorted = rows.flatMap((r) => r.values).sort((a, b) => a - b);
    const most = sorted.length > 20 ? quantile(sorted, 0.98) : extent(sorted)[1], // a few large losses would squeeze the rest
      [low, high] = share ? [Math.floor((sorted[0] ?? 0) / (full / 10)) * (full / 10), full] : [extent(sorted)[0], most];
    const bins = 20,
      height = 46,
      place = (v) => Math.min(bins - 1, Math.floor(((v - low) / (high - low || 1)) * bins)),
      edge = (b) => low + (b * (high - low)) / bins,
      [left, letters] = host.clientWidth > 420 ? [96, 13] : [78, 10];
    const f = frame(host, {
      height: 54 + rows.length * height,
      left,
      top: 6,
      label: `Histogram over clients for ${plural(rows.length, "method")}`,
      x: { make: (r) => linear([low, high], r, 5), title: axisTitle() },
      y: { make: (r) => (k) => r[1] + k * height },
    });
    const width = (f.end - f.left) / bins;
    const stops = rows.flatMap(({ i, values }, k) => {
      const counts = Array(bins).fill(0),
        base = f.y(k + 1) - 4,
        middle = f.x(Math.min(quantile(values, 0.5), high));
      for (const v of values) counts[place(v)]++;
      const highest = Math.max(...counts),
        top = (c) => base - (c / highest) * (height - 12);
      f.front.append(
        rule("grid", f.left, base, f.end, base),
        ...counts.map((c, b) => (c ? bar(i, f.left + b * width + 0.5, top(c), width - 1, base) : "")),
        rule("hair", middle, base, middle, base - height + 12, "2 2"),
        words(f.left - 10, base - 8, "end", short(nameOf(i), letters), { class: "name" }),
      );
      return counts.map((c, b) => ({
        x: f.left + (b + 0.5) * width,
        y: top(c),
        title: `${labelOf(i)}: ${plural(c, "client")}`,
        rows: () => [
          ["from", written(edge(b))],
          ["to", b === bins - 1 && !share ? "more" : written(edge(b + 1))],
          ["share", `${fixed((100 * c) / values.length, 1)} %`],
        ],
      }));
    });
    readout(f, stops);
    caption(
      "histogram",
      `Each client’s ${data.measure.title} with its personalized model, at the last evaluation, clients of all seeds. Dotted: the median.`,
      !share && "The last bar holds everything beyond.",
      thinned(),
    );
  },

  cdf(host) {
    const rows = spreads(),
      share = isShare(),
      [low, high] = extent(rows.flatMap((r) => [r.values[0], share ? data.measure.scale : quantile(r.values, 0.98)]));
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
      const marked = [0.1, 0.5, 0.9].map((q) => mark(i, f.x(Math.min(quantile(values, q), high)), f.y(100 * q), 3.6));
      f.front.append(line(i, points), ...marked);
    }
    const steps = 60,
      portion = (values, x) => {
        const above = values.findIndex((v) => v > x + 1e-9);
        return `${fixed((100 * (above < 0 ? values.length : above)) / values.length, 1)} %`;
      };
    readout(
      f,
      [...Array(steps + 1).keys()].map((k) => {
        const x = low + ((high - low) * k) / steps;
        return {
          x: f.x(x),
          title: `at most ${written(x)}`,
          rows: () => rows.map((r) => [labelOf(r.i), portion(r.values, x)]),
        };
      }),
      true,
    );
    caption(
      "cdf",
      `A line further ${data.measure.better > 0 ? "right" : "left"} serves its clients better; how early it rises tells how many are left behind. Markers: 10, 50 and 90 % of the clients.`,
    );
  },

  scatter(host) {
    const [from, to] = [state.pairX, state.pairY].map((key) => pairOptions().find((o) => o.key === key)),
      better = data.measure.better,
      share = isShare(),
      points = clientPairs(from, to);
    const sorted = points.flatMap((p) => [p.a, p.b]).sort((a, b) => a - b),
      [low, high] = extent(sorted);
    const useLog = !share && low > 0 && high > 50 * quantile(sorted, 0.5);
    const pad = (high - low) * 0.03 || 0.5;
    const domain = !sorted.length
      ? [0, 1]
      : useLog
        ? [low, high]
        : share
          ? [Math.max(low - pad, -0.02 * data.measure.scale), 1.02 * data.measure.scale]
          : [low - pad, high + pad];
    const make = (r) => (useLog ? logarithmic(domain, r) : linear(domain, r, 5));
    const f = frame(host, {
      height: Math.min(host.clientWidth, 560) * 0.9,
      label: `Each client with ${from.name} against ${to.name}`,
      x: { make, title: `${from.name}: ${axisTitle()}` },
      y: { make, title: `${to.name}: ${axisTitle()}` },
    });
    f.front.append(rule("hair", f.x(domain[0]), f.y(domain[0]), f.x(domain[1]), f.y(domain[1]), "4 4"));
    const groups = {
      even: points.filter((p) => p.gain === 0),
      bad: points.filter((p) => p.gain < 0),
      good: points.filter((p) => p.gain > 0),
    };
    const inks = { even: "var(--soft)", bad: "var(--bad)", good: "var(--good)" },
      size = points.length > 2000 ? 4 : 7;
    for (const [kind, group] of Object.entries(groups))
      f.front.append(
        cloud(
          inks[kind],
          group.map((p) => [f.x(p.a), f.y(p.b)]),
          size,
        ),
      );
    const [above, below] = (better > 0 ? [to, from] : [from, to]).map((o) => `better with ${short(o.name, 22)}`);
    f.front.append(
      words(f.left + 10, f.top + (share ? 32 : 14), "start", above, { class: "halo" }),
      words(f.end - 8, f.floor - 12, "end", below, { class: "halo" }),
    );
    drawMoved(points, from, to);
    const told = (p) => [
      [from.name, written(p.a)],
      [to.name, written(p.b)],
      ["difference", signed(p.b - p.a)],
      ["", p.seed],
    ];
    readout(
      f,
      points.map((p) => ({ x: f.x(p.a), y: f.y(p.b), title: p.id, rows: () => told(p) })),
    );
    const n = points.length,
      part = (g) => `${groups[g].length.toLocaleString("en")} (${fixed((100 * groups[g].length) / n, 0)} %)`;
    byId("pair-says").textContent = !n
      ? "These two were not trained on the same data."
      : from.key === to.key
        ? "Choose two different models."
        : `Of ${plural(n, "client")}${data.federations.length > 1 ? " over all seeds" : ""}, ${part("good")} do better with ${to.name} than with ${from.name}, ${part("bad")} do worse, ${part("even")} do as well.`;
    caption(
      "scatter",
      `A point is a client of a seed: its ${data.measure.title} at the last evaluation with the one and with the other. On the dashed line both are equal.`,
      thinned(),
    );
  },
});

// Each client of each seed with the one and with the other; the gain is above 0 where the other is better.
function clientPairs(from, to) {
  const points = [];
  data.runs.forEach((run, k) =>
    data.runs.forEach((other, j) => {
      if (run.method !== from.method || other.method !== to.method || other.federation !== run.federation) return;
      const [one, two] = [data.values[k][from.who], data.values[j][to.who]],
        { ids, label } = data.federations[run.federation];
      if (one && two)
        ids.forEach((id, m) => {
          if (!known(one[m]) || !known(two[m])) return;
          const [a, b] = [scaled(one[m]), scaled(two[m])];
          points.push({ a, b, id, seed: label, gain: Math.abs(b - a) > 1e-9 ? data.measure.better * (b - a) : 0 });
        });
    }),
  );
  return points;
}

// Who moves most: the ends of the list that the scatter draws.
function drawMoved(points, from, to) {
  const several = data.federations.length > 1,
    cell = (text) => el("td", {}, text);
  const head = () => [
    "client",
    several ? el("th", { scope: "col", class: "text" }, "federation") : null,
    ...[from.name, to.name, "difference"].map((t) => short(t, 18)),
  ];
  const row = (p) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, p.id),
      several ? el("td", { class: "text" }, p.seed) : null,
      [fixed(p.a, data.measure.digits), fixed(p.b, data.measure.digits), signed(p.b - p.a)].map(cell),
    );
  const part = (title, most) => [
    el("h3", {}, title),
    most.length ? scrolling(title, head(), most.map(row)) : el("p", { class: "caption" }, "Nobody."),
  ];
  const sorted = points.filter((p) => p.gain).sort((a, b) => b.gain - a.gain);
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
