// Sections in words and tables: the answer, Self-FL, PersFL, error rates, and what was run.

function lede() {
  const fact = (name) => data.facts.find((f) => f.name === name)?.value,
    first = (text) => text?.split(" (")[0],
    range = (text) => {
      const values = text.split("; ").map(Number);
      return values.length > 1 ? `${Math.min(...values)} to ${Math.max(...values)}` : text;
    };
  const seeds = new Set(data.runs.map((r) => r.seed)).size;
  const parts = [
    data.methods.length === 1
      ? data.methods[0].name
      : data.methods.length
        ? plural(data.methods.length, "method")
        : null,
    fact("data") && `on ${first(fact("data"))}`,
    fact("partition") && `divided by ${first(fact("partition"))}`,
  ]
    .filter(Boolean)
    .join(" ");
  const sizes = [
    fact("clients") && `${fact("clients")} clients`,
    fact("rounds") && `${range(fact("rounds"))} rounds`,
    seeds && plural(seeds, "seed"),
  ]
    .filter(Boolean)
    .join(", ");
  return `${parts}${parts && sizes ? ": " : ""}${sizes}.`;
}

function drawVerdicts() {
  const judged = data.judgement,
    alone = data.methods.length === 1,
    { key: first, label, unit } = data.measure;
  const column = (key) => judged.columns.find((c) => c.key === key);
  const score = (row, key) => {
    const c = column(key),
      r = metricOf(row, key);
    return `${fixed(known(r.mean) ? r.mean * c.scale : null, c.digits)}${unit && ` ${unit}`}${known(r.standard_error) ? ` ± ${fixed(r.standard_error * c.scale, c.digits)}` : ""}`;
  };
  const card = (question, who, ...lines) =>
    el(
      "div",
      {},
      el("h3", {}, question),
      el("p", { class: "who" }, who),
      lines.filter(Boolean).map((l) => el("p", {}, l)),
    );
  byId("work").hidden = !judged.work;
  byId("work").textContent = judged.work;
  byId("dots-figure").hidden = alone;
  byId("verdicts").classList.toggle("row", alone);
  if (alone) {
    const titles = {
      [first]: sentence(label),
      worst_10: "Worst tenth of the clients",
      [`global_${first}`]: "Global model",
    };
    const keys = Object.keys(titles),
      own = judged.rows.find((row) => row.model === "personal");
    byId("verdicts").replaceChildren(
      ...keys.filter(column).map((key) => card(titles[key], score(own, key), `${sentence(column(key).about)}.`)),
    );
    return;
  }
  const blocks = [
    card(
      `Best by ${data.measure.title}`,
      judged.winner ? judged.winner.label : "no winner",
      judged.result,
      ...judged.majority,
    ),
  ];
  if (judged.columns.some((c) => c.key === "pui"))
    for (const [question, verdict] of [
      ["Best performance, by most measures", judged.best_performance],
      ["Fairest, by most measures", judged.fairest],
    ])
      blocks.push(card(question, verdict.methods.join(" and ") || "no winner", `${verdict.why}.`));
  byId("verdicts").replaceChildren(...blocks);
}

function drawUncertainty() {
  byId("uncertainty-body").replaceChildren(
    ...data.uncertainty.map((entry) =>
      el(
        "div",
        { class: "block" },
        data.uncertainty.length > 1 ? el("h3", {}, nameOf(entry.method)) : null,
        el(
          "div",
          { class: "three" },
          uncertaintyFigures(entry)
            .sort((a, b) => a[0].includes("each") - b[0].includes("each"))
            .map(([title, draw]) => {
              const host = el("div", { class: "plot" });
              drawn.push([host, draw]);
              return el("figure", {}, el("h3", {}, title), host);
            }),
        ),
        el(
          "p",
          { class: "caption" },
          "Over rounds: the median over the clients of all seeds whose uncertainty is known, bands from 25 to 75 % and from 10 to 90 %. GAIN is the factor by which the others reduce a client’s uncertainty, by Self-FL’s estimate: at 1 it learns as well alone. Whether that is borne out, personafl gain measures. ",
          thinned(),
        ),
      ),
    ),
  );
}

function drawDistillation() {
  byId("distillation-body").replaceChildren(
    ...data.distillation.map((entry) => {
      const host = el("div", { class: "plot" }),
        most = Math.max(1, ...entry.chosen.flat());
      drawn.push([host, teacherFigure(entry)]);
      const grid = scrolling(
        "Chosen temperature and imitation",
        ["temperature T", ...entry.imitations.map((l) => `λ = ${l}`)],
        entry.temperatures.map((t, r) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, String(t)),
            entry.chosen[r].map((c) => {
              const td = el("td", {}, brief(c));
              td.style.setProperty("--share", String(c / most));
              return td;
            }),
          ),
        ),
      );
      grid.classList.add("counts");
      const undecided = entry.undecided ? ` ${plural(entry.undecided, "client")} have no student yet.` : "";
      return el(
        "div",
        { class: "block" },
        data.distillation.length > 1 ? el("h3", {}, nameOf(entry.method)) : null,
        el(
          "div",
          { class: "two even" },
          el(
            "figure",
            {},
            el("h3", {}, "Round of the teacher"),
            host,
            el(
              "figcaption",
              {},
              `The global model of lowest validation loss, for the clients of all seeds.${entry.never ? ` ${plural(entry.never, "client")} never had one.` : ""}`,
            ),
          ),
          el(
            "figure",
            {},
            el("h3", {}, "Clients by chosen temperature and imitation"),
            grid,
            el(
              "figcaption",
              {},
              `Chosen by each client on its validation data. λ = 0 learns from the labels alone, λ = 1 from the teacher alone.${undecided}`,
            ),
          ),
        ),
      );
    }),
  );
}

function drawRates() {
  const who = ["personal", "global"].filter((w) => data.detection.some((d) => d[w])),
    cell = (v) => el("td", {}, known(v) ? fixed(100 * v, 2) : "–");
  const titles = who.map((w) => `equal error rate %, ${w === "personal" ? "personalized" : "global"} model`);
  const rows = data.detection.map((d) =>
    el(
      "tr",
      {},
      methodCell(d.method),
      who.map((w) => cell(d[w]?.equal_error_rate)),
    ),
  );
  byId("det-table").replaceChildren(scrolling("Equal error rates", ["method", ...titles], rows));
}

function drawOrigin() {
  byId("facts").replaceChildren(...data.facts.flatMap((f) => [el("dt", {}, f.name), el("dd", {}, f.value)]));
  const list = (settings) =>
    Object.entries(settings)
      .map(([k, v]) => `${k} = ${v}`)
      .join(", ") || "–";
  const states = (i) => {
    const runs = data.runs.filter((r) => r.method === i),
      done = runs.filter((r) => r.complete).length;
    return done === runs.length ? "finished" : `${done} of ${runs.length} finished`;
  };
  byId("methods").replaceChildren(
    scrolling(
      "Methods",
      ["method", "algorithm", "seeds", "runs", "parameters"],
      data.methods.map((m, i) =>
        el(
          "tr",
          {},
          methodCell(i),
          el("td", {}, m.algorithm),
          el("td", {}, m.seeds.join(", ")),
          el("td", {}, states(i)),
          el("td", {}, list(m.settings)),
        ),
      ),
    ),
  );
  byId("searches").replaceChildren(
    ...(data.searches.length
      ? [
          el("h3", {}, "What was searched"),
          el("p", { class: "caption" }, "Chosen on validation data, never on test data."),
          scrolling(
            "What was searched",
            ["method", "settings", "score", "seconds of training", ""],
            data.searches.flatMap((s) =>
              s.trials.map((t) => {
                const key = s.measure.split("_").slice(2).join("_"),
                  { label, scale, unit, better } = data.measures[key] ?? data.measure,
                  same = JSON.stringify(t.settings) === JSON.stringify(s.chosen);
                return el(
                  "tr",
                  {},
                  el("th", { scope: "row" }, s.method),
                  el("td", {}, list(t.settings)),
                  el(
                    "td",
                    {},
                    known(t.score)
                      ? `${fixed(better * scale * t.score, unit ? 2 : 4)}${unit && ` ${unit}`} validation ${label}`
                      : "failed",
                  ),
                  el("td", {}, fixed(t.seconds, 1)),
                  el("td", {}, same ? "chosen" : ""),
                );
              }),
            ),
          ),
          el(
            "p",
            { class: "caption" },
            `The searches took ${fixed(
              data.searches.flatMap((s) => s.trials).reduce((sum, t) => sum + t.seconds, 0),
              1,
            )} seconds of training.`,
          ),
        ]
      : []),
  );
  byId("again").replaceChildren(
    ...(data.again
      ? [
          el("h3", {}, "To run it again"),
          el("pre", { tabindex: "0" }, data.again.command),
          el(
            "details",
            {},
            el("summary", {}, "config.toml, with every value written out"),
            el("pre", { tabindex: "0" }, data.again.config),
          ),
        ]
      : [
          el(
            "p",
            { class: "caption" },
            "No single config describes these runs: each run.toml has the settings of its own.",
          ),
        ]),
  );
}
