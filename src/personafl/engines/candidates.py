"""The engines that a run may take, as candidates for trials, and what is known of its steps beforehand."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from personafl.algorithms.base import Context, Gradient, Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines.base import Engine
from personafl.engines.loop import LoopEngine
from personafl.engines.machine import cores, torch_threads
from personafl.engines.prediction import Shapes
from personafl.engines.stacked import StackedEngine
from personafl.engines.threaded import ThreadedEngine
from personafl.engines.trials import MOST, SHARE, Candidate, Check, Unfit
from personafl.engines.work import Work
from personafl.federation import Federation
from personafl.inputs import Inputs, each_input, some
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local
from personafl.states import Ints, State

VMAP_NEEDS, VMAP_SECONDS = "torch.fx.experimental.symbolic_shapes", 2.0
"""What torch imports when vmap takes a gradient for the first time, and the processor seconds that this may take."""
TRIAL_GRADIENTS = 10
"""What it takes to find out how a model is computed for many clients, see `kernels.together`."""

ENGINES: dict[str, type[Engine]] = {"stacked": StackedEngine, "threaded": ThreadedEngine, "loop": LoopEngine}

Name = tuple[str, int]
"""An engine and its number of threads."""


@dataclass(frozen=True)
class RunSteps:
    """The local training of a run, for which an engine is to be chosen; 0 rounds where nobody knows how many."""

    settings: EngineSettings
    task: Task
    federation: Federation
    local: Local
    seed: int
    cohort: int = 16
    rounds: int = 0

    @cached_property
    def total(self) -> float:
        """Steps of all clients in all rounds."""
        return self.rounds * self.cohort * float(self.local.default_steps(self.federation.sizes("train")).mean())

    @cached_property
    def clients(self) -> Ints:
        """Clients of middling size stand for all; a few are enough to see what stacking brings."""
        by_size = np.argsort(self.federation.sizes("train"), kind="stable")
        count = min(len(by_size), max(1, self.cohort), 32)
        return by_size[max(0, len(by_size) // 2 - count // 2) :][:count].astype(np.int64)

    @property
    def names(self) -> list[Name]:
        """Every engine and number of threads that this machine offers."""
        threads, many = self.settings.threads, cores()
        names = [("loop", 1), ("stacked", 1), ("threaded", many), ("stacked", many), ("loop", many)]
        if threads is not None:
            names = [("loop", threads), ("stacked", threads), ("threaded", threads)]
        on_cpu = self.settings.device == "cpu"
        return [(name, k) for name, k in dict.fromkeys(names) if name != "threaded" or (k > 1 and on_cpu)]

    # --- before anything is timed ----------------------------------------------------------------------------

    def shapes(self) -> Shapes:
        """What a step is in numbers; whether the model stacks is found out where the run is worth it."""
        size = self.task.work_size(some(self.federation.x, slice(1)))
        batch = self.samples
        plain = LoopEngine(self.task, self.federation, self.local, self.seed, self.settings.memory)
        fit = plain._chunk_size(plain._bytes_per_client(batch, 6))
        shapes = Shapes(6.0 * size.products * batch, size.calls, min(self.cohort, len(self.federation)), fit, None)
        return Shapes(shapes.flops, shapes.calls, shapes.clients, fit, self._stacks(shapes))

    @property
    def samples(self) -> int:
        """Of a step of one client."""
        largest = int(np.median(self.federation.sizes("train")))
        return min(largest, int(self.local.batch_sizes(np.array([largest]))[0]))

    def _stacks(self, shapes: Shapes) -> bool | None:
        samples = some_samples(self.federation, self.settings.device)
        if not self.task.knows_way(samples) and not self.affords(TRIAL_GRADIENTS, shapes.loop):
            return None
        with torch_threads(1):  # on a busy machine, threads that wait for each other take seconds
            way = self.task.way(samples).way
        return True if way == "stacked" else None if way == "mapped" else False

    def affords(self, steps: float, each: float) -> bool:
        """Whether the run is long enough to spend so many steps of a client on the choice of its engine."""
        return steps <= SHARE * self.total if self.rounds else steps * each <= MOST

    # --- trials ------------------------------------------------------------------------------------------------

    def candidate(self, name: str, threads: int) -> Candidate:
        """An engine that can be tried on steps of SGD; it is made when it is tried."""
        made: list[Engine] = []
        sent = Sent({"theta": self.task.theta0.to(self.settings.device)})

        def run(clients: int, steps: int, check: Check) -> None:
            made[:] = made or [self.engine(name, threads)]
            ids = np.sort(self.clients[(len(self.clients) - clients) // 2 :][:clients])
            with torch_threads(threads):
                made[0].run(Work(Trial(steps, check=check), 1, "probe", ids, {}, sent))
            if made[0].device.type == "cuda":
                torch.cuda.synchronize()

        if name == "loop":
            return Candidate(name, threads, run)
        return Candidate(name, threads, run, self._stack, self._preparation)

    def engine(self, name: str, threads: int | None) -> Engine:
        """An engine with all that the run has."""
        memory, device = self.settings.memory, self.settings.device
        return ENGINES[name](self.task, self.federation, self.local, self.seed, memory, threads, device)

    def why_not(self) -> str | None:
        """Why the model cannot run for many clients at once, or None."""
        samples, y = some_samples(self.federation, self.settings.device), self.federation.y[:2]
        with torch_threads(1):
            return self.task.unstackable(samples, y.to(self.settings.device))

    def _stack(self) -> None:
        reason = self.why_not()
        if reason is not None:
            raise Unfit(f"the model does not stack: {reason}")

    def _preparation(self, gradient: float) -> float:
        """Processor seconds, where the gradient of a client takes so many."""
        samples = some_samples(self.federation, self.settings.device)
        if not self.task.knows_way(samples):
            return TRIAL_GRADIENTS * gradient
        return VMAP_SECONDS if self.task.way(samples).way == "mapped" and VMAP_NEEDS not in sys.modules else 0.0


def some_samples(federation: Federation, device: str) -> Inputs:
    """A few that differ, from all over the data: what mixes samples is seen where they do."""
    at = torch.from_numpy(np.unique(np.linspace(0, len(federation.y) - 1, 9).astype(np.int64)))
    return each_input(lambda part: part.index_select(0, at).to(device), federation.x)


@dataclass(frozen=True)
class Trial(FineTune):
    """Steps of SGD that ask before each whether to go on."""

    check: Check = field(kw_only=True)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        self.check()
        return super().step(carry, sent, grad, ctx)
