"""The demo: forty clients with unlike handwritten digits, and what federation does for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from personafl import metrics
from personafl.runs.run import Run
from personafl.study.differences import LEVEL
from personafl.study.judgement import accuracy_of
from personafl.study.launch import StudyRuns
from personafl.study.plan import HELD_BACK, Plan, plan
from personafl.study.values import floats

METHODS = ("selffl", "fedamp", "persfl", "ditto", "fedavg", "separate")

TABLES: dict[str, Any] = {
    "activity": 0.5,
    "splits": [0.5, 0.1, 0.4],
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.3, "min_samples": 10},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"lr": 0.1, "steps": 10, "batch_size": 10, "held_back": HELD_BACK},
    "engine": {"name": "stacked", "threads": 1},  # so small that timing both engines would take longer than it saves
}
"""1,797 digits over 40 clients, each with few classes and few samples."""


def fit_tables() -> dict[str, Any]:
    """The same federation for a fit, which wants more validation data, and no part of it held back."""
    local = {key: value for key, value in TABLES["local"].items() if key != "held_back"}
    return {**TABLES, "splits": [0.4, 0.2, 0.4], "local": local}


def demo_plan(rounds: int, seed: int, seeds: int) -> Plan:
    """The comparison that the demo runs."""
    return plan({**TABLES, "rounds": rounds, "seed": seed}, METHODS, seeds)


def ranked(found: StudyRuns) -> list[str]:
    """The methods but training alone, best first, on validation data that was held back from all of them.

    PersFL chooses one of fifteen students on the rest of it, and would be ahead there for that reason alone. Test data
    only tells how good the first one is.
    """
    scores = {m: mean_score(found, m, "personal_held_accuracy") for m in METHODS if m != "separate"}
    return sorted(scores, key=lambda m: -scores[m])


def chosen(found: StudyRuns) -> str:
    """The method to show."""
    return ranked(found)[0]


def sentence(found: StudyRuns) -> str:
    """What the table means, in words, from its numbers."""
    best, second = ranked(found)[:2]
    alone, together = _everybody(found.methods["separate"]), _everybody(found.methods[best])
    known = ~np.isnan(alone) & ~np.isnan(together)
    better, worse = int((together > alone)[known].sum()), int((together < alone)[known].sum())
    own, helped = mean_score(found, "separate", "personal_accuracy"), mean_score(found, best, "personal_accuracy")
    one = mean_score(found, "fedavg", "global_accuracy")
    seeds = len(found.methods[best])
    times = "" if seeds == 1 else f" in {seeds} federations of 40"
    return (
        f"Here the federation {'helps' if helped > own else 'does not help'}: training alone, clients get {own:.1%} of "
        f"their own test digits right; with {best} {helped:.1%}, {better} of {known.sum()} clients{times} doing better "
        f"than alone and {worse} worse. FedAvg's one model for everybody gets {one:.1%}. {_why(found, best, second)}"
    )


def _why(found: StudyRuns, best: str, second: str) -> str:
    """Why this method is the one that is named."""
    first, other = (mean_score(found, m, "personal_held_accuracy") for m in (best, second))
    p = metrics.wilcoxon(_held_back(found.methods[best]), _held_back(found.methods[second])).p
    return (
        f"{best} is named because it is ahead on the validation digits that were held back from every method "
        f"({first:.1%}, then {second} {other:.1%}: the difference is {'' if p < LEVEL else 'not '}significant); test "
        "digits choose nothing."
    )


def _held_back(runs: dict[int, Run]) -> Any:
    """Each client's accuracy on what was held back: the mean over seeds, as these have samples in common."""
    tables = [run.clients() for run in runs.values()]
    correct, n = (np.array([floats(table, name) for table in tables]) for name in ("personal_held_correct", "n_held"))
    correct, n = np.nan_to_num(correct).sum(0), n.sum(0)
    return np.divide(correct, n, out=np.full(len(n), np.nan), where=n > 0)


def _everybody(runs: dict[int, Run]) -> Any:
    accuracies = (accuracy_of(run) for run in runs.values())
    return np.concatenate([a for a in accuracies if a is not None])


def mean_score(found: StudyRuns, method: str, key: str) -> float:
    """The mean over seeds of what the runs of a method ended with."""
    return float(np.mean([run.score[key] for run in found.methods[method].values()]))
