"""Every client's global and personalized model, measured on its validation and test data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent, State
from personafl.engines.base import Engine, Work
from personafl.engines.batches import Ints
from personafl.store import ClientStore
from personafl.task import correct

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Personal:
    """Personalized models of some clients, and what the algorithm reports of them."""

    ids: Ints
    theta: Tensor
    report: State


def personal_models(
    algorithm: Algorithm, engine: Engine, server: State, store: ClientStore, round: int, last: bool
) -> Iterator[Personal]:
    """The personalized model of every client, some clients at a time."""
    many = max(1, engine.memory * 2**20 // (4 * 4 * engine.task.size))
    for first in range(0, len(engine.federation), many):
        ids = np.arange(first, min(first + many, len(engine.federation)))
        sent = algorithm.send_for_evaluation(server, torch.from_numpy(ids))
        yield personalize(algorithm, engine, sent, ids, store.get(ids), round, last)


def personalize(
    algorithm: Algorithm, engine: Engine, sent: Sent, ids: Ints, own: State, round: int, last: bool
) -> Personal:
    """The personalized models of clients with these states."""
    program = algorithm.evaluation_program(last)
    if program is not None:
        own = engine.run(Work(program, round, "evaluation", ids, own, sent)).own
    theta = engine.map(lambda o, s: {"theta": algorithm.personal(o, s)}, own, sent, len(ids))["theta"]
    return Personal(ids, theta, engine.map(algorithm.report, own, sent, len(ids)))


def measure(
    algorithm: Algorithm, engine: Engine, server: State, store: ClientStore, round: int, last: bool
) -> tuple[Columns, Tensor | None]:
    """Sums of loss and metrics for each client: `personal_*`, `global_*`, and the same on validation data.

    After the last round the personalized models come along, for the run folder.
    """
    everybody = np.arange(len(engine.federation))
    common = algorithm.global_model(server)
    blocks: list[Columns] = []
    models: list[Tensor] = []
    for part in personal_models(algorithm, engine, server, store, round, last):
        block: Columns = {name: value.cpu().numpy() for name, value in part.report.items()}
        for split, tag in (("test", "personal_"), ("val", "personal_val_")):
            sums = engine.evaluate(part.theta, part.ids, split)  # type: ignore[arg-type]
            block |= {f"{tag}{name}": values for name, values in sums.items()}
        blocks.append(block)
        if last:
            models.append(part.theta.cpu())
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    for split, tag in (("test", "global_"), ("val", "global_val_")):
        if common is not None:
            sums = engine.evaluate(common, everybody, split)  # type: ignore[arg-type]
        else:
            sums = {name: np.full(len(everybody), np.nan) for name in ("loss", *engine.task.metrics)}
        columns |= {f"{tag}{name}": values for name, values in sums.items()}
    return columns, torch.cat(models) if last else None


def client_table(engine: Engine, round: int, columns: Columns, steps: Ints, active: Ints, failed: Ints) -> pa.Table:
    """The rows of clients.parquet for one evaluation.

    Losses become means over the client's samples; metrics stay sums, as `personal_correct`. A client without samples
    has null there, and so has everybody for the global model of an algorithm that has none.
    """
    federation = engine.federation
    count = len(federation)
    sizes = {split: federation.sizes(split) for split in ("train", "val", "test")}
    out: dict[str, pa.Array] = {
        "client": pa.array(federation.ids),
        "group": pa.array(federation.groups if federation.groups is not None else [None] * count, pa.string()),
        "round": pa.array(np.full(count, round, np.int32)),
        **{f"n_{split}": pa.array(n.astype(np.int32)) for split, n in sizes.items()},
    }
    counted = engine.task.metrics.get("correct") is correct and federation.y.dim() == 1
    order = [f"{who}{kind}" for who in ("personal_", "global_", "personal_val_", "global_val_")
             for kind in (*engine.task.metrics, "loss")]  # fmt: skip
    for name in order:
        values = columns[name]
        n = sizes["val" if "_val_" in name else "test"]
        absent = (n == 0) | (np.isnan(values) if name.startswith("global_") and np.isnan(values).all() else False)
        if name.endswith("_loss"):
            values = values / np.maximum(n, 1)
        if counted and name.endswith("_correct"):
            out[name] = pa.array(np.where(absent, 0, values).astype(np.int32), mask=absent)
        else:
            out[name] = pa.array(values, mask=absent)
    out |= {"steps": pa.array(steps.astype(np.int32)), "activations": pa.array(active.astype(np.int32)),
            "failures": pa.array(failed.astype(np.int32))}  # fmt: skip
    out |= {name: pa.array(values) for name, values in columns.items() if name not in order}
    return pa.table(out)


def summary(table: pa.Table) -> dict[str, float]:
    """One number for the federation from each column: weighted by samples, empty clients left out."""
    out: dict[str, float] = {}
    for who in ("personal", "global", "personal_val", "global_val"):
        n = table.column("n_val" if who.endswith("_val") else "n_test").to_numpy().astype(np.float64)
        for column, name in ((f"{who}_correct", f"{who}_accuracy"), (f"{who}_loss", f"{who}_loss")):
            if column not in table.column_names or table.column(column).null_count == len(table):
                continue
            values = table.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
            known = n > 0
            total = values[known].sum() if column.endswith("_correct") else (values * n)[known].sum()
            out[name] = float(total / n[known].sum())
    return out
