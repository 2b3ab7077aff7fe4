// The page: what is shown, what the controls do, light and dark, and newer data while a run goes on.

let data = JSON.parse(byId("data").textContent);
const state = {
  hidden: new Set(),
  who: null,
  measure: null,
  pairX: null,
  pairY: null,
  federation: 0,
  matrix: 0,
  query: "",
  sort: { key: "client", down: false },
  rows: PAGE,
};
const SECTIONS = [
  ["answer", "Answer"],
  ["choice", "For whom"],
  ["searched", "Search"],
  ["numbers", "Numbers"],
  ["learning", "Learning"],
  ["spread", "Clients"],
  ["pairs", "Who gains"],
  ["data-of-clients", "Data"],
  ["uncertainty", "Self-FL"],
  ["collaboration", "FedAMP"],
  ["distillation", "PersFL"],
  ["detection", "DET"],
  ["audit", "Audit"],
  ["clients", "Table"],
  ["origin", "What was run"],
];
let drawn = []; // [host, draw] of every figure on the page

function start() {
  const trained = data.methods.length > 0,
    served = data.values.some((v) => v.personal);
  settle();
  document.title = `${data.title} – personafl report`;
  byId("title").textContent = data.title;
  byId("lede").textContent = lede();
  byId("notes").hidden = !data.notes.length;
  byId("notes").replaceChildren(
    ...data.notes.slice(0, 12).map((n) => el("p", {}, n)),
    ...(data.notes.length > 12 ? [el("p", {}, `… and ${data.notes.length - 12} more.`)] : []),
  );
  const has = {
    answer: data.judgement && served,
    numbers: data.judgement,
    choice: data.fit,
    searched: data.fit,
    learning: data.curves.length && !data.fit,
    spread: served,
    pairs: pairOptions().length > 1,
    "data-of-clients": trained,
    uncertainty: data.uncertainty.length,
    collaboration: data.collaboration.length,
    distillation: data.distillation.length,
    detection: data.detection.length,
    audit: data.audits.length,
    clients: trained,
    origin: true,
  };
  for (const [id] of SECTIONS) byId(id).hidden = !has[id];
  byId("sections").replaceChildren(
    ...SECTIONS.filter(([id]) => has[id]).map(([id, name]) => el("li", {}, el("a", { href: `#${id}` }, name))),
  );
  drawn = [];
  if (has.answer) {
    if (data.fit) drawFitCards();
    else drawVerdicts();
    if (data.methods.length > 1) figure("dots");
  }
  if (data.fit) {
    figure("weights");
    drawChoice();
    figure("trials");
    drawTried();
  }
  if (has.numbers) drawNumbers();
  if (has.learning) {
    drawCurveMenus();
    figure("curves");
  }
  if (has.spread) {
    figure("histogram");
    figure("cdf");
  }
  if (has.pairs) {
    menu("pair-x", pairOptions(), state.pairX);
    menu("pair-y", pairOptions(), state.pairY);
    figure("scatter");
  }
  if (trained) {
    document.querySelectorAll("select.federation").forEach((s) =>
      options(
        s,
        data.federations.map((f, k) => ({ key: String(k), name: f.label })),
        String(state.federation),
      ),
    );
    figure("sizes");
    figure("classes");
    drawClientTable();
  }
  if (has.uncertainty) drawUncertainty();
  if (has.collaboration) {
    menu(
      "matrix-run",
      data.collaboration.map((c, k) => ({
        key: String(k),
        name: `${nameOf(data.runs[c.run].method)}, seed ${data.runs[c.run].seed}`,
      })),
      String(state.matrix),
    );
    figure("matrix");
  }
  if (has.distillation) drawDistillation();
  if (has.detection) {
    figure("det");
    drawRates();
  }
  if (has.audit) drawAudits();
  drawLegends();
  drawOrigin();
  byId("footer").textContent =
    `Made by personafl ${data.version} from the files of the run ${data.runs.length === 1 ? "folder" : "folders"}. This page is one file and loads nothing.`;
  redraw();
}

// What was chosen stays chosen as long as it exists.
function settle() {
  const measures = [...new Set(data.curves.map((c) => c.measure))],
    pairs = pairOptions().map((o) => o.key);
  if (!measures.includes(state.measure))
    state.measure = measures.includes(data.measure.key) ? data.measure.key : measures[0];
  if (!data.federations[state.federation]) state.federation = 0;
  if (!data.collaboration[state.matrix]) state.matrix = 0;
  const best = data.fit
    ? pairOptions()[0]
    : data.judgement
    ? pairOptions().find((o) => o.who === data.judgement.best_model && nameOf(o.method) === data.judgement.best)
    : null;
  if (!pairs.includes(state.pairY)) state.pairY = (best && best.key) || pairs[0];
  if (!pairs.includes(state.pairX))
    state.pairX = (
      pairOptions().find(
        (o) => o.who === "personal" && data.methods[o.method].algorithm === "separate" && o.key !== state.pairY,
      ) ||
      pairOptions().find((o) => o.key !== state.pairY) || { key: pairs[0] }
    ).key;
}

function pairOptions() {
  return data.methods.flatMap((m, i) =>
    ["personal", "global"]
      .filter((who) => data.runs.some((r, k) => r.method === i && data.values[k][who]))
      .map((who) => ({
        key: `${who} ${m.name}`,
        method: i,
        who,
        name: labelOf(i, who),
      })),
  );
}

function figure(id) {
  drawn.push([byId(id), figures[id]]);
}
function redraw() {
  hideTip();
  for (const [host, draw] of drawn) draw(host);
}
function options(select, list, chosen) {
  select.replaceChildren(...list.map((o) => el("option", { value: o.key, selected: o.key === chosen }, o.name)));
  select.value = chosen;
  select.closest("label").hidden = list.length < 2;
}
function menu(id, list, chosen) {
  options(byId(id), list, chosen);
}

function drawCurveMenus() {
  const who = [...new Set(data.curves.map((c) => c.who))],
    measures = [...new Set(data.curves.map((c) => c.measure))];
  if (!who.includes(state.who) && state.who !== "both")
    state.who = who.length > 1 && data.methods.length < 5 ? "both" : who[0]; // more lines would hide each other
  menu(
    "curves-who",
    [
      ...(who.length > 1 ? [{ key: "both", name: "both" }] : []),
      ...who.map((w) => ({ key: w, name: w === "personal" ? "personalized" : "global" })),
    ],
    state.who,
  );
  menu(
    "curves-measure",
    measures.map((m) => ({ key: m, name: data.measures[m].label })),
    state.measure,
  );
}

function drawLegends() {
  document.querySelectorAll(".legend").forEach((place) => {
    place.hidden = data.methods.length < 2;
    place.replaceChildren(
      ...data.methods.map((m, i) => {
        const button = el(
          "button",
          { type: "button", "aria-pressed": String(shown(i)), "data-method": String(i) },
          swatch(i),
          m.label,
        );
        button.addEventListener("click", () => {
          if (state.hidden.has(m.name)) state.hidden.delete(m.name);
          else state.hidden.add(m.name);
          document
            .querySelectorAll(`.legend [data-method="${i}"]`)
            .forEach((b) => b.setAttribute("aria-pressed", String(shown(i))));
          redraw();
        });
        return button;
      }),
    );
  });
}

// --- controls -----------------------------------------------------------------------------------------------------

function on(id, kind, act) {
  byId(id).addEventListener(kind, act);
}
for (const [id, key] of [
  ["curves-who", "who"],
  ["curves-measure", "measure"],
  ["pair-x", "pairX"],
  ["pair-y", "pairY"],
  ["matrix-run", "matrix"],
])
  on(id, "change", (e) => {
    state[key] = e.target.value;
    redraw();
  });
document.querySelectorAll("select.federation").forEach((s) =>
  s.addEventListener("change", () => {
    state.federation = Number(s.value);
    state.rows = PAGE;
    document.querySelectorAll("select.federation").forEach((other) => {
      other.value = s.value;
    });
    redraw();
    drawClientTable();
  }),
);
on("search", "input", (e) => {
  state.query = e.target.value;
  state.rows = PAGE;
  drawClientTable();
});
on("more", "click", () => {
  state.rows += 5 * PAGE;
  drawClientTable();
});
on("csv", "click", () => {
  const link = el("a", {
    href: URL.createObjectURL(new Blob([csvText()], { type: "text/csv" })),
    download: "clients.csv",
  });
  link.click();
  URL.revokeObjectURL(link.href);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
addEventListener("scroll", hideTip, { passive: true });

// --- light and dark -----------------------------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
function nameTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}
function remembered() {
  try {
    return localStorage.getItem("personafl-theme");
  } catch {
    return null;
  }
}
on("theme", "click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("personafl-theme", document.documentElement.dataset.theme);
  } catch {
    /* a page from disk may have no storage */
  }
  nameTheme();
  redraw();
});
systemDark.addEventListener("change", () => {
  nameTheme();
  redraw();
});
if (["light", "dark"].includes(remembered())) document.documentElement.dataset.theme = remembered();
nameTheme();

// --- newer data, from the server this page came from ----------------------------------------------------------------

async function poll(version) {
  let newest = version;
  try {
    const found = await (await fetch("version", { cache: "no-store" })).text();
    if (version !== null && found !== version) {
      data = await (await fetch("data", { cache: "no-store" })).json();
      start();
    }
    newest = found;
    byId("live").textContent =
      data.runs.every((r) => r.complete) && data.runs.length ? "all runs are finished" : "live";
  } catch {
    byId("live").textContent = "the server has stopped";
  }
  setTimeout(poll, 2000, newest);
}

start();
let widthBefore = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== widthBefore) {
    widthBefore = innerWidth;
    redraw();
  }
});
if ("live" in document.documentElement.dataset) poll(null);
