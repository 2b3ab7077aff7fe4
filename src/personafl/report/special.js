// Figures that only some runs have: FedAMP's collaboration, DET curves, Self-FL's uncertainty, PersFL's teachers.

Object.assign(figures, {
  matrix(host) {
    const matrix = data.collaboration[state.matrix] || data.collaboration[0],
      size = matrix.clients.length;
    const off = matrix.weights
      .flatMap((row, r) => row.filter((_, c) => c !== r || matrix.each > 1))
      .filter(known)
      .sort((a, b) => a - b);
    const top = quantile(off, 0.99) || off.at(-1) || 1;
    const side = Math.min(host.clientWidth, 620);
    const f = frame(host, {
      height: side * 0.92,
      left: 30,
      bottom: 34,
      right: Math.max(8, host.clientWidth - side),
      label: `Collaboration weights between ${size} clients or blocks of clients`,
      x: { make: (r) => Object.assign(linear([0, size], r), { ticks: [] }), title: "takes from …" },
      y: { make: (r) => Object.assign(linear([size, 0], r), { ticks: [] }), title: "a client …" },
    });
    heat(f, size, size, (r, c) => (r === c && matrix.each === 1 ? null : matrix.weights[r][c] / top));
    if (matrix.groups)
      for (let k = 1; k < size; k++)
        if (matrix.groups[k] !== matrix.groups[k - 1]) {
          f.front.append(
            svg("line", { class: "hair", x1: f.x(k), x2: f.x(k), y1: f.top, y2: f.height - f.bottom }),
            svg("line", {
              class: "hair",
              x1: f.left,
              x2: f.width - f.right,
              y1: f.height - f.bottom - ((size - k) / size) * (f.height - f.bottom - f.top),
              y2: f.height - f.bottom - ((size - k) / size) * (f.height - f.bottom - f.top),
            }),
          );
        }
    cells(f, size, size, (r, c) =>
      r === c && matrix.each === 1
        ? [matrix.clients[r], [["its own model", brief(matrix.own[r])]]]
        : [
            matrix.clients[r],
            [
              ["takes from", matrix.clients[c]],
              ["weight", brief(matrix.weights[r][c])],
              ["of its own", brief(matrix.own[r])],
            ],
          ],
    );
    const own = matrix.own.slice().sort((a, b) => a - b);
    byId("matrix-top").textContent = `${brief(top)} and more`;
    byId("matrix-caption").textContent =
      `Weights ξ after round ${matrix.round}; clients by ${matrix.by}${matrix.groups ? ", lines between groups" : ""}. ` +
      (matrix.each > 1
        ? `A row and a column stand for up to ${matrix.each} neighbouring clients: what one of the row takes from all of the column together. `
        : "The diagonal is left out. ") +
      `A client takes ${brief(own[0])} to ${brief(own.at(-1))} of its own model (median ${brief(quantile(own, 0.5))}).`;
  },

  det(host) {
    const lines = data.detection
      .filter((d) => shown(d.method))
      .flatMap((d) => ["personal", "global"].filter((who) => d[who]).map((who) => ({ i: d.method, who, ...d[who] })));
    const rates = lines
      .flatMap((l) => [...l.mean, ...l.false_rejection.filter((_, k) => l.mean[k] <= 0.5)])
      .filter((v) => v > 0);
    const low = RATES.findLast((v) => v <= Math.max(0.001, Math.min(...rates, 0.1))),
      high = Math.max(...lines.map((l) => l.equal_error_rate), 0) > 0.15 ? 0.9 : 0.6,
      side = Math.min(host.clientWidth, 620),
      room = wide(host);
    const percent = (v) => brief(Number((100 * v).toPrecision(3))),
      make = (r) => normalDeviate([low, high], r);
    const f = frame(host, {
      height: side * 0.86,
      right: room ? 14 : 14,
      label: `DET curves: ${lines.map((l) => `${labelOf(l.i, l.who)} equal error rate ${percent(l.equal_error_rate)} %`).join(", ")}`,
      x: { make, title: "false rejections, % of the positive samples", format: percent },
      y: { make, title: "false alarms, % of the negative samples", format: percent },
    });
    f.front.append(
      svg("line", {
        class: "hair",
        x1: f.x(low),
        y1: f.y(low),
        x2: f.x(high),
        y2: f.y(high),
        "stroke-dasharray": "2 4",
      }),
    );
    for (const l of lines) {
      const inside = l.false_rejection
        .map((fr, k) => k)
        .filter((k) => l.false_rejection[k] >= low && l.false_rejection[k] <= high);
      const points = (key) => inside.map((k) => [f.x(l.false_rejection[k]), f.y(l[key][k])]);
      if (l.seeds > 1)
        f.front.append(svg("path", { class: "band", d: area(points("high"), points("low")), fill: colour(l.i) }));
      f.front.append(
        svg("path", {
          class: "line",
          d: path(points("mean")),
          stroke: colour(l.i),
          "stroke-dasharray": l.who === "global" ? "5 5" : null,
        }),
      );
      if (l.equal_error_rate >= low && l.equal_error_rate <= high)
        f.front.append(mark(l.i, f.x(l.equal_error_rate), f.y(l.equal_error_rate), l.who === "global" ? 3.5 : 4.5));
    }
    const grid = (lines[0] || { false_rejection: [] }).false_rejection;
    readout(
      f,
      grid
        .map((fr, k) => ({
          x: f.x(fr),
          title: `${percent(fr)} % rejected`,
          rows: () =>
            lines.map((l) => [
              labelOf(l.i, l.who),
              `${percent(l.mean[k])} % alarms`,
            ]),
        }))
        .filter((s, k) => grid[k] >= low),
      true,
    );
    byId("det-caption").textContent =
      "Over all test samples of all clients, each by its own client’s model; normal-deviate axes; mean over seeds at equal false rejections, the band from the lowest to the highest. Dashed: the global model. Marker: where both errors are equally frequent. What has no false alarms lies on the lower edge.";
  },
});

// Three quantities over rounds, and every client's GAIN against its size.
function uncertaintyFigures(entry) {
  const median = entry.quantiles.indexOf(0.5),
    lines = (key) => entry[key];
  const overRounds = (key, title) => (host) => {
    const rows = lines(key),
      values = rows.flat().filter(known),
      sorted = values.slice().sort((a, b) => a - b);
    const useLog = key !== "steps" && sorted[0] > 0 && sorted.at(-1) > 20 * sorted[0];
    const [low, high] = extent(values),
      pad = (high - low) * 0.06;
    const rounds = entry.rounds.filter((_, k) => known(rows[k][median]));
    const f = frame(host, {
      height: 220,
      left: 56,
      label: `${title} over rounds`,
      x: {
        make: (r) => linear(rounds.length ? [rounds[0], rounds.at(-1)] : [0, 1], r, 4),
        title: "round",
        format: (v) => (Number.isInteger(v) ? brief(v) : ""),
      },
      y: { make: (r) => (useLog ? logarithmic([low, high], r) : linear([low - pad, high + pad], r, 4)), title: "" },
    });
    const points = (q) =>
      entry.rounds
        .map((r, k) => [r, rows[k][q]])
        .filter(([, v]) => known(v))
        .map(([r, v]) => [f.x(r), f.y(v)]);
    for (const [a, b] of [
      [0, 4],
      [1, 3],
    ])
      f.front.append(svg("path", { class: "band", d: area(points(b), points(a)), fill: colour(entry.method) }));
    f.front.append(svg("path", { class: "line", d: path(points(median)), stroke: colour(entry.method) }));
    points(median).forEach(([x, y], k, all) => {
      if (all.length <= 12 || k === all.length - 1) f.front.append(mark(entry.method, x, y, 3.4));
    });
    readout(
      f,
      entry.rounds
        .map((r, k) => ({
          x: f.x(r),
          title: `round ${r}`,
          rows: entry.quantiles.map((q, j) => [q === 0.5 ? "median" : `${100 * q} %`, brief(rows[k][j])]).reverse(),
          ok: known(rows[k][median]),
        }))
        .filter((s) => s.ok),
      true,
    );
  };
  const perClient = (column, title) => (host) => {
    const points = [];
    data.runs.forEach((run, k) => {
      const values = data.values[k].columns[column],
        federation = data.federations[run.federation];
      if (run.method === entry.method && values)
        values.forEach((v, m) => {
          if (known(v) && federation.n_train[m] > 0)
            points.push({ n: federation.n_train[m], v, id: federation.ids[m], seed: federation.label });
        });
    });
    const [a, b] = extent(points.map((p) => p.n)),
      [low, high] = extent(points.map((p) => p.v)),
      pad = (high - low) * 0.05;
    const useLog = low > 0 && high > 20 * low && column !== "steps";
    const f = frame(host, {
      height: 240,
      left: 56,
      label: `${title} of each client against its training samples`,
      x: { make: (r) => logarithmic([a, b], r), title: "training samples" },
      y: { make: (r) => (useLog ? logarithmic([low, high], r) : linear([low - pad, high + pad], r, 4)), title: "" },
    });
    f.front.append(
      svg("path", {
        class: "cloud",
        d: dots(points.map((p) => [f.x(p.n), f.y(p.v)])),
        stroke: colour(entry.method),
        "stroke-width": points.length > 1000 ? 4 : 6,
      }),
    );
    readout(
      f,
      points.map((p) => ({
        x: f.x(p.n),
        y: f.y(p.v),
        title: p.id,
        rows: [
          [title, brief(p.v)],
          ["training samples", brief(p.n)],
          ["", p.seed],
        ],
      })),
    );
  };
  const names = { sigma2: "uncertainty σ²", steps: "local steps ℓ", gain: "GAIN" };
  const early = data.values.some((v, k) => data.runs[k].method === entry.method && v.columns.early_steps);
  return Object.entries(names).flatMap(([key, title]) => [
    [`${title} over rounds`, overRounds(key, title)],
    [
      `${title.split(" ").at(-1)} of each client at the end`,
      perClient(key === "steps" && early ? "early_steps" : key, title),
    ],
  ]);
}

// How many clients have their teacher from which round.
function teacherFigure(entry) {
  return (host) => {
    const bins = Math.min(entry.last + 1, 30),
      width = (entry.last + 1) / bins,
      counts = Array(bins).fill(0);
    entry.rounds.forEach((r, k) => {
      counts[Math.min(bins - 1, Math.floor(r / width))] += entry.clients[k];
    });
    const f = frame(host, {
      height: 260,
      label: "Clients by the round of their teacher",
      x: {
        make: (r) => linear([0, entry.last + 1], r, 6),
        title: "round of the teacher",
        format: (v) => (Number.isInteger(v) ? brief(v) : ""),
      },
      y: {
        make: (r) => linear([0, Math.max(...counts, 1)], r, 4),
        title: "clients",
        format: (v) => (Number.isInteger(v) ? brief(v) : ""),
      },
    });
    const stops = counts.map((c, b) => {
      const x = f.x(b * width),
        w = f.x((b + 1) * width) - x;
      f.front.append(
        svg("rect", {
          x: x + 0.5,
          y: f.y(c),
          width: Math.max(w - 1, 0.5),
          height: f.y(0) - f.y(c),
          fill: colour(entry.method),
        }),
      );
      const first = Math.ceil(b * width),
        last = Math.ceil((b + 1) * width) - 1;
      return {
        x: x + w / 2,
        y: f.y(c),
        title: first === last ? `round ${first}` : `rounds ${first} to ${last}`,
        rows: [["clients", brief(c)]],
      };
    });
    readout(f, stops, true);
  };
}
