"""The demo: forty clients with unlike handwritten digits, and what federation does for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from personafl.compare import Comparison, Plan, plan
from personafl.run import Run
from personafl.study import accuracy_of

METHODS = ("selffl", "fedamp", "persfl", "ditto", "fedavg", "separate")

TABLES: dict[str, Any] = {
    "activity": 0.5,
    "splits": [0.5, 0.1, 0.4],
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.3, "min_samples": 10},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"lr": 0.1, "steps": 10, "batch_size": 10},
    "engine": {"name": "stacked", "threads": 1},  # so small that timing both engines would take longer than it saves
}
"""1,797 digits over 40 clients, each with few classes and few samples."""


def demo_plan(rounds: int, seed: int, seeds: int) -> Plan:
    """The comparison that the demo runs."""
    return plan({**TABLES, "rounds": rounds, "seed": seed}, METHODS, seeds)


def chosen(found: Comparison) -> str:
    """The method to show: the best on validation data. Test data only tells how good it is."""

    def score(method: str) -> float:
        return float(np.mean([run.score["personal_val_accuracy"] for run in found.methods[method].values()]))

    return max((m for m in METHODS if m != "separate"), key=score)


def sentence(found: Comparison) -> str:
    """What the table means, in words, from its numbers."""
    best = chosen(found)
    alone, together = _everybody(found.methods["separate"]), _everybody(found.methods[best])
    known = ~np.isnan(alone) & ~np.isnan(together)
    better, worse = int((together > alone)[known].sum()), int((together < alone)[known].sum())
    own, helped = _mean(found, "separate", "personal_accuracy"), _mean(found, best, "personal_accuracy")
    one = _mean(found, "fedavg", "global_accuracy")
    seeds = len(found.methods[best])
    times = "" if seeds == 1 else f" in {seeds} federations of 40"
    return (
        f"Here the federation {'helps' if helped > own else 'does not help'}: training alone, clients get {own:.1%} of "
        f"their own test digits right; with {best} {helped:.1%}, {better} of {known.sum()} clients{times} doing better "
        f"than alone and {worse} worse. FedAvg's one model for everybody gets {one:.1%}."
    )


def _everybody(runs: dict[int, Run]) -> Any:
    accuracies = (accuracy_of(run) for run in runs.values())
    return np.concatenate([a for a in accuracies if a is not None])


def _mean(found: Comparison, method: str, key: str) -> float:
    return float(np.mean([run.score[key] for run in found.methods[method].values()]))
