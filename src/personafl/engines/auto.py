"""Which engine, and how many threads: measured on this model, this data and this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import Context, Gradient, Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines.base import Engine
from personafl.engines.loop import LoopEngine
from personafl.engines.machine import cores, torch_threads
from personafl.engines.stacked import StackedEngine
from personafl.engines.threaded import ThreadedEngine
from personafl.engines.trials import Candidate, Check, Trials, Unfit
from personafl.engines.work import Work
from personafl.errors import ConfigError, ModelError
from personafl.federation import Federation
from personafl.inputs import Inputs, each_input
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local
from personafl.states import State

VMAP_NEEDS, VMAP_SECONDS = "torch.fx.experimental.symbolic_shapes", 2.0
"""What torch imports when vmap takes a gradient for the first time, and the processor seconds that this may take."""
TRIAL_GRADIENTS = 10
"""What it takes to find out how a model is computed for many clients, see `kernels.together`."""

ENGINES: dict[str, type[Engine]] = {"stacked": StackedEngine, "threaded": ThreadedEngine, "loop": LoopEngine}


@dataclass(frozen=True)
class Choice:
    """An engine's name and thread count, and why: what was seen of each candidate, or a reason in words."""

    engine: str
    threads: int
    reason: str


def make_engine(
    settings: EngineSettings,
    task: Task,
    federation: Federation,
    local: Local,
    seed: int,
    cohort: int = 16,
    rounds: int = 0,
) -> tuple[Engine, Choice]:
    """Build the engine that is asked for; `auto` tries the others and takes the fastest (`trials.py`).

    Parameters
    ----------
    settings
        Its name, and what it may use.
    cohort, rounds
        The run that it is for: trials may cost a small share of it. Left out, they are short.

    Raises
    ------
    ModelError
        `stacked` is asked for by name and the model cannot be stacked.
    """
    name, memory, threads, device = settings.name, settings.memory, settings.threads, settings.device
    task.precision = settings.precision
    x, y = _two_samples(federation, device)
    if name not in (*ENGINES, "auto"):
        raise ConfigError(f"engine = {name!r}: known engines are auto, {', '.join(ENGINES)}")
    with torch_threads(1):  # on a busy machine, threads that wait for each other take seconds
        task.check(x, y)
        why_not = task.unstackable(some_samples(federation, device), y) if name in ("stacked", "threaded") else None
    if why_not is not None:
        raise ModelError(
            f"{type(task.template).__name__} cannot run on the {name} engine ({why_not}): use engine = 'loop'"
        )
    if name == "auto":
        tried = trials(settings, task, federation, local, seed, cohort, rounds)
        best = tried.fastest()
        choice = Choice(best.name, best.threads, tried.reason())
    else:
        choice = Choice(name, ENGINES[name].default_threads if threads is None else threads, "asked for")
    engine = ENGINES[choice.engine](task, federation, local, seed, memory, choice.threads, device)
    return engine, choice


def _two_samples(federation: Federation, device: str) -> tuple[Inputs, Tensor]:
    """One of them with the largest label: a model may have too few outputs for that one."""
    y = federation.y
    largest = int(y.flatten(1).amax(1).argmax() if y.dim() > 1 else y.argmax())
    which = torch.tensor(sorted({0, largest or min(1, len(y) - 1)}))
    return each_input(lambda part: part[which].to(device), federation.x), y[which].to(device)


def some_samples(federation: Federation, device: str) -> Inputs:
    """A few that differ, from all over the data: what mixes samples is seen where they do."""
    at = torch.from_numpy(np.unique(np.linspace(0, len(federation.y) - 1, 9).astype(np.int64)))
    return each_input(lambda part: part.index_select(0, at).to(device), federation.x)


def trials(
    settings: EngineSettings, task: Task, federation: Federation, local: Local, seed: int, cohort: int = 16,
    rounds: int = 0,
) -> Trials:  # fmt: skip
    """Every engine and number of threads that this machine offers, ready to be tried on steps of SGD."""
    memory, threads, device = settings.memory, settings.threads, settings.device
    sizes = federation.sizes("train")
    # Clients of middling size stand for all; a few are enough to see what stacking brings.
    by_size = np.argsort(sizes, kind="stable")
    clients = min(len(by_size), max(1, cohort), 32)
    chosen = by_size[max(0, len(by_size) // 2 - clients // 2) :][:clients].astype(np.int64)
    sent = Sent({"theta": task.theta0.to(device)})

    @cache
    def why_not() -> str | None:
        with torch_threads(1):
            return task.unstackable(some_samples(federation, device), federation.y[:2].to(device))

    def stack() -> None:
        if why_not() is not None:
            raise Unfit(f"the model does not stack: {why_not()}")

    def preparation(gradient: float) -> float:
        """Processor seconds, where the gradient of a client takes so many."""
        samples = some_samples(federation, device)
        if not task.knows_way(samples):
            return TRIAL_GRADIENTS * gradient
        return VMAP_SECONDS if task.way(samples).way == "mapped" and VMAP_NEEDS not in sys.modules else 0.0

    def candidate(name: str, count: int) -> Candidate:
        engine = ENGINES[name](task, federation, local, seed, memory, count, device)

        def run(clients: int, steps: int, check: Check) -> None:
            ids = np.sort(chosen[(len(chosen) - clients) // 2 :][:clients])
            with torch_threads(count):
                engine.run(Work(_Trial(steps, check=check), 1, "probe", ids, {}, sent))
            if engine.device.type == "cuda":
                torch.cuda.synchronize()

        return Candidate(name, count, run) if name == "loop" else Candidate(name, count, run, stack, preparation)

    names = [("loop", 1), ("stacked", 1), ("threaded", cores()), ("stacked", cores()), ("loop", cores())]
    if threads is not None:
        names = [("loop", threads), ("stacked", threads), ("threaded", threads)]
    possible = [(n, k) for n, k in dict.fromkeys(names) if n != "threaded" or (k > 1 and device == "cpu")]
    run_steps = rounds * cohort * float(local.default_steps(sizes).mean())
    return Trials([candidate(*one) for one in possible], clients, run_steps)


@dataclass(frozen=True)
class _Trial(FineTune):
    """Steps of SGD that ask before each whether to go on."""

    check: Check = field(kw_only=True)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        self.check()
        return super().step(carry, sent, grad, ctx)
