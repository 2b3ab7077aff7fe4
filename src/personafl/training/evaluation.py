"""Every client's global and personalized model, measured on its validation and test data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent
from personafl.engines.base import Engine
from personafl.engines.measuring import measure_held_back, measure_split
from personafl.engines.work import Work
from personafl.federation import Federation
from personafl.federation.arrays import SPLITS, Split
from personafl.kernels.task import Task
from personafl.metrics.measures import ACCURACY, LOSS, Measure
from personafl.states import Ints, State
from personafl.storage.client_store import ClientStore
from personafl.tasks.base import column_of
from personafl.training.client_states import states

Columns = dict[str, NDArray[Any]]

AT_ONCE = 65_536
"""Clients that are worked on at once where they have one model in common."""
WHO = ("personal", "global", "personal_val", "global_val", "personal_held")
"""Whose model a number is about, and on which data where it is not test data."""
MEGABYTES = 64  # more at once is no faster


@dataclass(frozen=True)
class ClientIndex:
    """What is known of the clients without their data: names, groups, and how many samples each has of each split.

    `counted` says whether a metric called `correct` is a number of samples.
    """

    ids: tuple[str, ...]
    groups: tuple[str, ...] | None
    sizes: dict[Split, Ints]
    counted: bool

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, federation: Federation) -> ClientIndex:
        """What is known of the clients of a federation."""
        return cls(federation.ids, federation.groups, {s: federation.sizes(s) for s in SPLITS}, federation.y.dim() == 1)


@dataclass(frozen=True)
class ServerSnapshot:
    """The server after a round, as clients see it when they make and measure their personalized models.

    Attributes
    ----------
    last
        Whether this is after the last round.
    send
        What the server sends to these clients for their evaluation.
    common
        The one model that serves everybody, where the algorithm has one.
    theta0
        The initial weights: a client that was never active may have to do with them.
    kept
        Whose models will be wanted at the end (a mask); None for everybody's.
    """

    round: int
    last: bool
    send: Callable[[Ints], Sent]
    common: Tensor | None
    theta0: Tensor
    kept: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Personal:
    """Personalized models of some clients, (K, P + S) or one (P,) for all of them, and what the algorithm reports.

    S numbers are the statistics of batch normalization, each client's own; most models keep none.

    `gradients` are those that a program before evaluation computed for each; None where there was none.
    """

    ids: Ints
    theta: Tensor
    report: State
    gradients: Tensor | None = None


def personal_models(
    algorithm: Algorithm, engine: Engine, store: ClientStore, snapshot: ServerSnapshot, ids: Ints | None = None
) -> Iterator[Personal]:
    """The personalized model of every client, or of those that are named, some clients at a time."""
    for some in _parts(np.arange(len(engine.federation)) if ids is None else ids, _fitting(engine)):
        sent = snapshot.send(some)
        own = states(algorithm, engine, store, snapshot.theta0, some, sent)
        yield personalize(algorithm, engine, sent, some, own, snapshot.round, snapshot.last)


def all_models(
    algorithm: Algorithm, engine: Engine, store: ClientStore, snapshot: ServerSnapshot, ids: Ints
) -> Iterator[Personal]:
    """As `personal_models`, in another order: clients that were never active come last, with the model they share."""
    never_active = ids[~store.known(ids)]
    shared = shared_model(algorithm, engine.task, snapshot, never_active)
    if shared is None:
        yield from personal_models(algorithm, engine, store, snapshot, ids)
        return
    yield from personal_models(algorithm, engine, store, snapshot, ids[store.known(ids)])

    def report(own: State, sent: State) -> State:
        return algorithm.report(algorithm.new_client(snapshot.theta0, sent), sent)

    for some in _parts(never_active, AT_ONCE):
        yield Personal(some, shared, engine.map(report, {}, snapshot.send(some), len(some)))


def shared_model(algorithm: Algorithm, task: Task, snapshot: ServerSnapshot, never_active: Ints) -> Tensor | None:
    """The personalized model that all clients have who were never active; None where each has its own.

    They differ where a program makes their models from their data before evaluation, where they are made of what is
    sent to each client apart, and where batch normalization goes by statistics of their data.
    """
    if algorithm.evaluation_program(snapshot.last) is not None or not len(never_active) or task.statistic_names:
        return None
    sent = snapshot.send(never_active[:1]).shared
    try:
        theta = algorithm.personal(algorithm.new_client(snapshot.theta0, sent), sent)
    except KeyError:  # what goes to everybody does not do
        return None
    return theta.detach().clone()


def personalize(
    algorithm: Algorithm, engine: Engine, sent: Sent, ids: Ints, own: State, round: int, last: bool
) -> Personal:
    """The personalized models of clients with these states."""
    program, gradients = algorithm.evaluation_program(last), None
    if program is not None:
        result = engine.run(Work(program, round, "evaluation", ids, own, sent))
        own, gradients = result.own, result.gradients
    theta = engine.map(lambda o, s: {"theta": algorithm.personal(o, s)}, own, sent, len(ids))["theta"]
    theta = engine.with_statistics(theta, ids)
    return Personal(ids, theta, engine.map(algorithm.report, own, sent, len(ids)), gradients)


def common_model(engine: Engine, common: Tensor, ids: Ints) -> Iterator[tuple[Ints, Tensor]]:
    """Some clients at a time with the model that serves everybody.

    Where it came without the statistics that it needs, because they may not leave the clients, each has its own.
    """
    for some in _parts(ids, _fitting(engine) if engine.task.lacks_statistics(common) else AT_ONCE):
        yield some, engine.with_statistics(common, some)


def measure(
    algorithm: Algorithm,
    engine: Engine,
    store: ClientStore,
    snapshot: ServerSnapshot,
    ids: Ints | None = None,
    seen: Callable[[Personal], None] = lambda part: None,
) -> Columns:
    """Each client's sum of losses, right answers and other metrics: `personal_*`, `global_*`, and on validation data.

    `personal_held_*` are those on the `n_held` validation samples that are held back from algorithms, if any are.

    All clients are measured, or those that are named. The personalized models go by some at a time, and are shown to
    `seen`. `gradients` are those of the program before evaluation.
    """
    ids = np.arange(len(engine.federation)) if ids is None else ids
    common = snapshot.common
    blocks: list[Columns] = []
    for part in all_models(algorithm, engine, store, snapshot, ids):
        block: Columns = {"": part.ids, **{name: value.cpu().numpy() for name, value in part.report.items()}}
        made = part.gradients
        block["gradients"] = np.zeros(len(part.ids)) if made is None else made.cpu().numpy().astype(np.float64)
        for split, tag in (("test", "personal_"), ("val", "personal_val_")):
            found = measure_split(engine, part.theta, part.ids, split)  # type: ignore[arg-type]
            block |= {f"{tag}{name}": values for name, values in found.items()}
        if engine.local.held_back is not None:
            held = measure_held_back(engine, part.theta, part.ids)
            block |= {"n_held": held.pop("n"), **{f"personal_held_{name}": values for name, values in held.items()}}
        blocks.append(block)
        seen(part)
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    order = np.argsort(columns.pop(""), kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    for split, tag in (("test", "global_"), ("val", "global_val_")):
        if common is None:
            columns |= {f"{tag}{name}": np.full(len(ids), np.nan) for name in ("loss", *engine.task.kind.columns)}
            continue
        few = common_model(engine, common, ids)
        parts = [measure_split(engine, theta, some, split) for some, theta in few]  # type: ignore[arg-type]
        columns |= {f"{tag}{name}": np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns


def held_back_columns(task: Task) -> list[str]:
    """What `measure` adds where validation data is held back from algorithms."""
    return ["n_held", *(f"personal_held_{name}" for name in ("loss", *task.kind.columns))]


def client_table(
    client_index: ClientIndex, task: Task, round: int, columns: Columns, steps: Ints, active: Ints, failed: Ints,
    gradients: Ints, ids: Ints,
) -> pa.Table:  # fmt: skip
    """The rows of clients.parquet for one evaluation of these clients.

    Losses become means over the client's samples, right answers stay counts (`personal_correct`), other metrics are the
    client's values. A client without samples has null there, and so has one of which a metric has no value, and
    everybody for the global model of an algorithm that has none.

    `gradients` is what the model that is measured has cost the client so far: those of all its training, and those of
    the program before this evaluation; null where it is not known.

    A column `silent` marks clients at other sites that did not answer: they are as clients without samples.
    """
    count, names = len(ids), ids.tolist()
    steps, active, failed, trained = steps[ids], active[ids], failed[ids], gradients[ids]
    columns = dict(columns)
    silent = columns.pop("silent", np.zeros(count, np.bool_))
    spent = trained + np.nan_to_num(columns.pop("gradients")).astype(np.int64)
    sizes: dict[str, Ints] = {split: np.where(silent, 0, client_index.sizes[split][ids]) for split in SPLITS}
    tags: tuple[str, ...] = ("personal_", "global_", "personal_val_", "global_val_")
    if "n_held" in columns:
        tags, sizes = (*tags, "personal_held_"), sizes | {"held": np.where(silent, 0, columns.pop("n_held"))}
    groups = [None] * count if client_index.groups is None else [client_index.groups[i] for i in names]
    out: dict[str, pa.Array] = {
        "client": pa.array([client_index.ids[i] for i in names]),
        "group": pa.array(groups, pa.string()),
        "round": pa.array(np.full(count, round, np.int32)),
        **{f"n_{split}": pa.array(n.astype(np.int32)) for split, n in sizes.items()},
    }
    order = {f"{who}{kind}": kind for who in tags for kind in (*task.kind.columns, "loss")}
    for name, kind in order.items():
        values = columns[name]
        n = sizes["val" if "_val_" in name else "held" if "_held_" in name else "test"]
        absent = (n == 0) | (np.isnan(values) if name.startswith("global_") and np.isnan(values).all() else False)
        if kind == "loss":
            values = values / np.maximum(n, 1)
        elif kind != "correct":
            absent = absent | np.isnan(values)
        if kind == "correct" and client_index.counted:
            out[name] = pa.array(np.where(absent, 0, values).astype(np.int32), mask=absent)
        else:
            out[name] = pa.array(values, mask=absent)
    out |= {"steps": pa.array(steps.astype(np.int32)), "activations": pa.array(active.astype(np.int32)),
            "failures": pa.array(failed.astype(np.int32)),
            "gradients": pa.array(spent, mask=silent | (trained < 0))}  # fmt: skip
    out |= {name: pa.array(values) for name, values in columns.items() if name not in order}
    return pa.table(out)


def summary(table: pa.Table, measures: Sequence[Measure] = (ACCURACY,)) -> dict[str, float]:
    """One number for the federation from each column: weighted by samples, empty clients left out.

    `personal_auc_undefined` counts clients that have data and no value, such as an AUC where there is one class.
    """
    out: dict[str, float] = {}
    for who in WHO:
        split = who.partition("_")[2] or "test"
        n = table.column(f"n_{split}").to_numpy().astype(np.float64) if f"n_{split}" in table.column_names else None
        for measure in (*measures, LOSS):
            column, name = f"{who}_{column_of(measure)}", f"{who}_{measure.name}"
            if n is None or column not in table.column_names or table.column(column).null_count == len(table):
                continue
            values = table.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
            known = n > 0
            if measure.name in ("accuracy", "loss"):
                total = values[known].sum() if measure.name == "accuracy" else (values * n)[known].sum()
                out[name] = float(total / n[known].sum())
                continue
            out[name] = measure.pooled(values, n)
            if missing := int((np.isnan(values) & known).sum()):
                out[f"{name}_undefined"] = missing
    return out


def _fitting(engine: Engine) -> int:
    """Clients whose models are made at once."""
    return max(1, min(engine.memory, MEGABYTES) * 2**20 // (4 * 4 * engine.task.full_size))


def _parts(ids: Ints, many: int) -> Iterator[Ints]:
    for first in range(0, len(ids), many):
        yield ids[first : first + many]
