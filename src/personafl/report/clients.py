"""The clients of a report: who they are, what data they have, and how each run serves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl.metrics.measures import Measure
from personafl.report.numbers import rounded
from personafl.runs.run import Run
from personafl.study.values import floats
from personafl.training.evaluation import WHO

MOST_VALUES = 150_000
"""Clients × runs beyond which only every so-many-th client is shown, so that a page stays small."""
MOST_CELLS = 20_000_000
"""Clients × classes beyond which classes are not counted."""
MOST_COLUMNS = 240
"""Columns of the picture of classes; more clients share them."""
_COMMON = {
    *("client", "group", "round", "n_train", "n_val", "n_test", "steps", "gradients", "activations", "failures"),
    *(f"{who}_{what}" for who in WHO for what in ("accuracy", "correct", "loss")),
}  # fmt: skip
_SAID_OTHERWISE = {"sigma0_2", "posterior_variance"}  # equal for all, and σ² divided by GAIN
Ints = NDArray[np.int64]


@dataclass
class Federations:
    """The federations that the runs were trained on, told apart by seed and fingerprint."""

    _made: list[_Federation] = field(default_factory=list)

    def add(self, run: Run) -> int:
        """The number of a run's federation."""
        key = (run.manifest["seed"], str(run.manifest["resolved"]["fingerprint"]), len(run.clients()))
        for number, known in enumerate(self._made):
            if known.key == key:
                known.learn(run)
                return number
        self._made.append(_Federation(key, run))
        return len(self._made) - 1

    def thin(self, runs: int) -> None:
        """Decide how many clients are shown one by one."""
        for each in self._made:
            most = max(200, MOST_VALUES // max(runs, 1))
            each.kept = np.unique(np.linspace(0, each.count - 1, min(each.count, most)).round().astype(np.int64))

    def kept(self, number: int) -> Ints:
        """The positions of the clients that are shown one by one."""
        return self._made[number].kept

    def order(self, number: int) -> tuple[Ints, str]:
        """All clients, the similar ones beside each other, and what they are ordered by."""
        return self._made[number].order()

    def tables(self) -> list[dict[str, Any]]:
        """What the page gets of each federation: its clients, their sizes, groups and shares of classes."""
        several = len({seed for seed, _, _ in (f.key for f in self._made)}) < len(self._made)
        return [each.table(several) for each in self._made]


class _Federation:
    def __init__(self, key: tuple[int, str, int], run: Run) -> None:
        table = run.clients()
        self.key, self.count = key, len(table)
        self.ids = [str(name) for name in table.column("client").to_pylist()]
        self.groups = _groups(table)
        self.sizes = {
            n: floats(table, n).astype(np.int64) for n in ("n_train", "n_val", "n_test") if n in table.schema.names
        }
        self.labels = [str(name) for name in run.manifest["resolved"].get("labels") or []]
        self.classes = run.manifest["resolved"].get("classes")
        self.kept: Ints = np.arange(self.count)
        self.counts: Ints | None = None
        self.learn(run)

    def learn(self, run: Run) -> None:
        """Which classes the clients' test data has, as predictions know, which only finished runs keep."""
        if self.counts is not None or (predictions := run.predictions()) is None:
            return
        position = {name: m for m, name in enumerate(self.ids)}
        named = predictions.column("client").combine_chunks()
        names = named.dictionary.to_pylist() if pa.types.is_dictionary(named.type) else None
        codes = np.asarray(named.indices if names else [], np.int64)
        who = np.array([position.get(n, -1) for n in names], np.int64)[codes] if names else np.array(
            [position.get(n, -1) for n in named.to_pylist()], np.int64)  # fmt: skip
        label = floats(predictions, "label").astype(np.int64)
        if len(label) == 0 or (who < 0).any() or (label < 0).any():
            return
        classes = max(int(self.classes or 0), int(label.max()) + 1)
        if self.count * classes > MOST_CELLS:
            return
        self.counts = np.bincount(who * classes + label, minlength=self.count * classes).reshape(self.count, classes)

    def order(self) -> tuple[Ints, str]:
        if self.groups is not None:
            first = {name: k for k, name in enumerate(dict.fromkeys(self.groups))}
            return np.argsort([first[name] for name in self.groups], kind="stable"), "group"
        if self.counts is not None:
            return np.lexsort((-self.sizes["n_train"], self.counts.argmax(1))), "most frequent class of the test data"
        return np.arange(self.count), "number"

    def table(self, several: bool) -> dict[str, Any]:
        seed, fingerprint, _ = self.key
        out: dict[str, Any] = {
            "seed": seed,
            "label": f"seed {seed}, data {fingerprint[:6]}" if several else f"seed {seed}",
            "clients": self.count,
            "ids": [self.ids[m] for m in self.kept],
            "groups": [self.groups[m] for m in self.kept] if self.groups else None,
            **{name: values[self.kept].tolist() for name, values in self.sizes.items()},
        }
        if self.counts is not None:
            out["classes"] = (self.counts > 0).sum(1)[self.kept].tolist()
            out["shares"] = self._shares(self.counts)
        return out

    def _shares(self, counts: Ints) -> dict[str, Any]:
        """The picture of classes: a column for each client, or for neighbours in the order where there are many."""
        order, by = self.order()
        blocks = np.array_split(order, min(len(order), MOST_COLUMNS))
        sums = np.array([counts[block].sum(0) for block in blocks], np.float64)
        shares = sums / np.maximum(sums.sum(1, keepdims=True), 1)
        return {
            "by": by,
            "clients": [
                self.ids[block[0]] + (f" to {self.ids[block[-1]]}" if len(block) > 1 else "") for block in blocks
            ],
            "each": max(len(block) for block in blocks),
            "labels": self.labels[: counts.shape[1]] or [str(c) for c in range(counts.shape[1])],
            "values": [rounded(row, 2) for row in shares],
        }


def client_values(run: Run, kept: Ints, measure: Measure) -> dict[str, Any]:
    """Each client's value with both of its models, its other metrics, and what the algorithm reports of it."""
    table = run.clients()
    known_otherwise = _COMMON | _SAID_OTHERWISE
    known_otherwise |= {f"{who}_{m.name}" for who in WHO for m in run.measures} - {
        f"personal_{m.name}" for m in run.measures if m.name not in (measure.name, "accuracy")
    }
    out: dict[str, Any] = {"columns": {}}
    for who in ("personal", "global"):
        name = f"{who}_{measure.name}"
        known = name in table.column_names and table.column(name).null_count < len(table)
        out[who] = rounded(floats(table, name)[kept]) if known else None
    own = [name for name in table.column_names if name not in known_otherwise]
    if "gain" in own:
        own.append("steps")  # Self-FL decides it
    for name in own:
        kind = table.schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            values = rounded(floats(table, name)[kept], 4)
            if name == "epsilon" and np.isinf(floats(table, name)).any():
                continue  # no guarantee, as the facts say; gaps would say less
            if any(v is not None for v in values):
                out["columns"][name] = values
    failures = floats(table, "failures") if "failures" in table.column_names else np.zeros(1)
    if failures.any():
        out["columns"]["failures"] = rounded(failures[kept])
    return out


def _groups(table: pa.Table) -> list[str] | None:
    if "group" not in table.column_names or table.column("group").null_count == len(table):
        return None
    return [str(name) for name in table.column("group").to_pylist()]
