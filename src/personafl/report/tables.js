// The tables: the judgement, and every client, sortable and searchable.

const groups = (first = data.measure.key) => [
  ["Performance", [first, `mean_${first}`, "sd", "worst_10", "top_10", `global_${first}`, "bmta"]],
  ["Improvement over training alone and FedAvg", ["pui", "pud", "api", "mpi", "apd", "mpd"]],
  ["Fairness among the improved clients", ["av", "cs", "entropy", "ji"]],
  ["Other metrics, loss and calibration", Object.keys(data.measures).concat("loss", "f1", "ece").filter((k) => k !== first)],
  ["Work and cost", ["steps", "gradients", "megabytes", "seconds"]],
];

function methodCell(i, label = nameOf(i)) {
  return el("th", { scope: "row" }, swatch(i), data.methods[i].added ? `(${label})` : label);
}
const sameRow = (row, found) => nameOf(row.method) === found.method && row.model === found.model;
const metricOf = (row, key) => data.judgement.metrics.find((r) => sameRow(row, r) && r.metric === key);

function metricTable(title, columns) {
  const judged = data.judgement,
    level = (row) => judged.differences.some((d) => !d.significant && sameRow(row, d));
  const best = Object.fromEntries(
    columns.map((c) => {
      const means = judged.rows
        .map((row) => metricOf(row, c.key)?.mean)
        .filter(known)
        .map((v) => c.better * v);
      return [c.key, c.contest && means.length > 1 ? Math.max(...means) : null];
    }),
  );
  const body = judged.rows.map((row) =>
    el(
      "tr",
      {},
      methodCell(row.method, row.label),
      columns.map((c) => {
        const found = metricOf(row, c.key);
        if (!found || !known(found.mean)) return el("td", {}, "–");
        const top = known(best[c.key]) && c.better * found.mean >= best[c.key];
        const error = known(found.standard_error)
          ? el("span", { class: "se" }, ` ± ${fixed(found.standard_error * c.scale, c.digits)}`)
          : null;
        return el(
          "td",
          { class: top ? "best" : null },
          fixed(found.mean * c.scale, c.digits),
          c.key === judged.primary && level(row) ? "†" : null,
          error,
          top ? el("span", { class: "unseen" }, " (best)") : null,
        );
      }),
    ),
  );
  return el(
    "div",
    { class: "block" },
    el("h3", {}, title),
    scrolling(title, ["method", ...columns.map((c) => c.title)], body),
    el(
      "dl",
      { class: "terms" },
      columns.map((c) => el("div", {}, el("dt", {}, c.title), el("dd", {}, c.about))),
    ),
  );
}

function drawNumbers() {
  const judged = data.judgement;
  byId("numbers-caption").textContent =
    data.methods.length > 1
      ? `${judged.caption} ▸ and bold: the best mean of a column.`
      : `${sentence(judged.measured)}.`;
  byId("tables").replaceChildren(
    ...groups().map(([title, keys]) => [title, judged.columns.filter((c) => keys.includes(c.key))])
      .filter(([, columns]) => columns.length)
      .map(([title, columns]) => metricTable(title, columns)),
  );
  const place = byId("differences");
  place.replaceChildren();
  if (!judged.differences.length) return;
  const { label, unit, better } = data.measure,
    percent = unit === "%",
    p = (v) => (!known(v) ? "–" : v < 0.0001 ? "< 0.0001" : v.toFixed(4));
  place.append(
    el(
      "div",
      { class: "block" },
      el("h3", {}, `Against the ${data.measure.better > 0 ? "highest" : "lowest"}, ${judged.best_label}`),
      scrolling(
        "Against the first",
        [
          "method",
          percent ? "difference, points" : `difference of ${better > 0 ? "" : "−"}${label}`,
          "p",
          "p, corrected",
          el("th", { scope: "col", class: "text" }, "in words"),
        ],
        judged.differences.map((d) => {
          const row = judged.rows.find((r) => sameRow(r, d));
          return el(
            "tr",
            {},
            methodCell(row.method, row.label),
            el(
              "td",
              {},
              fixed(known(d.mean_difference) ? d.mean_difference * data.measure.scale : null, percent ? 2 : 4),
            ),
            el("td", {}, p(d.p)),
            el("td", {}, p(d.p_holm)),
            el("td", { class: "words" }, d.says),
          );
        }),
      ),
      el(
        "p",
        { class: "caption" },
        `${sentence(judged.test)}. Corrected: multiplied by the number of models, as each might have come first, and by Holm over the others.`,
      ),
    ),
  );
}

// --- every client -------------------------------------------------------------------------------------------------

const PAGE = 100;
const TITLES = {
  sigma2: "σ²",
  gain: "GAIN",
  steps: "ℓ",
  early_steps: "ℓ",
  asked_steps: "ℓ by (8)",
  weight: "weight",
  teacher_round: "teacher",
  imitation: "λ",
  temperature: "T",
  alpha: "α",
  epsilon: "ε",
  failures: "failed",
};

function clientColumns() {
  const federation = data.federations[state.federation];
  const columns = [{ key: "client", title: "client", values: federation.ids, text: true }];
  if (federation.groups) columns.push({ key: "group", title: "group", values: federation.groups, text: true });
  if (data.fit) columns.push(...fitColumns());
  for (const [key, title] of [
    ["n_train", "train"],
    ["n_test", "test"],
    ["classes", "classes"],
  ])
    if (federation[key]) columns.push({ key, title, values: federation[key], write: brief });
  const mine = data.runs.map((run, k) => [run, data.values[k]]).filter(([run]) => run.federation === state.federation);
  for (const [run, values] of mine)
    if (values.personal)
      columns.push({
        key: `p ${nameOf(run.method)}`,
        title: `${labelOf(run.method)}${data.measure.unit && ` ${data.measure.unit}`}`,
        values: values.personal.map(scaled),
        write: (v) => fixed(v, data.measure.digits),
      });
  for (const [run, values] of mine)
    for (const [name, list] of Object.entries(values.columns))
      columns.push({
        key: `c ${name} ${nameOf(run.method)}`,
        title: `${TITLES[name] || name}, ${nameOf(run.method)}`,
        values: list,
        write: brief,
      });
  return columns;
}

function clientRows(columns) {
  const federation = data.federations[state.federation],
    query = state.query.trim().toLowerCase();
  const rows = federation.ids
    .map((_, m) => m)
    .filter(
      (m) =>
        !query ||
        federation.ids[m].toLowerCase().includes(query) ||
        (federation.groups && federation.groups[m].toLowerCase().includes(query)),
    );
  const by = columns.find((c) => c.key === state.sort.key),
    sign = state.sort.down ? -1 : 1;
  if (!by) return rows;
  const collator = new Intl.Collator("en", { numeric: true });
  return rows.sort((a, b) => {
    const v = by.values[a],
      w = by.values[b];
    if (!known(v) || !known(w)) return known(v) ? -1 : known(w) ? 1 : a - b; // what is not known comes last, either way
    return sign * (by.text ? collator.compare(v, w) : v - w) || a - b;
  });
}

function drawClientTable() {
  const columns = clientColumns(),
    rows = clientRows(columns),
    table = byId("client-table");
  const focused = document.activeElement?.dataset?.key;
  table.tHead.replaceChildren(
    el(
      "tr",
      {},
      columns.map((c) => {
        const sorted = c.key === state.sort.key;
        const button = el("button", { type: "button", "data-key": c.key }, c.title);
        button.addEventListener("click", () => {
          state.sort = { key: c.key, down: sorted ? !state.sort.down : !c.text };
          state.rows = PAGE;
          drawClientTable();
        });
        return el(
          "th",
          {
            scope: "col",
            class: c.text ? "text" : null,
            "aria-sort": sorted ? (state.sort.down ? "descending" : "ascending") : null,
          },
          button,
        );
      }),
    ),
  );
  if (focused) [...table.tHead.querySelectorAll("button")].find((b) => b.dataset.key === focused)?.focus();
  const visible = rows.slice(0, state.rows);
  table.tBodies[0].replaceChildren(
    ...visible.map((m) =>
      el(
        "tr",
        {},
        columns.map((c, k) =>
          el(
            k ? "td" : "th",
            k ? { class: c.words ? "words" : c.text ? "text" : null } : { scope: "row" },
            c.text ? c.values[m] : c.write(c.values[m]),
          ),
        ),
      ),
    ),
  );
  const all = data.federations[state.federation].ids.length;
  byId("clients-count").textContent =
    `${rows.length === all ? plural(all, "client") : `${rows.length.toLocaleString("en")} of ${plural(all, "client")}`}${visible.length < rows.length ? `, the first ${visible.length} shown` : ""}. ${sentence(data.measure.title)} of the personalized models at the last evaluation. ${data.fit ? fitTerms() : ""}${thinned()}`;
  byId("more").hidden = visible.length >= rows.length;
  byId("more").textContent = `Show ${Math.min(5 * PAGE, rows.length - visible.length)} more`;
}

function csvText() {
  const columns = clientColumns(),
    quote = (v) => (/[",\n\r]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  // A leading quote keeps spreadsheets from taking an id for a formula.
  const cell = (c, m) =>
    quote(!known(c.values[m]) ? "" : c.text ? c.values[m].replace(/^[=+\-@\t\r]/, "'$&") : String(c.values[m]));
  return (
    [
      columns.map((c) => quote(c.title)).join(","),
      ...clientRows(columns).map((m) => columns.map((c) => cell(c, m)).join(",")),
    ].join("\r\n") + "\r\n"
  );
}
