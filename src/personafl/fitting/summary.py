"""What fit.json says: all that was tried and chosen, the number on test data, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from personafl.fitting.budget import written
from personafl.fitting.choice import Floats
from personafl.fitting.ending import Ending, interval, measured
from personafl.fitting.search import Search
from personafl.metrics.measures import LOSS, Measure
from personafl.metrics.permutation import sign_flip
from personafl.report.numbers import rounded
from personafl.study.differences import LEVEL
from personafl.training.job import Job

ALONE = 0.9
"""A client with so much weight on training alone need not join."""
CALLED = {"alone": "Training alone", "global": "One model for all"}


def summary_of(
    job: Job, search: Search, ending: Ending, spent: float, budget: float, stopped: bool, not_again: str
) -> dict[str, Any]:
    """What fit.json says; `not_again`: why the finalists were not trained again, where they should have been."""
    measure, table, notes = job.task.kind.primary, ending.table, _notes(search, stopped)
    if len(ending.validation) and not np.isfinite(ending.validation).any():
        notes.insert(0, f"No client's validation data gives {measure.label} a value: the choice was by the loss.")
    n = np.asarray(table.column("n_test").to_numpy(), np.float64)
    test = _test(measure, table, n, job.seed)
    labels, way = [model.label for model in ending.finalists], ending.choice.way
    return {
        "measure": measure.name,
        "test": test,
        "validation": _on_validation(ending),
        "n_val": int(table.column("n_val").to_numpy().sum()),
        "way": {"kind": way.kind, "alpha": _finite(way.alpha), "sentence": way.sentence(labels)},
        "ways": [
            {"kind": each.way.kind, "alpha": _finite(each.way.alpha), "title": each.way.title(labels),
             "unseen": each.unseen, "seen": each.seen, "log_likelihood": each.log_likelihood,
             "taken": each.way == way}
            for each in ending.choice.considered
        ],
        "finalists": [
            {"label": m.label, "method": m.candidate.method, "who": m.who, "settings": m.candidate.settings,
             "rounds": m.outcome.rounds, "score": m.score, "folder": m.used.folder, "searched": m.outcome.folder,
             "kept": [job.federation.ids[k] for k in np.flatnonzero(kept)]}
            for m, kept in zip(ending.finalists, ending.kept, strict=True)
        ],
        "clients": list(job.federation.ids),
        "weights": [[round(float(w), 6) for w in row] for row in ending.choice.weights],
        "newcomer": [float(w) for w in ending.newcomer],
        "budget": budget,
        "seconds": round(spent, 2),
        "stopped": stopped,
        "refit": _refitted(ending),
        "notes": notes,
        "trials": [
            {"number": c.number, "method": c.method, "settings": c.settings,
             "outcomes": [{"rounds": o.rounds, "score": _finite(o.best), "seconds": round(o.seconds, 3), "at": o.at,
                           "why": o.why}
                          for _, o in sorted(c.outcomes.items())]}
            for c in search.candidates
        ],
        "sentences": _sentences(measure, test, ending, search, spent, budget, labels, not_again, notes),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _test(measure: Measure, table: pa.Table, n: Floats, seed: int) -> dict[str, Any]:
    """The measure on test data, and beside it alone and one model for all, with who gains."""
    used = (
        measure
        if f"personal_{'correct' if measure.name == 'accuracy' else measure.name}" in table.column_names
        else LOSS
    )
    own = measured(table, used, "personal")
    found = interval(used, own, n, seed)
    told: dict[str, Any] = {
        "value": _finite(used.pooled(own, n)),
        "interval": None if found is None else list(found),
        "clients": int(((n > 0) & ~np.isnan(own)).sum()),
    }
    for who in ("alone", "global"):
        other = measured(table, used, who)
        known = (n > 0) & ~np.isnan(own) & ~np.isnan(other)
        if not known.any():
            continue
        gain = (used.better or 1) * (own - other)[known]
        points = used.points(own, n)[known] - used.points(other, n)[known]
        told[who] = {
            "value": _finite(used.pooled(other, n)), "better": int((gain > 0).sum()), "worse": int((gain < 0).sum()),
            "same": int((gain == 0).sum()), "p_better": _finite(sign_flip(points)),
            "p_worse": _finite(sign_flip(-points)),
        }  # fmt: skip
    return told


def _against(measure: Measure, called: str, other: dict[str, Any]) -> str:
    """How the fit does beside something else, in words."""
    shown = "no difference is shown"
    for key, words in (("p_better", "the fit is shown to be better"), ("p_worse", "the fit is shown to be worse")):
        if other[key] is not None and other[key] < LEVEL:
            shown = words
    return (
        f"{called}: {measure.write(other['value'])}; with the fit {other['better']} clients do better, "
        f"{other['worse']} worse, {other['same']} the same ({shown})."
    )


def _sentences(
    measure: Measure, test: dict[str, Any], ending: Ending, search: Search, spent: float, budget: float,
    labels: Sequence[str], not_again: str, notes: Sequence[str],
) -> list[str]:  # fmt: skip
    way = ending.choice.way
    tried = [c for c in search.candidates if c.outcomes]
    runs = sum(len(c.outcomes) for c in tried)
    said = [f"Chosen on validation data: {way.sentence(labels)}."]
    if test["value"] is None:
        said.append("No client has test data, so there is no honest number: give splits with a share for test.")
    else:
        between = (
            ""
            if test["interval"] is None
            else f", 95% interval {' to '.join(measure.write(v) for v in test['interval'])}"
        )
        said.append(f"On test data, which no choice has seen: {measure.write(test['value'])} {measure.label}{between}.")
    for who, called in CALLED.items():
        if who in test:
            said.append(_against(measure, called, test[who]))
    if _refitted(ending):
        said.append("The finalists were then trained again, with the validation data among the training data.")
        if count := int(((ending.choice.weights.T > 0) & ending.kept).any(0).sum()):
            said.append(
                f"{count} of {len(ending.choice.weights)} clients {'keeps' if count == 1 else 'keep'} a model from "
                "before that, which does better on their validation data than the one that was trained on it."
            )
    elif not_again:
        said.append(not_again)
    said += notes
    if "alone" in labels:
        apart = int((ending.choice.weights[:, labels.index("alone")] >= ALONE).sum())
        said.append(
            f"{apart} of {len(ending.choice.weights)} clients need not join: they get the model that they train alone."
        )
    said.append(
        f"{len(tried)} candidates of {len({c.method for c in tried})} methods in {runs} "
        f"trainings, {written(spent)} of {written(budget)}."
    )
    return said


def _refitted(ending: Ending) -> bool:
    return all(model.again is not None for model in ending.finalists)


def _on_validation(ending: Ending) -> dict[str, Any]:
    """Each client's validation score with the best single model for everybody, and with the one trained alone."""
    labels = [model.label for model in ending.finalists]
    best = next(each.way.single for each in ending.choice.considered if each.way.kind == "single")
    alone = ending.validation[labels.index("alone")] if "alone" in labels else np.full(len(ending.table), np.nan)
    return {"best": labels[best], "with_best": rounded(ending.validation[best]), "alone": rounded(alone)}


def _notes(search: Search, stopped: bool) -> list[str]:
    """What the search had no time for, in sentences."""
    found = []
    if short := _cut_short(search):
        why = "Somebody stopped the fit before these were" if stopped else "There was no time for these to be"
        found.append(f"{why} trained to the end, which flatters the fit beside them: {short}.")
    if missing := _not_tried(search):
        done = sum(bool(c.outcomes) for c in search.candidates)
        why = "for lack of time"
        if stopped:
            why = "as somebody stopped the fit before"
        elif search.trials is not None and done >= search.trials:
            why = f"as trials = {search.trials} allowed no more candidates"
        of = f"{len(missing)} of {len(search.portfolio.algorithms)} methods {'was' if len(missing) == 1 else 'were'}"
        found.append(f"{of} not tried, {why}: {', '.join(missing)}.")
    return found


def _not_tried(search: Search) -> list[str]:
    """The methods of which no training ended."""
    tried = {c.method for c in search.candidates if c.outcomes}
    return [name for name in search.portfolio.algorithms if name not in tried]


def _cut_short(search: Search) -> str:
    """What the fit is compared with and was not trained as long as it may be, in words."""
    found, full = [], search.rungs[-1]
    for method, called in (("separate", "training alone"), ("fedavg", "one model for all")):
        longest = max((c.rounds for c in search.candidates if c.method == method), default=0)
        if 0 < longest < full:
            found.append(f"{called} ({longest} of {full} rounds)")
    return ", ".join(found)
