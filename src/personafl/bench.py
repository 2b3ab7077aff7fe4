"""`personafl bench`: a round on each engine, beside hand-written references in the same process.

The references do the same arithmetic on the same samples: a tight Python loop over clients with torch autograd,
and batched matrix products with the gradient written out by hand, which bounds what stacking can reach. All are
timed in turn, round after round, so that a noisy machine disturbs all of them alike. Only ratios mean anything.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from personafl.algorithms import Ditto, FedAvg, Local, SelfFL
from personafl.algorithms.base import Sent
from personafl.engines import ENGINES, Engine, Work
from personafl.engines.base import cores, torch_threads
from personafl.federation import Federation
from personafl.folder import RunFolder
from personafl.models import Mclr, Mlp, initialize
from personafl.runner import Runner, Schedule
from personafl.streams import generator
from personafl.task import Task


@dataclass(frozen=True)
class Job:
    """A round to be timed."""

    name: str
    about: str
    clients: int
    active: int
    steps: int
    batch: int
    features: int
    hidden: int | None

    def federation(self) -> Federation:
        """Random samples: the time of a round does not depend on their values."""
        draw = generator(0, f"bench {self.name}")
        if self.clients == self.active:
            sizes = np.full(self.clients, 5 * self.batch)
        else:  # power law, as in the FedProx split of MNIST
            share = draw.lognormal(0.0, 2.0, self.clients)
            sizes = np.minimum(10 + (59 * self.clients * share / share.sum()).astype(np.int64), 5000)
        owner = np.repeat(np.arange(self.clients), sizes)
        x = draw.standard_normal((len(owner), self.features), np.float32)
        y = draw.integers(0, 10, len(owner))
        return Federation.from_arrays(x, y, clients=owner, splits=(0.9, 0.0, 0.1), classes=10, name=self.name)

    def task(self) -> Task:
        model = Mclr() if self.hidden is None else Mlp((self.hidden,))
        return Task(initialize(model, (self.features,), 10, 0))


JOBS = (
    Job("small", "100 clients × 10 steps, MLP 60-20-10", 100, 100, 10, 10, 60, 20),
    Job("mnist", "1,000 clients, 100 active × 20 steps, logistic regression 784-10", 1000, 100, 20, 10, 784, None),
)


def run_bench(
    repeat: int = 9, threads: int | None = None, progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Time every job; a dictionary for each, with milliseconds and ratios."""
    return [_bench(job, repeat, threads or cores(), progress) for job in JOBS]


def _bench(job: Job, repeat: int, threads: int, progress: Callable[[str], None] | None) -> dict[str, Any]:
    if progress is not None:
        progress(f"{job.name}: {job.about}")
    federation, task = job.federation(), job.task()
    local = Local(lr=0.03, batch_size=job.batch, steps=job.steps)
    engines = {name: kind(task, federation, local, 0, threads=threads) for name, kind in ENGINES.items()}
    schedule = Schedule(rounds=10**6, activity=job.active / job.clients, eval_every=0, checkpoint_every=0)
    ids = schedule.cohort(0, 1, job.clients)
    index, count = _index(engines["loop"], ids)
    work = Work(FedAvg(), 1, "train", ids, _own(task, len(ids)), Sent({"theta": task.theta0}))
    candidates: dict[str, tuple[int, Callable[[], Any]]] = {
        "hand-written batched": (threads, lambda: _by_hand(job, task, federation, index, count)),
        "tight python loop": (1, lambda: _tight_loop(job, task, federation, index, count)),
        "stacked engine": (threads, lambda: engines["stacked"].run(work)),
        "loop engine": (1, lambda: engines["loop"].run(work)),
    }
    _agree(job, task, federation, index, count, engines["stacked"], work)
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in (FedAvg(), Ditto(), SelfFL(use_steps=False)):
            runner = Runner(algorithm, engines["stacked"], schedule, RunFolder(Path(folder)), {})
            candidates[f"round of {algorithm.name}"] = (threads, runner.step)
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(repeat + 2):
            for name, (count_threads, call) in candidates.items():
                with torch_threads(count_threads):
                    begun = time.perf_counter()
                    result = call()
                    seconds = time.perf_counter() - begun
                if turn < 2:
                    continue
                times[name].append(1e3 * seconds)
                if name == "round of fedavg":
                    shares.append(1 - result["clients"] / seconds)
    best = {name: min(values) for name, values in times.items()}
    return {
        "job": job.name,
        "about": job.about,
        "threads": threads,
        "repeat": repeat,
        "milliseconds": {n: {"min": min(v), "median": float(np.median(v))} for n, v in times.items()},
        "stacked_over_hand": best["stacked engine"] / best["hand-written batched"],
        "loop_over_stacked": best["tight python loop"] / best["stacked engine"],
        "runner_overhead": float(np.median(shares)),
        "ditto_over_fedavg": best["round of ditto"] / best["round of fedavg"],
        "selffl_over_fedavg": best["round of selffl"] / best["round of fedavg"],
    }


def tables(results: list[dict[str, Any]]) -> list[Table]:
    """The results for a terminal."""
    out = []
    for result in results:
        caption = (
            f"{result['threads']} threads (loops: 1). stacked = {result['stacked_over_hand']:.2f} × hand-written; "
            f"{result['loop_over_stacked']:.1f} × faster than the tight loop; the runner itself takes "
            f"{result['runner_overhead']:.1%} of a round; at equal steps a round of ditto takes "
            f"{result['ditto_over_fedavg']:.2f} ×, of selffl {result['selffl_over_fedavg']:.2f} × one of fedavg"
        )
        table = Table("", "min ms", "median ms", "× hand-written", title=result["about"], caption=caption)
        base = result["milliseconds"]["hand-written batched"]["min"]
        for name, ms in result["milliseconds"].items():
            table.add_row(name, f"{ms['min']:.1f}", f"{ms['median']:.1f}", f"{ms['min'] / base:.2f}")
        out.append(table)
    return out


def _own(task: Task, count: int) -> dict[str, Tensor]:
    return {n: v.expand(count, *v.shape).clone() for n, v in FedAvg().new_client(task.theta0).items()}


def _index(engine: Engine, ids: Any) -> tuple[Tensor, Tensor]:
    """The samples of every client's every step, as the engines draw them."""
    work = Work(FedAvg(), 1, "train", ids, {}, Sent({}))
    plan = engine._plan(work, engine._keys(work), engine.local.default_steps(engine.federation.sizes("train")[ids]))
    return torch.from_numpy(plan.positions), torch.from_numpy(plan.counts)


def _agree(
    job: Job, task: Task, federation: Federation, index: Tensor, count: Tensor, engine: Engine, work: Work
) -> None:
    """The references are only worth something if they compute the same."""
    theta = engine.run(work).up["theta"]
    for other in (_by_hand, _tight_loop):
        torch.testing.assert_close(other(job, task, federation, index, count), theta, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def _by_hand(job: Job, task: Task, federation: Federation, index: Tensor, count: Tensor) -> Tensor:
    """Batched matrix products with the gradient written out, weights in one contiguous tensor per layer."""
    clients, lr = len(index), 0.03
    layers = [v.expand(clients, *v.shape).contiguous() for v in (p for p in task.split(task.theta0).values())]
    share = (torch.arange(job.batch) < count[..., None]).float() / count[..., None]
    for s in range(job.steps):
        flat = index[:, s].flatten()
        x = federation.x.index_select(0, flat).view(clients, job.batch, -1)
        y = federation.y.index_select(0, flat).view(clients, job.batch, 1)
        inputs = [x]
        for i in range(0, len(layers), 2):
            z = torch.baddbmm(layers[i + 1].unsqueeze(1), inputs[-1], layers[i].transpose(1, 2))
            inputs.append(z.relu_() if i + 2 < len(layers) else z)
        delta = inputs.pop().softmax(-1)
        delta.scatter_add_(2, y, torch.full_like(delta[..., :1], -1.0)).mul_(share[:, s, :, None])
        for i in range(len(layers) - 2, -1, -2):
            before = inputs.pop()
            below = torch.bmm(delta, layers[i]).mul_(before > 0) if i else delta
            layers[i].baddbmm_(delta.transpose(1, 2), before, alpha=-lr)
            layers[i + 1].sub_(delta.sum(1), alpha=lr)
            delta = below
    return torch.cat([layer.flatten(1) for layer in layers], 1)


def _tight_loop(job: Job, task: Task, federation: Federation, index: Tensor, count: Tensor) -> Tensor:
    """What a careful person writes without stacking: one client after another, functional layers, no DataLoader."""
    out = []
    for k in range(len(index)):
        layers = [p.clone().requires_grad_() for p in task.split(task.theta0).values()]
        for s in range(job.steps):
            samples = index[k, s, : count[k, s]]
            hidden = federation.x[samples]
            for i in range(0, len(layers), 2):
                hidden = F.linear(hidden, layers[i], layers[i + 1])
                hidden = hidden.relu() if i + 2 < len(layers) else hidden
            grads = torch.autograd.grad(F.cross_entropy(hidden, federation.y[samples]), layers)
            with torch.no_grad():
                for layer, grad in zip(layers, grads, strict=True):
                    layer.sub_(grad, alpha=0.03)
        out.append(torch.cat([layer.detach().flatten() for layer in layers]))
    return torch.stack(out)
