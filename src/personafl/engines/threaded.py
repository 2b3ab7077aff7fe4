"""The stacked engine in several threads, each with a part of the clients.

Where steps are long, as with convolutions, torch's own threads wait for each other at every operation; clients do not.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.engines.base import Split
from personafl.engines.stacked import StackedEngine
from personafl.engines.work import Result, Work, concatenate
from personafl.kernels.per_sample import PerSample
from personafl.states import Ints, rows

Part = TypeVar("Part")


class ThreadedEngine(StackedEngine):
    """Runs client programs in `threads` threads with one torch thread each."""

    name = "threaded"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        share, device = max(1, self.memory // self.threads), str(self.device)
        # torch swaps a module's parameters while it is called, so each thread has modules of its own.
        self._workers = [
            StackedEngine(self.task.copy(), self.federation, self.local, self.seed, share, 1, device)
            for _ in range(self.threads)
        ]
        # The number of torch threads belongs to the thread that sets it.
        self._pool = ThreadPoolExecutor(self.threads, "personafl", initializer=torch.set_num_threads, initargs=(1,))

    def protect_samples(self, by: PerSample | None) -> None:
        super().protect_samples(by)
        for engine in self._workers:
            engine.protect_samples(by)

    def run(self, work: Work) -> Result:
        parts = self._deal(work.ids, "train")
        results = self._each(parts, lambda engine, at: engine.run(_part(work, at)))
        back = torch.from_numpy(np.argsort(np.concatenate(parts), kind="stable")).to(self.device)
        whole = concatenate(results)
        own, up = (rows(state, back) for state in (whole.own, whole.up))
        steps, gradients = (counts.index_select(0, back) for counts in (whole.steps, whole.gradients))
        return Result(own, up, steps, gradients)

    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        def part(engine: StackedEngine, at: Ints) -> dict[str, NDArray[np.float64]]:
            mine = theta if theta.dim() == 1 else theta[torch.from_numpy(at).to(theta.device)]
            return engine.evaluate(mine, ids[at], split)

        parts = self._deal(ids, split)
        found = self._each(parts, part)
        back = np.argsort(np.concatenate(parts), kind="stable")
        return {name: np.concatenate([sums[name] for sums in found])[back] for name in found[0]}

    def _own_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        def part(engine: StackedEngine, at: Ints) -> Tensor:
            return engine._own_statistics(theta[torch.from_numpy(at).to(theta.device)], ids[at])

        parts = self._deal(ids, "train")
        back = torch.from_numpy(np.argsort(np.concatenate(parts), kind="stable"))
        return torch.cat(self._each(parts, part))[back.to(theta.device)]

    def _each(self, parts: list[Ints], function: Callable[[StackedEngine, Ints], Part]) -> list[Part]:
        return list(self._pool.map(function, self._workers, parts))

    def _deal(self, ids: Ints, split: Split) -> list[Ints]:
        """Rows for each thread: the largest clients are dealt out first."""
        order = np.argsort(-self.federation.sizes(split)[ids], kind="stable")
        return [np.sort(order[i :: self.threads]) for i in range(min(self.threads, max(len(ids), 1)))]


def _part(work: Work, at: Ints) -> Work:
    own = rows(work.own, torch.from_numpy(at))
    return Work(work.program, work.round, work.purpose, work.ids[at], own, work.sent.rows(at))
