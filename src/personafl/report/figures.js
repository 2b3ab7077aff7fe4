// The figures. Each is a function of the data and the state that draws into its place, and is drawn anew when either changes.
// Here: the methods' scores, their curves, and the clients' data.

const nameOf = (i) => data.methods[i].name;
const labelOf = (i, who = "personal") => (who === "global" ? `${nameOf(i)}, global model` : data.methods[i].label);
const shown = (i) => !state.hidden.has(nameOf(i));
const scaled = (v) => (known(v) ? v * data.measure.scale : null);
const written = (v) => (known(v) ? `${fixed(v, data.measure.digits)}${data.measure.unit && ` ${data.measure.unit}`}` : "–");
const signed = (v) => (v > 0 ? "+" : "") + fixed(v, data.measure.digits);
const axisTitle = () => data.measure.title + (data.measure.unit && `, ${data.measure.unit}`);
// Between 0 and 1, as the accuracy is.
const isShare = () => data.measure.share;
const wide = (host) => host.clientWidth > 560;

function caption(id, ...sentences) {
  byId(`${id}-caption`).textContent = sentences.filter(Boolean).join(" ");
}
function thinned() {
  const total = (count) => data.federations.reduce((sum, f) => sum + count(f), 0),
    [all, kept] = [total((f) => f.clients), total((f) => f.ids.length)];
  return kept < all
    ? `Of ${all.toLocaleString("en")} clients, ${kept.toLocaleString("en")} are shown, evenly spaced.`
    : "";
}

const figures = {
  dots(host) {
    const judged = data.judgement,
      { key, title, about, scale, digits, better } = judged.columns.find((c) => c.key === judged.primary);
    const rows = judged.rows
      .map((row) => ({ i: row.method, ...metricOf(row, key) }))
      .filter((r) => known(r.mean))
      .sort((a, b) => better * (b.mean - a.mean))
      .map((r) => ({ ...r, mean: r.mean * scale, se: (r.standard_error || 0) * scale }));
    const seeds = (r) => r.values.filter(known).map((v) => v * scale);
    const [low, high] = extent(rows.flatMap((r) => [r.mean - r.se, r.mean + r.se, ...seeds(r)])),
      letters = host.clientWidth > 420 ? 30 : 18;
    const f = frame(host, {
      height: 54 + rows.length * 32,
      left: 24 + Math.max(...rows.map((r) => Math.min(r.label.length, letters))) * 6.6,
      top: 4,
      x: {
        make: (range) => linear(low < high ? padded([low, high], 0.06) : [low - 0.5, high + 0.5], range),
        title: axisTitle(),
        format: (v) => fixed(v, low > 100 || high - low > 4 ? 0 : Math.min(data.measure.digits, high - low > 0.2 ? 2 : 4)),
      },
      y: { make: (range) => (k) => range[1] + (k + 0.5) * 32 },
      label: `${title} of each method: ${rows.map((r) => `${r.label} ${fixed(r.mean, digits)}`).join(", ")}`,
    });
    const stops = rows.map((r, k) => {
      const [x, y] = [f.x(r.mean), f.y(k)];
      f.front.append(
        rule("grid", f.left, y, f.end, y),
        ...seeds(r).map((v) => svg("circle", { cx: f.x(v), cy: y, r: 2.5, fill: colour(r.i), opacity: 0.4 })),
        fill(rule(null, f.x(r.mean - r.se), y, f.x(r.mean + r.se), y), { stroke: colour(r.i), "stroke-width": 3 }, []),
        mark(r.i, x, y, 5.5),
        words(f.left - 12, y + 4, "end", short(r.label, letters), { class: "name" }),
      );
      const told = () => [
        [title, fixed(r.mean, digits)],
        ...(r.seeds > 1 ? [["standard error", fixed(r.se, digits)]] : []),
        ...r.values.map((v, s) => [`seed ${data.methods[r.i].seeds[s]}`, fixed(known(v) ? v * scale : null, digits)]),
      ];
      return { x, y, title: r.label, rows: told };
    });
    readout(f, stops);
    const several = rows.some((r) => r.seeds > 1);
    caption("dots", `${sentence(about)}.`, several && "Bar: standard error over seeds; small points: the seeds.");
  },

  curves(host) {
    const { measure, who } = state,
      { digits, label, scale, share, unit, better } = data.measures[measure],
      room = wide(host),
      at = (v) => v * scale;
    const lines = data.curves.filter(
      (c) => c.measure === measure && shown(c.method) && (who === "both" || c.who === who),
    );
    const values = lines.flatMap((c) => [...c.low, ...c.high]).filter(known),
      [low, high] = extent(values.map(at));
    const f = frame(host, {
      height: room ? 400 : 300,
      right: room ? 120 : 14,
      label: `${label} on test data over rounds, ${plural(lines.length, "line")}`,
      x: {
        make: (r) => linear(extent(lines.flatMap((c) => [c.rounds[0], c.rounds.at(-1)])), r, room ? 8 : 4),
        title: "round",
        format: whole,
      },
      y: {
        make: logOrLinear(!share && better < 0 && low > 0 && high > 8 * low, [low, high], 0.04),
        title: `test ${label}${unit && `, ${unit}`}`,
      },
    });
    const ends = [];
    for (const c of lines) {
      const points = (key) => c.rounds.map((r, k) => [f.x(r), f.y(at(c[key][k]))]),
        means = points("mean"),
        dashed = c.who === "global",
        every = Math.ceil(means.length / 8);
      if (Math.max(...c.seeds) > 1) f.front.append(band(c.method, points("high"), points("low")));
      f.front.append(line(c.method, means, dashed));
      means.forEach(([x, y], k) => {
        if ((means.length - 1 - k) % every === 0) f.front.append(mark(c.method, x, y, dashed ? 2.6 : 3.6));
      });
      if (c.who === "personal" || who === "global")
        ends.push({ x: means.at(-1)[0], y: means.at(-1)[1], text: short(nameOf(c.method), 14) });
    }
    if (room) endLabels(f, ends);
    const range = (c, k) => (c.seeds[k] > 1 ? ` (${fixed(at(c.low[k]), digits)}–${fixed(at(c.high[k]), digits)})` : "");
    const told = (round) =>
      lines
        .map((c) => [c, c.rounds.indexOf(round)])
        .filter(([, k]) => k >= 0)
        .sort(([a, j], [b, k]) => better * (b.mean[k] - a.mean[j]))
        .map(([c, k]) => [labelOf(c.method, c.who), fixed(at(c.mean[k]), digits) + range(c, k)]);
    const rounds = [...new Set(lines.flatMap((c) => c.rounds))].sort((a, b) => a - b);
    readout(
      f,
      rounds.map((r) => ({ x: f.x(r), title: `round ${r}`, rows: () => told(r) })),
      true,
    );
    caption(
      "curves",
      "Over all test samples of all clients, mean over seeds; the band reaches from the lowest to the highest seed.",
      lines.some((c) => c.who === "global") && "Dashed: the method’s global model.",
      "Arrow keys move through the rounds.",
    );
  },

  sizes(host) {
    const federation = data.federations[state.federation],
      n = federation.n_train || [],
      order = n.map((_, m) => m).sort((a, b) => n[b] - n[a]),
      sorted = order.map((m) => n[m]),
      [most, least] = [sorted[0] ?? 0, sorted.at(-1) ?? 0],
      useLog = least > 0 && most > 30 * least;
    const f = frame(host, {
      height: 290,
      label: `Training samples of ${plural(n.length, "client")}, largest first`,
      x: { make: (r) => linear([0, n.length], r, 4), title: "clients, largest first", format: whole },
      y: { make: logOrLinear(useLog, [useLog ? least : 0, most || 1], 0, 4), title: "training samples" },
    });
    const steps = sorted.flatMap((v, k) => [
      [f.x(k), f.y(v)],
      [f.x(k + 1), f.y(v)],
    ]);
    const outline = path([[f.x(0), f.floor], ...steps, [f.x(n.length), f.floor]]);
    f.front.append(svg("path", { d: `${outline}z`, fill: "var(--ramp2)", opacity: 0.85 }));
    const told = (m) => [
      ["train", brief(n[m])],
      ...(federation.n_val ? [["validation", brief(federation.n_val[m])]] : []),
      ["test", brief(federation.n_test[m])],
      ...(federation.groups ? [["group", federation.groups[m]]] : []),
      ...(federation.classes ? [["classes", brief(federation.classes[m])]] : []),
    ];
    readout(
      f,
      order.map((m, k) => ({ x: f.x(k + 0.5), y: f.y(n[m]), title: federation.ids[m], rows: () => told(m) })),
      true,
    );
    const middle = quantile(sorted.reverse(), 0.5) ?? 0;
    caption(
      "sizes",
      `${plural(federation.clients, "client")}: from ${brief(least)} to ${brief(most)} training samples, median ${brief(middle)}.`,
      thinned(),
    );
  },

  classes(host) {
    const shares = data.federations[state.federation].shares;
    byId("classes-figure").hidden = !shares;
    if (!shares) return;
    const { labels, values, clients, each } = shares,
      [rows, columns] = [labels.length, values.length],
      every = Math.ceil((14 * rows) / (290 - 54));
    const f = frame(host, {
      height: 290,
      left: Math.min(110, 40 + Math.max(...labels.map((l) => Math.min(l.length, 11))) * 6),
      label: `Shares of ${rows} classes in the test data of ${columns} columns of clients`,
      x: { make: counted(columns), title: `clients, by ${shares.by}` },
      y: { make: counted(rows), title: "class" },
    });
    heat(
      f,
      rows,
      columns,
      (r, c) => Math.sqrt(values[c][r]),
      (r, c) => [clients[c], [[`class ${labels[r]}`, `${fixed(100 * values[c][r], 0)} %`]]],
    );
    labels.forEach((l, r) => {
      if (r % every === 0) f.front.append(words(f.left - 8, f.y(r + 0.5) + 4, "end", short(l, 12)));
    });
    caption(
      "classes",
      "Share of each class in a client’s test data; the stronger the colour, the more.",
      each > 1 && `A column is up to ${each} neighbours.`,
    );
  },
};
