"""What a report shows of a fit: which model for whom, and how the search went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from personafl.metrics.measures import Measure
from personafl.report.clients import Ints
from personafl.report.numbers import rounded
from personafl.report.reasons import own_shares, reasons
from personafl.runs.run import Run
from personafl.study.values import floats
from personafl.tasks.base import column_of

ROW_OF = {"alone": "separate", "one model": "fedavg"}
"""Finalists that a report calls as the method whose run they are from."""
GLOBAL = ", global"
"""What is added to a method's name where a finalist is its global model."""


def row_of(label: str) -> str:
    """What a report calls the run that a finalist is from.

    >>> row_of("one model"), row_of("ditto, global"), row_of("ditto (2)")
    ('fedavg', 'ditto', 'ditto (2)')
    """
    return ROW_OF.get(label, label.replace(GLOBAL, ""))


def fit_data(
    fitted: Mapping[str, Any], run: Run, measure: Measure, methods: Sequence[str], kept: Ints
) -> dict[str, Any] | None:
    """The part of a report's data that only a fit has; None for other runs.

    Parameters
    ----------
    fitted
        fit.json, or nothing.
    run, measure
        The fit as a run, and what clients are compared by.
    methods
        The methods of the report, in their order.
    kept
        The clients that are shown one by one.
    """
    if not fitted:
        return None
    return _made(fitted, list(methods), kept) | {"own": _own(fitted, run, measure, kept)}


def _made(fitted: Mapping[str, Any], methods: list[str], kept: Ints) -> dict[str, Any]:
    weights = np.array(fitted["weights"], np.float64)
    labels = [str(model["label"]) for model in fitted["finalists"]]
    n_val = max(int(fitted["n_val"]), 1)
    tried: dict[str, list[Mapping[str, Any]]] = {}
    for trial in fitted["trials"]:
        tried.setdefault(str(trial["method"]), []).append(trial)
    return {
        "test": fitted["test"],
        "way": str(fitted["way"]["sentence"]),
        "ways": [
            {"title": str(way["title"]), "taken": bool(way["taken"]), "unseen": rounded([way["unseen"] / n_val])[0],
             "seen": rounded([way["seen"] / n_val])[0], "log_likelihood": rounded([way["log_likelihood"]])[0]}
            for way in fitted["ways"]
        ],
        "finalists": [
            {"label": label, "method": _index(methods, row_of(label)),
             "settings": in_words(model["settings"]), "rounds": int(model["rounds"]), "score": model["score"],
             "clients": int((weights[:, f] > 0).sum()),
             "mostly": int((weights.argmax(1) == f).sum()), "weight": round(float(weights[:, f].mean()), 4)}
            for f, (label, model) in enumerate(zip(labels, fitted["finalists"], strict=True))
        ],
        "weights": [rounded(row, 3) for row in weights[kept]],
        "tried": [
            {"method": name, "index": _index(methods, name), "candidates": len(trials),
             "trainings": sum(len(trial["outcomes"]) for trial in trials),
             "seconds": round(sum(o["seconds"] for trial in trials for o in trial["outcomes"]), 1),
             **_best(trials)}
            for name, trials in tried.items()
        ],
        "points": [
            {"method": str(trial["method"]), "index": _index(methods, str(trial["method"])),
             "settings": in_words(trial["settings"]), "at": rounded([o["at"] for o in trial["outcomes"]]),
             "rounds": [int(o["rounds"]) for o in trial["outcomes"]],
             "score": [o["score"] for o in trial["outcomes"]]}
            for trial in fitted["trials"]
        ],
        "budget": float(fitted["budget"]),
        "seconds": float(fitted["seconds"]),
        "stopped": bool(fitted["stopped"]),
        "refit": bool(fitted.get("refit", False)),
    }  # fmt: skip


def _own(fitted: Mapping[str, Any], run: Run, measure: Measure, kept: Ints) -> dict[str, Any]:
    """Why each client got its model: its validation samples, how much they count, and what is reached on them.

    With its model, with the best single one for everybody, and alone; the last two came with a later version.
    """
    table = run.clients()
    n_val = floats(table, "n_val")[kept]
    name, weights = f"personal_val_{column_of(measure)}", np.array(fitted["weights"], np.float64)[kept]
    fit = floats(table, name)[kept] if name in table.column_names else np.full(len(kept), np.nan)
    if measure.name == "accuracy":
        fit = fit / np.where(n_val > 0, n_val, np.nan)
    told = reasons(fitted, weights, n_val.astype(int).tolist())
    says = list(dict.fromkeys(told))
    found: dict[str, Any] = {
        "n": rounded(n_val), "shares": own_shares(fitted["way"], n_val.astype(int).tolist()),
        "says": says, "why": [says.index(each) for each in told], "fit": rounded(fit),
    }  # fmt: skip
    if (others := fitted.get("validation")) and fitted.get("measure") == measure.name:
        found["best"] = str(others["best"])
        found |= {key: rounded(others[key][client] for client in kept) for key in ("with_best", "alone")}
    return found


def _index(methods: list[str], name: str) -> int | None:
    return methods.index(name) if name in methods else None


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings for people.

    >>> in_words({"local.lr": 0.1, "algorithm.lambda_": 2.0}), in_words({})
    ('lr = 0.1, lambda = 2.0', 'as given')
    """
    parts = [f"{str(key).rpartition('.')[2].rstrip('_')} = {value}" for key, value in settings.items()]
    return ", ".join(parts) or "as given"


def _best(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The best that a method reached, with what, and why it failed where it did every time."""
    reached = [(o["score"], o["rounds"], t) for t in trials for o in t["outcomes"] if o["score"] is not None]
    if not reached:
        why = [str(o["why"]) for t in trials for o in t["outcomes"] if o["why"]]
        return {"score": None, "rounds": None, "settings": "", "why": why[0] if why else "not trained to an evaluation"}
    score, rounds, trial = max(reached, key=lambda found: found[:2])
    return {"score": score, "rounds": int(rounds), "settings": in_words(trial["settings"]), "why": ""}
