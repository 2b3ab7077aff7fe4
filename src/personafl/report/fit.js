// What only the report of a fit has: the answer in four cards, which model for whom, and the search.

const validated = (score) => (known(score) ? scaled(data.measure.better * score) : null);
const atBest = (score) => written(validated(score));

function drawFitCards() {
  const { test, finalists, way } = data.fit,
    { label } = data.measure,
    clients = data.federations[0].clients;
  const against = (called, other) => {
    if (!other) return null;
    const points = data.measure.better * (scaled(test.value) - scaled(other.value));
    return fitCard(
      `Over ${called}`,
      `${signed(points)}${data.measure.unit === "%" ? " points" : ""}`,
      `${sentence(called)} reaches ${written(scaled(other.value))}. With the fit ${plural(other.better, "client")} do better, ${other.worse.toLocaleString("en")} worse, ${other.same.toLocaleString("en")} the same; ${
        known(other.p_better) && other.p_better < 0.05
          ? "the fit is shown to be better"
          : known(other.p_worse) && other.p_worse < 0.05
            ? "the fit is shown to be worse"
            : "no difference is shown"
      }.`,
    );
  };
  const alone = finalists.find((f) => f.label === "alone");
  byId("work").hidden = true;
  byId("dots-figure").hidden = false;
  byId("verdicts").classList.remove("row");
  byId("verdicts").replaceChildren(
    ...[
      fitCard(
        `${sentence(label)} on test data, which no choice has seen`,
        known(test.value) ? written(scaled(test.value)) : "no test data",
        test.interval && `95 % interval over clients: ${test.interval.map((v) => written(scaled(v))).join(" to ")}.`,
        `${sentence(way)}, as chosen on validation data.`,
      ),
      against("training alone", test.alone),
      against("one model for all", test.global),
      alone &&
        fitCard(
          "Who need not join",
          `${data.fit.weights.filter((row) => row[finalists.indexOf(alone)] >= 0.9).length.toLocaleString("en")} of ${plural(data.fit.weights.length, "client")}`,
          "Their model is, at least nine parts in ten, the one that they train alone.",
          data.fit.weights.length < clients && thinned(),
        ),
    ].filter(Boolean),
  );
}

function fitCard(question, who, ...lines) {
  return el(
    "div",
    {},
    el("h3", {}, question),
    el("p", { class: "who" }, who),
    lines.filter(Boolean).map((l) => el("p", {}, l)),
  );
}

function drawChoice() {
  const { finalists, ways } = data.fit;
  byId("choice-tables").replaceChildren(
    el(
      "div",
      { class: "block" },
      el("h3", {}, "The finalists"),
      scrolling(
        "The finalists",
        ["model", `validation ${data.measure.label}`, "rounds", "mean weight", "clients that use it", "mostly it",
          el("th", { scope: "col", class: "text" }, "settings")],
        finalists.map((f) =>
          el(
            "tr",
            {},
            known(f.method) ? methodCell(f.method, f.label) : el("th", { scope: "row" }, f.label),
            el("td", {}, atBest(f.score)),
            el("td", {}, brief(f.rounds)),
            el("td", {}, fixed(f.weight, 2)),
            el("td", {}, brief(f.clients)),
            el("td", {}, brief(f.mostly)),
            el("td", { class: "words" }, f.settings),
          ),
        ),
      ),
      data.fit.refit &&
        el(
          "p",
          { class: "caption" },
          "When all was chosen, they were trained again with the validation data among the training data. Figures on test data are of these models, those on validation data of the models before.",
        ),
    ),
    whyBlock(),
    el(
      "div",
      { class: "block" },
      el("h3", {}, "How to choose, which was decided too"),
      scrolling(
        "Ways to choose",
        [
          "way",
          "unseen samples",
          "all samples",
          "log-likelihood, unseen",
          "",
        ],
        ways.map((w) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, sentence(w.title)),
            el("td", {}, atWay(w.unseen)),
            el("td", {}, atWay(w.seen)),
            el("td", {}, fixed(w.log_likelihood, 4)),
            el("td", {}, w.taken ? "taken" : ""),
          ),
        ),
      ),
      el(
        "p",
        { class: "caption" },
        "On validation data. α is how many samples of everybody’s kind a client’s own are weighed against. Unseen: the weights of each fifth of a client’s samples were made from the other four. Taken is a way that is not worse than the best single model on all samples, not told from the best on unseen ones, and makes these most probable.",
      ),
    ),
  );
}
// Sums over clients of what the measure adds up; only for shares are these, per sample, what people read.
const atWay = (v) => (isShare() ? written(scaled(data.measure.better * v)) : brief(v));

// Why each client got its model: what its own validation samples said.
function fitColumns() {
  const { own, finalists, weights } = data.fit,
    { label, unit, digits } = data.measure,
    score = (key, title, list) => ({
      key,
      title: `validation${unit && ` ${unit}`}, ${title}`,
      values: list.map(scaled),
      write: (v) => fixed(v, digits),
    });
  const mixed = (row) => {
    const used = row.map((w, f) => [w, finalists[f].label]).filter(([w]) => w > 0);
    if (used.length === 1) return used[0][1];
    return used
      .sort((a, b) => b[0] - a[0])
      .map(([w, name]) => `${fixed(100 * w, 0)} % ${name}`)
      .join(" + ");
  };
  return [
    { key: "model", title: "model", values: weights.map(mixed), words: true, text: true },
    { key: "why", title: "why", values: own.why.map((k) => own.says[k]), words: true, text: true },
    { key: "n_val", title: "validation", values: own.n, write: brief },
    own.shares && {
      key: "share",
      title: "own count, %",
      values: own.shares,
      write: (v) => fixed(known(v) ? 100 * v : null, 0),
    },
    score("v fit", "with it", own.fit),
    own.best && own.best !== "alone" && score("v best", `${own.best} for all`, own.with_best),
    own.best && score("v alone", "alone", own.alone),
  ].filter((c) => c && c.values.some(known));
}

// What the columns of a fit mean, behind the table's own caption.
const fitTerms = () =>
  `Validation scores are those with the client’s model${data.fit.own.best ? `, with ${data.fit.own.best}, the best single model for everybody, and with the one that it trains alone` : ""}; the weights were chosen on these samples, so only test data says how good they are. ${data.fit.own.shares ? "Own count: how much a client’s own validation samples count, against everybody’s, n / (n + α). " : ""}`;

// How many clients got their model for which reason.
function whyBlock() {
  const { own } = data.fit;
  const counts = own.says
    .map((say, k) => [say, own.why.filter((w) => w === k).length])
    .sort((a, b) => b[1] - a[1]);
  return el(
    "div",
    { class: "block" },
    el("h3", {}, "Why"),
    scrolling(
      "Why",
      ["clients", el("th", { scope: "col", class: "text" }, "what their own validation samples said")],
      counts.map(([say, n]) => el("tr", {}, el("th", { scope: "row" }, brief(n)), el("td", { class: "words" }, sentence(say)))),
    ),
    el(
      "p",
      { class: "caption" },
      "The ",
      el("a", { href: "#clients" }, "table of clients"),
      " has it for each, beside its scores on its own validation samples. ",
      thinned(),
    ),
  );
}

function drawTried() {
  byId("tried").replaceChildren(
    scrolling(
      "What was tried",
      ["method", `best validation ${data.measure.label}`, "after rounds", "candidates", "trainings", "seconds",
        el("th", { scope: "col", class: "text" }, "with")],
      data.fit.tried
        .slice()
        .sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity))
        .map((t) =>
          el(
            "tr",
            {},
            known(t.index) ? methodCell(t.index, t.method) : el("th", { scope: "row" }, t.method),
            el("td", {}, atBest(t.score)),
            el("td", {}, brief(t.rounds)),
            el("td", {}, brief(t.candidates)),
            el("td", {}, brief(t.trainings)),
            el("td", {}, fixed(t.seconds, 1)),
            el("td", { class: "words" }, t.settings || t.why),
          ),
        ),
    ),
  );
}

Object.assign(figures, {
  // A column for each client, the largest first; a row for each finalist.
  weights(host) {
    const { finalists, weights } = data.fit,
      federation = data.federations[0],
      order = weights.map((_, m) => m).sort((a, b) => federation.n_train[b] - federation.n_train[a]);
    const f = frame(host, {
      height: 70 + 30 * finalists.length,
      left: 24 + Math.max(...finalists.map((m) => Math.min(m.label.length, 16))) * 6.6,
      label: `Weights of ${finalists.length} models for ${plural(weights.length, "client")}`,
      x: { make: counted(weights.length), title: "clients, most training samples first" },
      y: { make: counted(finalists.length) },
    });
    heat(
      f,
      finalists.length,
      weights.length,
      (r, c) => weights[order[c]][r],
      (r, c) => [
        federation.ids[order[c]],
        [
          [finalists[r].label, `${fixed(100 * weights[order[c]][r], 0)} %`],
          ["training samples", brief(federation.n_train[order[c]])],
          ...(federation.n_val ? [["validation samples", brief(federation.n_val[order[c]])]] : []),
        ],
      ],
    );
    finalists.forEach((m, r) => {
      f.front.append(words(f.left - 8, f.y(r + 0.5) + 4, "end", short(m.label), { class: "name" }));
    });
    caption(
      "weights",
      `How much each finalist counts in a client’s prediction; the stronger the colour, the more. ${sentence(data.fit.way)}.`,
      thinned(),
    );
  },

  // Every training at the time when it ended, the lengths of a candidate joined; the line is the best so far.
  trials(host) {
    const { points, budget } = data.fit,
      ends = points
        .flatMap((p) => p.at.map((at, k) => ({ ...p, at, rounds: p.rounds[k], value: validated(p.score[k]) })))
        .filter((e) => known(e.value))
        .sort((a, b) => a.at - b.at);
    const all = ends.map((e) => e.value).sort((a, b) => a - b),
      low = data.measure.better > 0 ? quantile(all, 0.1) : all[0],
      high = data.measure.better > 0 ? all.at(-1) : quantile(all, 0.9),
      inside = (v) => Math.min(Math.max(v, low), high);
    const f = frame(host, {
      height: wide(host) ? 340 : 260,
      label: `Validation ${data.measure.label} of ${plural(ends.length, "training")} over the time of the search`,
      x: { make: (r) => linear([0, budget], r, 6), title: "seconds" },
      y: {
        make: (r) => linear(padded([low, high], 0.06), r),
        title: `validation ${data.measure.label}${data.measure.unit && `, ${data.measure.unit}`}`,
      },
    });
    const ink = (i) => (known(i) ? colour(i) : "var(--soft)");
    for (const p of points) {
      const mine = p.at.map((at, k) => [at, validated(p.score[k])]).filter(([, v]) => known(v));
      f.front.append(
        svg("path", {
          class: "line",
          d: path(mine.map(([at, v]) => [f.x(at), f.y(inside(v))])),
          stroke: ink(p.index),
          "stroke-width": 1,
          opacity: 0.3,
        }),
      );
    }
    let best = null;
    const steps = [];
    for (const e of ends) {
      if (best === null || data.measure.better * (e.value - best) > 0) {
        if (best !== null) steps.push([f.x(e.at), f.y(inside(best))]);
        best = e.value;
      }
      steps.push([f.x(e.at), f.y(inside(best))]);
    }
    f.front.append(svg("path", { class: "line", d: path(steps), stroke: "var(--ink)" }));
    for (const e of ends)
      f.front.append(
        known(e.index)
          ? mark(e.index, f.x(e.at), f.y(inside(e.value)), 3.4)
          : svg("circle", { cx: f.x(e.at), cy: f.y(inside(e.value)), r: 2.5, fill: "var(--soft)" }),
      );
    readout(
      f,
      ends.map((e) => ({
        x: f.x(e.at),
        y: f.y(inside(e.value)),
        title: e.method,
        rows: () => [
          [`validation ${data.measure.label}`, written(e.value)],
          ["rounds", brief(e.rounds)],
          ["ended after", `${fixed(e.at, 1)} s`],
          ["settings", e.settings],
        ],
      })),
    );
    caption(
      "trials",
      "A point is a training; thin lines join the lengths of one candidate, and the thick line is the best so far. Methods that are not among the finalists are grey. The worst tenth lies on the edge.",
      `The search and what followed took ${fixed(data.fit.seconds, 0)} of ${fixed(budget, 0)} seconds${data.fit.stopped ? "; somebody stopped it before" : ""}.`,
    );
  },
});
