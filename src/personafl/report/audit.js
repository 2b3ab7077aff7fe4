// Who was in the training data: what `personafl audit` left in run folders.

const MODELS = { personal: "personalized model", update: "what a client sends", global: "global model" };
const ATTACKS = { loss: "by loss", shadows: "by shadow runs" };

function drawAudits() {
  const span = (found, scale, digits) =>
    found
      ? `${fixed(scale * found.value, digits)} (${fixed(scale * found.low, digits)} to ${fixed(scale * found.high, digits)})`
      : "too few samples";
  const worst = (clients) => {
    const all = Object.entries(clients).sort((a, b) => b[1].value - a[1].value);
    return all.length ? `${all[0][0]}: ${span(all[0][1], 1, 2)}` : "–";
  };
  const titles = [
    "model",
    "attack",
    "AUC",
    "found at 1 % false alarms, %",
    "found at 0.1 %, %",
    "proven ε",
    "promised ε",
    "most exposed client, AUC",
  ];
  byId("audit-body").replaceChildren(
    ...data.audits.map((one) =>
      el(
        "div",
        { class: "block" },
        el("h3", {}, `${nameOf(data.runs[one.run].method)}, seed ${data.runs[one.run].seed}`),
        one.words.map((line) => el("p", {}, line)),
        scrolling(
          "Attacks",
          titles,
          one.attacks.map((a) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, MODELS[a.target]),
              el("td", {}, ATTACKS[a.attack] || a.attack),
              el("td", {}, span(a.auc, 1, 3)),
              el("td", {}, span(a.rates["0.01"], 100, 1)),
              el("td", {}, span(a.rates["0.001"], 100, 1)),
              el("td", {}, fixed(a.proven, 2)),
              el("td", {}, known(a.epsilon) ? fixed(a.epsilon, 2) : "none"),
              el("td", {}, worst(a.clients)),
            ),
          ),
        ),
        el(
          "p",
          { class: "caption" },
          `${one.attacks[0]?.members.toLocaleString("en")} training samples against ${one.attacks[0]?.others.toLocaleString("en")} others; ${plural(one.shadows, "shadow run")}. AUC 0.5 is guessing, 1 is certainty; 95 % intervals. “Proven ε” is what an attack shows at least, “promised” what the run’s noise guarantees at most, where it covers the model.`,
        ),
      ),
    ),
  );
}
