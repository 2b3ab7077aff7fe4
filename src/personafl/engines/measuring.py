"""What is told of clients after an evaluation: from sums over samples and from outputs to the values of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from personafl.engines.base import Engine, Split
from personafl.engines.sums import ClientSums, Sums
from personafl.inputs import some
from personafl.kernels.losses import couples_samples
from personafl.states import Ints
from personafl.tasks.base import Metric, column_of


def measure_split(engine: Engine, theta: Tensor, ids: Ints, split: Split) -> Sums:
    """What is told of each client: the sum of its losses, right answers of a classification, values of metrics.

    `theta` is as in `evaluate`. NaN where a metric has no value, such as an AUC of one class.
    """
    sizes = engine.federation.sizes(split)[ids]
    sums = engine.evaluate(theta, ids, split)
    values: Sums = {}
    for rows in _blocks(engine, sizes) if _from_outputs(engine) else ():
        outputs = engine.outputs(theta if theta.dim() == 1 else theta[rows], ids[rows], split)
        parts = _of_outputs(engine, outputs, labels_of(engine, ids[rows], split), sizes[rows])
        for name, found in parts.items():
            values.setdefault(name, np.full(len(ids), np.nan))[rows] = found
    return _columns(engine, sums, sizes, values)


def measure_held_back(engine: Engine, theta: Tensor, ids: Ints) -> Sums:
    """As `measure_split`, on the validation samples that algorithms do not see; `n` says how many each client has."""
    sizes, held = engine.federation.sizes("val")[ids], engine.held_back_samples(ids)
    owner = np.repeat(np.arange(len(ids)), sizes)[held]
    counts = np.bincount(owner, minlength=len(ids))
    outputs = engine.outputs(theta, ids, "val")[torch.from_numpy(held)]
    y = labels_of(engine, ids, "val")[torch.from_numpy(held)]
    return {"n": counts.astype(np.float64)} | measure_outputs(engine, outputs, y, counts)


def measure_outputs(engine: Engine, outputs: Tensor, y: Tensor, sizes: Ints) -> Sums:
    """As `measure_split`, of outputs that are there already, client after client; `sizes` says how many each has."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if couples_samples(engine.task.objective):
        sums = _coupled_sums(engine, outputs, y, sizes)
    else:
        added = ClientSums(engine.summed(), len(sizes))
        if len(owner):
            added.add(outputs, y, owner)
        sums = added.result(sizes)
    values = _of_outputs(engine, outputs, y, sizes) if _from_outputs(engine) else {}
    return _columns(engine, sums, sizes, values)


def _coupled_sums(engine: Engine, outputs: Tensor, y: Tensor, counts: Ints) -> Sums:
    cuts = np.cumsum(counts)[:-1].tolist()
    parts = zip(outputs.tensor_split(cuts), y.tensor_split(cuts), strict=True)
    rows = [engine.task.sums(o, t, torch.ones(len(t))) for o, t in parts]
    return {name: np.array([row[name].double().numpy() for row in rows]) for name in rows[0]}


def _from_outputs(engine: Engine) -> list[Metric]:
    return [metric for metric in engine.task.kind.measures if metric.per == "client"]


def _of_outputs(engine: Engine, outputs: Tensor, y: Tensor, sizes: Ints) -> Sums:
    """Metrics that are made of all of a client's outputs."""
    cuts = np.cumsum(sizes)[:-1].tolist()
    clients = list(zip(outputs.tensor_split(cuts), y.tensor_split(cuts), strict=True))
    return {m.name: np.array([m.of_outputs(o, t) for o, t in clients], np.float64) for m in _from_outputs(engine)}


def _columns(engine: Engine, sums: Sums, sizes: Ints, values: Sums) -> Sums:
    out, n = {"loss": sums["loss"]}, sizes.astype(np.float64)
    for metric in engine.task.kind.measures:
        if column_of(metric) == "correct":
            out["correct"] = sums["correct"]
            continue
        found = np.full(len(n), np.nan)
        if n.any():
            found = values[metric.name] if metric.name in values else metric.of_sums(sums, n)
        # A model that gives no numbers is as bad as can be: it is not left out as one without a value is.
        out[metric.name] = np.where(np.isnan(found) & ~np.isfinite(sums["loss"]) & (n > 0), metric.worst, found)
    return out


def labels_of(engine: Engine, ids: Ints, split: Split) -> Tensor:
    """The labels of a split, client after client."""
    sizes, starts = engine.federation.sizes(split)[ids], engine.federation.starts(split)[ids]
    index = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return engine.federation.y[torch.from_numpy(index)]


def _blocks(engine: Engine, sizes: Ints) -> Iterator[Ints]:
    """Clients whose outputs fit in memory together; a client alone where it takes more."""
    each = 8 * engine.task.activation_size(some(engine.federation.x, slice(1)))
    block = np.cumsum(sizes) * each // (engine.memory * 2**20)
    for number in np.unique(block):
        yield np.flatnonzero(block == number)
