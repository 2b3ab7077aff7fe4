"""What becomes of a model: how each layer is computed for many clients, and what a round costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from personafl.algorithms import Algorithm, FedAvg
from personafl.algorithms.dry_run import blank_context, first_step
from personafl.algorithms.extras import trained_task
from personafl.engines.auto import some_samples
from personafl.engines.machine import torch_threads
from personafl.engines.stacked import StackedEngine
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.kernels.together import Together
from personafl.settings import EngineSettings, Local, Schedule
from personafl.states import State
from personafl.tasks import task_of_labels
from personafl.training.arguments import algorithm_of, check_federation, check_model
from personafl.training.job_info import job_info

WHY = {
    "frozen": "not trained: one set of weights for everybody",
    "stacked": "K sets of weights, one pass for the rows of all clients",
    "mapped": "not a layer that can hold K sets of weights: vmap, for it alone",
    "looped": "not a layer that can hold K sets of weights, nor does vmap know it: client after client, for it alone",
}


@dataclass(frozen=True)
class Layer:
    """A layer with parameters, or parameters that the module uses outside of layers."""

    name: str
    kind: str
    parameters: int
    way: str
    """`frozen`, `stacked`, `mapped` or `looped`."""
    why: str


@dataclass(frozen=True)
class Explanation:
    """How a model is computed for many clients, and what a round of an algorithm costs; `print` shows a table.

    Attributes
    ----------
    way, reason
        How the model as a whole is computed for K clients: `stacked` in one pass, `mapped` by vmap, `looped` one client
        after another; and why not a faster way, or None.
    layers
        Every layer with parameters.
    trained, frozen, statistics
        Numbers that clients train; that all share; that batch normalization keeps for each client.
    algorithm, down, up, kept
        Bytes a client gets and sends in a round, and keeps between rounds.
    memory, at_once, cohort
        Bytes that one client takes while it is worked on (a generous guess), how many clients fit in `engine.memory`,
        and how many are active in a round.
    """

    model: str
    way: str
    reason: str | None
    layers: tuple[Layer, ...]
    trained: int
    frozen: int
    statistics: int
    algorithm: str
    down: int
    up: int
    kept: int
    memory: int
    at_once: int
    cohort: int

    def __repr__(self) -> str:
        rows = [
            ("layer", "kind", "parameters", "way"),
            *((r.name, r.kind, f"{r.parameters:,}", r.way) for r in self.layers),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        table = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
        ways = [
            f"  {way}: {WHY[way]}" for way in WHY if self.way == "stacked" and any(r.way == way for r in self.layers)
        ]
        return "\n".join([*self._head(), *table, *ways, *self._costs()])

    def _head(self) -> list[str]:
        whole = {
            "stacked": "one pass for the rows of all clients",
            "mapped": "vmap of the whole model",
            "looped": "one client after another",
        }
        extra = f", {self.frozen:,} frozen" if self.frozen else ""
        extra += f", {self.statistics:,} statistics of batch normalization" if self.statistics else ""
        head = [f"{self.model}: {self.trained:,} trained numbers{extra}", f"  {self.way}: {whole[self.way]}"]
        return head + ([f"  because {self.reason}"] if self.reason else [])

    def _costs(self) -> list[str]:
        chunks, together = -(-self.cohort // self.at_once), min(self.cohort, self.at_once)
        parts = "" if chunks == 1 else f", so {chunks} parts one after another"
        return [
            f"A round of {self.algorithm}, {self.cohort} clients:",
            f"  traffic  {_size(self.down)} down and {_size(self.up)} up a client, "
            f"{_size(self.cohort * (self.down + self.up))} in all",
            f"  memory   about {_size(self.memory)} a client, {_size(together * self.memory)} at once{parts}",
            f"  kept     {_size(self.kept)} a client between rounds",
        ]


def explain(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm | str | None = None,
    *,
    local: Local | None = None,
    schedule: Schedule | None = None,
    engine: EngineSettings | None = None,
) -> Explanation:
    """Say of each layer how it is computed for many clients, why, and what a round costs in memory and traffic.

    Nothing is trained; the module is tried on a few samples, for three clients together and one by one.

    Examples
    --------
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> found = pf.explain(nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10)), fed, "ditto")
    >>> found.way, [(layer.name, layer.way, layer.parameters) for layer in found.layers]
    ('stacked', [('0', 'stacked', 650), ('1', 'stacked', 20)])
    >>> found.down, found.up, found.kept
    (2680, 2680, 2680)
    """
    check_federation(federation)
    check_model(module)
    chosen = FedAvg() if algorithm is None else algorithm_of(algorithm)
    task = Task(module, task_of_labels(federation.y))
    return explain_task(task, federation, chosen, local or Local(), schedule or Schedule(), engine or EngineSettings())


def explain_task(
    task: Task, federation: Federation, algorithm: Algorithm, local: Local, schedule: Schedule, engine: EngineSettings
) -> Explanation:
    """`explain` for everything that a job is made of."""
    task = trained_task(algorithm, task)
    with torch_threads(1):
        way = task.way(some_samples(federation, engine.device))
    cohort = schedule.cohort_size(len(federation))
    traffic = _traffic(task, federation, algorithm, local)
    stacked = StackedEngine(task, federation, local, 0, engine.memory, 1, engine.device)
    samples = int(local.batch_sizes(federation.sizes("train")).max(initial=1))
    memory = stacked._bytes_per_client(samples, 6 + traffic["kept"] // max(4 * task.size, 1))
    return Explanation(
        model=type(task.template).__name__,
        way=way.way,
        reason=way.reason,
        layers=tuple(_layers(task, way)),
        trained=task.size,
        frozen=sum(p.numel() for p in task.template.parameters() if not p.requires_grad),
        statistics=task.full_size - task.size,
        algorithm=algorithm.about.name,
        memory=memory,
        at_once=stacked._chunk_size(memory) if way.way != "looped" else 1,
        cohort=cohort,
        **traffic,
    )


def _layers(task: Task, way: Together) -> list[Layer]:
    ways: Mapping[str, str] = way.models[True].ways if way.models else {}
    found = []
    for path, module in task.template.named_modules():
        own = dict(module.named_parameters(recurse=False))
        apart = {name: p for name, p in own.items() if f"{path}.{name}".strip(".") in ways}  # outside of layers
        inside = {name: p for name, p in own.items() if name not in apart}
        for name, parameter in apart.items():
            where = f"{path}.{name}".strip(".")
            found.append(Layer(where, "parameter", parameter.numel(), ways[where], WHY[ways[where]]))
        if inside:
            how = _way_of(path, inside, ways, way.way)
            why = WHY[how] if how == "frozen" or way.way == "stacked" else way.reason or ""
            count = sum(p.numel() for p in inside.values())
            found.append(Layer(path or "(the model)", type(module).__name__, count, how, why))
    return found


def _way_of(path: str, own: Mapping[str, Tensor], ways: Mapping[str, str], whole: str) -> str:
    if not any(p.requires_grad for p in own.values()):
        return "frozen"
    parents = [path, *(path.rsplit(".", i)[0] for i in range(1, path.count(".") + 1)), ""]
    return next((ways[parent] for parent in parents if parent in ways), whole)


def _traffic(task: Task, federation: Federation, algorithm: Algorithm, local: Local) -> dict[str, int]:
    """Bytes that a client gets, sends and keeps, by running its program on gradients of zero."""
    algorithm = algorithm.prepare(job_info(task, len(federation), local, federation.groups))
    sent = algorithm.send(algorithm.new_server(task.theta0, len(federation)), torch.zeros(1, dtype=torch.int64))
    mine = sent.one(0)
    own = algorithm.new_client(task.theta0, mine)
    carry, _ = first_step(algorithm, local, own, mine)
    kept, up = algorithm.finish(own, carry, mine, blank_context(algorithm, local))
    return {"down": sent.bytes_per_client(), "up": _bytes(up), "kept": _bytes(kept)}


def _bytes(state: State) -> int:
    return int(sum(np.prod(t.shape, dtype=np.int64) * t.element_size() for t in state.values()))


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(2680), _size(3_400_000)
    ('2.7 kB', '3.4 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count >= 10 * size else f"{count / size:.2g} {unit}"
    return f"{count} bytes"
