// Figures that only some runs have: FedAMP's collaboration, DET curves, Self-FL's uncertainty, PersFL's teachers.

Object.assign(figures, {
  matrix(host) {
    const matrix = data.collaboration[state.matrix] || data.collaboration[0],
      { clients, weights, groups, each } = matrix,
      size = clients.length,
      own = matrix.own.slice().sort((a, b) => a - b),
      empty = (r, c) => r === c && each === 1;
    const off = weights
      .flatMap((row, r) => row.filter((_, c) => !empty(r, c)))
      .filter(known)
      .sort((a, b) => a - b);
    const most = quantile(off, 0.99) || off.at(-1) || 1,
      side = Math.min(host.clientWidth, 620);
    const f = frame(host, {
      height: side * 0.92,
      left: 30,
      bottom: 34,
      right: Math.max(8, host.clientWidth - side),
      label: `Collaboration weights between ${size} clients or blocks of clients`,
      x: { make: counted(size), title: "takes from …" },
      y: { make: counted(size), title: "a client …" },
    });
    const share = (r, c) => (empty(r, c) ? null : weights[r][c] / most);
    heat(f, size, size, share, (r, c) => [
      clients[r],
      empty(r, c)
        ? [["its own model", brief(matrix.own[r])]]
        : [
            ["takes from", clients[c]],
            ["weight", brief(weights[r][c])],
            ["of its own", brief(matrix.own[r])],
          ],
    ]);
    if (groups)
      for (let k = 1; k < size; k++)
        if (groups[k] !== groups[k - 1])
          f.front.append(rule("hair", f.x(k), f.top, f.x(k), f.floor), rule("hair", f.left, f.y(k), f.end, f.y(k)));
    byId("matrix-top").textContent = `${brief(most)} and more`;
    caption(
      "matrix",
      `Weights ξ after round ${matrix.round}; clients by ${matrix.by}${groups ? ", lines between groups" : ""}.`,
      each > 1
        ? `A row and a column stand for up to ${each} neighbouring clients: what one of the row takes from all of the column together.`
        : "The diagonal is left out.",
      `A client takes ${brief(own[0])} to ${brief(own.at(-1))} of its own model (median ${brief(quantile(own, 0.5))}).`,
    );
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
      inside = (v) => v >= low && v <= high,
      percent = (v) => brief(Number((100 * v).toPrecision(3)));
    const axis = (title) => ({ make: (r) => normalDeviate([low, high], r), title, format: percent }),
      rateOf = (l) => `${labelOf(l.i, l.who)} equal error rate ${percent(l.equal_error_rate)} %`;
    const f = frame(host, {
      height: Math.min(host.clientWidth, 620) * 0.86,
      right: 14,
      label: `DET curves: ${lines.map(rateOf).join(", ")}`,
      x: axis("false rejections, % of the positive samples"),
      y: axis("false alarms, % of the negative samples"),
    });
    f.front.append(rule("hair", f.x(low), f.y(low), f.x(high), f.y(high), "2 4"));
    for (const l of lines) {
      const points = (key) => l.false_rejection.map((x, k) => [x, l[key][k]]).filter(([x]) => inside(x)),
        pixels = (key) => points(key).map(([x, y]) => [f.x(x), f.y(y)]),
        dashed = l.who === "global",
        equal = l.equal_error_rate;
      if (l.seeds > 1) f.front.append(band(l.i, pixels("high"), pixels("low")));
      f.front.append(line(l.i, pixels("mean"), dashed));
      if (inside(equal)) f.front.append(mark(l.i, f.x(equal), f.y(equal), dashed ? 3.5 : 4.5));
    }
    const told = (k) => lines.map((l) => [labelOf(l.i, l.who), `${percent(l.mean[k])} % alarms`]),
      grid = lines[0]?.false_rejection || [];
    readout(
      f,
      grid
        .map((x, k) => ({ x: f.x(x), title: `${percent(x)} % rejected`, rows: () => told(k) }))
        .filter((_, k) => grid[k] >= low),
      true,
    );
    caption(
      "det",
      "Over all test samples of all clients, each by its own client’s model; normal-deviate axes; mean over seeds at equal false rejections, the band from the lowest to the highest. Dashed: the global model. Marker: where both errors are equally frequent. What has no false alarms lies on the lower edge.",
    );
  },
});

// Three quantities over rounds, and every client's at the end against its size.
function uncertaintyFigures(entry) {
  const i = entry.method,
    median = entry.quantiles.indexOf(0.5),
    mine = data.runs.map((run, k) => [run, data.values[k].columns]).filter(([run]) => run.method === i);
  const axis = (key, values, share) => {
    const [low, high] = extent(values);
    return { make: logOrLinear(key !== "steps" && low > 0 && high > 20 * low, [low, high], share, 4) };
  };
  const overRounds = (key, title) => (host) => {
    const rows = entry.rounds
      .map((round, k) => ({ round, values: entry[key][k] }))
      .filter((r) => known(r.values[median]));
    const f = frame(host, {
      height: 220,
      left: 56,
      label: `${title} over rounds`,
      x: {
        make: (r) => linear(rows.length ? [rows[0].round, rows.at(-1).round] : [0, 1], r, 4),
        title: "round",
        format: whole,
      },
      y: axis(key, entry[key].flat(), 0.06),
    });
    const points = (q) => rows.map((r) => [f.x(r.round), f.y(r.values[q])]),
      middle = points(median),
      marked = middle.length <= 12 ? middle : middle.slice(-1);
    f.front.append(
      band(i, points(4), points(0)),
      band(i, points(3), points(1)),
      line(i, middle),
      ...marked.map(([x, y]) => mark(i, x, y, 3.4)),
    );
    const told = (values) =>
      entry.quantiles.map((q, j) => [q === 0.5 ? "median" : `${100 * q} %`, brief(values[j])]).reverse();
    readout(
      f,
      rows.map((r) => ({ x: f.x(r.round), title: `round ${r.round}`, rows: () => told(r.values) })),
      true,
    );
  };
  const perClient = (column, title) => (host) => {
    const points = mine.flatMap(([run, columns]) => {
      const { n_train, ids, label } = data.federations[run.federation];
      return (columns[column] || [])
        .map((v, m) => ({ n: n_train[m], v, id: ids[m], seed: label }))
        .filter((p) => known(p.v) && p.n > 0);
    });
    const f = frame(host, {
      height: 240,
      left: 56,
      label: `${title} of each client against its training samples`,
      x: { make: (r) => logarithmic(extent(points.map((p) => p.n)), r), title: "training samples" },
      y: axis(
        column,
        points.map((p) => p.v),
        0.05,
      ),
    });
    const stops = points.map((p) => ({
      x: f.x(p.n),
      y: f.y(p.v),
      title: p.id,
      rows: () => [
        [title, brief(p.v)],
        ["training samples", brief(p.n)],
        ["", p.seed],
      ],
    }));
    f.front.append(
      cloud(
        colour(i),
        stops.map((s) => [s.x, s.y]),
        points.length > 1000 ? 4 : 6,
      ),
    );
    readout(f, stops);
  };
  const names = { sigma2: "uncertainty σ²", steps: "local steps ℓ", gain: "GAIN" },
    steps = mine.some(([, columns]) => columns.early_steps) ? "early_steps" : "steps";
  return Object.entries(names).flatMap(([key, title]) => [
    [`${title} over rounds`, overRounds(key, title)],
    [`${title.split(" ").at(-1)} of each client at the end`, perClient(key === "steps" ? steps : key, title)],
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
      x: { make: (r) => linear([0, entry.last + 1], r, 6), title: "round of the teacher", format: whole },
      y: { make: (r) => linear([0, Math.max(...counts, 1)], r, 4), title: "clients", format: whole },
    });
    const stops = counts.map((c, b) => {
      const [x, end] = [f.x(b * width), f.x((b + 1) * width)],
        [first, last] = [Math.ceil(b * width), Math.ceil((b + 1) * width) - 1],
        title = first === last ? `round ${first}` : `rounds ${first} to ${last}`;
      f.front.append(bar(entry.method, x + 0.5, f.y(c), Math.max(end - x - 1, 0.5), f.y(0)));
      return { x: (x + end) / 2, y: f.y(c), title, rows: () => [["clients", brief(c)]] };
    });
    readout(f, stops, true);
  };
}
