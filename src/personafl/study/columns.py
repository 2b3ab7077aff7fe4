"""The numbers that a comparison shows: what each is, which way is better, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from personafl.metrics.measures import Measure, ranking


@dataclass(frozen=True)
class Column:
    """A number that a table shows: what it is, which way is better (1, −1, 0) and how it is written."""

    key: str
    title: str
    about: str
    better: int = 1
    form: str = ".2f"
    scale: float = 1.0

    def write(self, value: float) -> str:
        """A value as tables show it; a dash where there is none."""
        return "–" if not np.isfinite(value) else format(value * self.scale, self.form)


COLUMNS = (
    Column("accuracy", "accuracy %", "over all test samples of all clients, last round", scale=100),
    Column("mean_accuracy", "mean %", "mean over clients, last round; every client counts the same", scale=100),
    Column("sd", "SD %", "standard deviation of the clients' accuracies", -1, scale=100),
    Column("worst_10", "worst 10%", "mean of the lowest tenth of the clients' accuracies", scale=100),
    Column("top_10", "top 10%", "over the test samples of the tenth of clients with most training data", scale=100),
    Column(
        "bmta",
        "BMTA* %",
        "best mean test accuracy: the best round's mean over clients; optimistic, as test data chose it",
        scale=100,
    ),
    Column("global_accuracy", "global %", "the method's global model, over all test samples", scale=100),
    Column("f1", "F1 %", "macro F1 over all test samples: the mean over classes", scale=100),
    Column("ece", "ECE %", "expected calibration error, over all test samples", -1, scale=100),
    Column("loss", "loss", "mean over all test samples", -1, ".4f"),
    Column("pui", "PUI %", "clients that do better than alone and than with FedAvg's model (QoI > 0)", 1, ".0f"),
    Column("pud", "PUD %", "clients that do worse than the better of these (QoI < 0)", -1, ".0f"),
    Column("api", "API", "mean QoI of the improved clients, percentage points", scale=100),
    Column("mpi", "MPI", "median QoI of the improved clients, percentage points", scale=100),
    Column("apd", "APD", "mean QoI of the worsened clients, percentage points", scale=100),
    Column("mpd", "MPD", "median QoI of the worsened clients, percentage points", scale=100),
    Column("av", "AV", "variance of the improved clients' QoI, squared percentage points", -1, scale=1e4),
    Column("cs", "CS", "cosine similarity of the improved clients' QoI with equal ones", form=".3f"),
    Column("entropy", "entropy", "of the improved clients' shares of all improvement", form=".3f"),
    Column("ji", "JI", "Jain's index of the improved clients' QoI", form=".3f"),
    Column("steps", "steps", "local steps of a client in a round, mean over rounds and active clients", 0, ".1f"),
    Column(
        "gradients", "gradients", "minibatch gradients that a client computed in one run, mean over clients", 0, ",.0f"
    ),
    Column("seconds", "s", "seconds of training and evaluation of one run on this machine", -1, ".1f"),
    Column("megabytes", "MB", "sent up and down in one run, all clients", -1, ".1f"),
)
BY_KEY = {column.key: column for column in COLUMNS}


def columns_for(measures: Sequence[Measure]) -> tuple[Column, ...]:
    """The columns of runs with these measures: of the one that ranks, of the others, of improvement and of costs.

    >>> [column.title for column in columns_for([Measure("rmse", -1, "RMSE")])][:5]
    ['RMSE', 'mean RMSE', 'SD', 'worst 10%', 'top 10%']
    """
    first = ranking(tuple(measures))
    others = [_column(m, "over all test samples of all clients, last round") for m in measures if m.name != first.name]
    if first.name == "accuracy":
        return _before("loss", [c for c in others if c.key not in BY_KEY])
    made = [replace(_of(first, BY_KEY[key]), about=BY_KEY[key].about.replace("percentage points", first.label))
            for key in ("pui", "pud", "api", "mpi", "apd", "mpd", "av", "cs", "entropy", "ji")]  # fmt: skip
    loss = [] if first.name == "loss" else [BY_KEY["loss"]]
    return (*_spread_columns(first), *others, *loss, *made, *(BY_KEY[key] for key in COSTS))


def _spread_columns(first: Measure) -> list[Column]:
    name, unit = first.label, f" {first.unit}" if first.unit else ""
    form: dict[str, Any] = {"form": f".{first.digits}f", "scale": first.scale}
    way: dict[str, Any] = {"better": first.better, **form}
    lowest = "lowest" if first.better > 0 else "highest"
    return [
        _column(first, "over all test samples of all clients, last round"),
        Column(f"mean_{first.name}", f"mean {name}{unit}", "mean over clients; every client counts the same", **way),
        Column("sd", f"SD{unit}", f"standard deviation of the clients' {name}", -1, **form),
        Column("worst_10", "worst 10%", f"mean of the {lowest} tenth of the clients' {name}", **way),
        Column("top_10", "top 10%", "over the test samples of the tenth of clients with most training data", **way),
        Column(
            f"global_{first.name}", f"global {name}{unit}", "the method's global model, over all test samples", **way
        ),
    ]


def _column(measure: Measure, about: str) -> Column:
    form = f".{measure.digits}f"
    return Column(measure.name, measure.heading, about, measure.better, form, measure.scale)


def _of(first: Measure, column: Column) -> Column:
    """A column of improvement, in the unit of the measure."""
    if column.key in ("api", "mpi", "apd", "mpd"):
        return replace(column, form=f".{first.digits}f", scale=first.scale)
    return replace(column, form=".6f", scale=first.scale**2) if column.key == "av" else column


def _before(key: str, more: Sequence[Column]) -> tuple[Column, ...]:
    at = [column.key for column in COLUMNS].index(key)
    return (*COLUMNS[:at], *more, *COLUMNS[at:])


EVENNESS = ("av", "cs", "entropy", "ji")
COSTS = ("steps", "gradients", "seconds", "megabytes")
NO_CONTEST = ("api", "mpi", "apd", "mpd", *EVENNESS, *COSTS)
"""Columns without a best: over the few whom a method improves it is easily generous and fair, and work is no merit."""
