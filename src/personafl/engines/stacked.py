"""All clients of a cohort at once: parameters are a matrix (K, P), and a step is one batched operation.

Clients are sorted by their number of steps, so that those who are done drop off the end of the matrix: no step is
spent on a client that has finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from personafl.algorithms.base import Sent, State
from personafl.engines.base import (
    ClientFunction,
    Engine,
    Result,
    Split,
    ValidationData,
    Work,
    cores,
    reuse_memory,
)
from personafl.engines.batches import Ints, Plan
from personafl.engines.outside import outside_vmap
from personafl.task import Batch, Objective, Task

Fields = tuple[Tensor, Tensor, Tensor, Tensor]


class StackedEngine(Engine):
    """Runs client programs under `torch.func.vmap`."""

    name = "stacked"
    default_threads = cores()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reuse_memory()

    def _run_chunk(self, work: Work) -> Result:
        program, info, keys = work.program, self._info(work), self._keys(work)
        dims: Any = {**{n: None for n in work.sent.shared}, **{n: 0 for n in work.sent.each}}
        sent = {**work.sent.shared, **work.sent.each}
        validation = _fields(self._padded(work.ids, "val")) if program.uses_validation else None

        def begin(own: State, sent: State, info: State, val: Fields | None) -> tuple[State, Tensor]:
            return program.begin(own, sent, self._context(work, info, self._validation(val)))

        def finish(own: State, carry: State, sent: State, info: State, val: Fields | None) -> tuple[State, State]:
            return program.finish(own, carry, sent, self._context(work, info, self._validation(val)))

        val_dim = None if validation is None else 0
        begun, wanted = vmap(begin, in_dims=(0, dims, 0, val_dim))(work.own, sent, info, validation)
        steps = wanted.cpu().numpy().astype(np.int64)
        order = np.argsort(-steps, kind="stable")
        in_order = bool((order == np.arange(len(order))).all())
        if in_order:
            carry = _private(begun, [*work.own.values(), *sent.values()])
            stepped_sent, stepped_info = sent, info
        else:
            rows = torch.from_numpy(order).to(self.device)
            carry = {name: value.index_select(0, rows) for name, value in begun.items()}
            each = {name: value.index_select(0, rows) for name, value in work.sent.each.items()}
            stepped_sent = {**work.sent.shared, **each}
            stepped_info = {name: value.index_select(0, rows) for name, value in info.items()}

        ordered = Work(program, work.round, work.purpose, work.ids[order], {}, work.sent)
        carry = self._steps(ordered, keys[order], steps[order], carry, stepped_sent, stepped_info, dims)
        if not in_order:
            back = torch.from_numpy(np.argsort(order, kind="stable")).to(self.device)
            carry = {name: value.index_select(0, back) for name, value in carry.items()}
        own, up = vmap(finish, in_dims=(0, 0, dims, 0, val_dim))(work.own, carry, sent, info, validation)
        return Result(own, up, wanted)

    def _steps(
        self, work: Work, keys: NDArray[np.uint64], steps: Ints, carry: State, sent: State, info: State, dims: Any
    ) -> State:
        """All steps of clients that are sorted by their number of steps, longest first."""
        draws, names = work.program.batches_per_step, list(carry)
        plan = self._plan(work, keys, steps)
        drawn = _Drawn(self, plan, self._dropout_keys(keys, plan.counts.shape[1]))
        done: State = {}
        live, step = len(steps), 0
        while step < int(steps.max(initial=0)):
            left = int(np.searchsorted(-steps, -step, side="left"))  # clients with more than `step` steps
            if left < live:
                done = done or {name: torch.empty_like(carry[name]) for name in names}
                for name in names:
                    done[name][left:live] = carry[name][left:live]
                carry = {name: value[:left] for name, value in carry.items()}
                info = {name: value[:left] for name, value in info.items()}
                sent = {name: value[:left] if name in work.sent.each else value for name, value in sent.items()}
                live = left
            until = int(steps[live - 1])  # nobody drops off before

            def segment(
                row: Tensor, carry: State, sent: State, info: State, *, begin: int, end: int, live: int
            ) -> State:
                ctx = self._context(work, info, None)
                for s in range(begin, end):
                    batches = [drawn.batch(d, live) for d in range(s * draws, (s + 1) * draws)]
                    carry = work.program.step(carry, sent, StackedBatches(self.task, batches, row), ctx)
                return carry

            bound = partial(segment, begin=step, end=until, live=live)
            rows = torch.arange(live, device=self.device)
            carry = vmap(bound, in_dims=(0, 0, dims, 0))(rows, carry, sent, info)
            step = until
        if not done:
            return {name: carry[name] for name in names}
        for name in names:
            done[name][:live] = carry[name]
        return done

    def _validation(self, fields: Fields | None) -> ValidationData | None:
        return None if fields is None else ValidationData(self.task, Batch(*fields))

    def _map(self, function: ClientFunction, own: State, sent: Sent, count: int) -> State:
        dims: Any = {**{n: None for n in sent.shared}, **{n: 0 for n in sent.each}}
        # The row number makes sure that vmap sees `count` clients, even where they have no state of their own.
        mapped = vmap(lambda row, own, sent: function(own, sent), in_dims=(0, 0, dims))
        return mapped(torch.arange(count), own, {**sent.shared, **sent.each})

    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        with torch.no_grad():
            if theta.dim() == 1 and not self.task.couples_samples:
                return self._evaluate_together(theta, ids, split)
            return self._evaluate_each(theta, ids, split)

    def _evaluate_together(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """One model for everybody: all samples in long batches, then a sum for each client."""
        sizes, starts = self.federation.sizes(split)[ids], self.federation.starts(split)[ids]
        owner = np.repeat(np.arange(len(ids)), sizes)
        index = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + starts[owner]
        out = {name: np.zeros(len(ids)) for name in ("loss", *self.task.metrics)}
        many = max(1, min(4096, self.memory * 2**20 // self._bytes_per_client(1, 0)))
        for i in range(0, len(index), many):
            x, y = self._gather(torch.from_numpy(index[i : i + many]))
            outputs = self.task.predict(theta, x)
            for name, function in {"loss": self.task.objective, **self.task.metrics}.items():
                values = function(outputs, y).double().cpu().numpy()
                out[name] += np.bincount(owner[i : i + many], values, len(ids))
        return out

    def _evaluate_each(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """A model for each client."""
        out = {name: np.zeros(len(ids)) for name in ("loss", *self.task.metrics)}
        for now, thetas, batch in self._like_sized(theta, ids, split):
            for name, values in self.task.evaluate_stacked(thetas, batch).items():
                out[name][now] = values.double().cpu().numpy()
        return out

    def outputs(self, theta: Tensor, ids: Ints, split: Split) -> Tensor:
        sizes = self.federation.sizes(split)[ids]
        first = np.cumsum(sizes) - sizes
        out: Tensor | None = None
        with torch.no_grad():
            for now, thetas, batch in self._like_sized(theta, ids, split):
                some = self.task.predict_stacked(thetas, batch.x, batch.weight).cpu()
                if out is None:
                    out = some.new_empty((int(sizes.sum()), *some.shape[2:]))
                place = torch.from_numpy(first[now])[:, None] + torch.arange(some.shape[1])
                real = batch.weight.cpu() > 0
                out[place[real]] = some[real]
        return torch.empty(0) if out is None else out

    def _like_sized(self, theta: Tensor, ids: Ints, split: Split) -> Iterator[tuple[Ints, Tensor, Batch]]:
        """Clients of like size together, so that little is spent on padding: which, their vectors, their samples."""
        sizes = self.federation.sizes(split)[ids]
        order = np.argsort(-sizes, kind="stable")
        order = order[sizes[order] > 0]
        while len(order):
            longest = int(sizes[order[0]])
            like = int(np.searchsorted(-sizes[order], -(longest // 2), side="left"))
            now = order[: max(1, min(like, self._chunk_size(self._bytes_per_client(longest, 2))))]
            order = order[len(now) :]
            rows = torch.from_numpy(now).to(self.device)
            thetas = theta.expand(len(now), -1) if theta.dim() == 1 else theta.to(self.device).index_select(0, rows)
            yield now, thetas, self._padded(ids[now], split)


class _Drawn:
    """The batches of all steps, fetched when their step comes."""

    def __init__(self, engine: Engine, plan: Plan, dropout: Tensor) -> None:
        self._gather, self._device = engine._gather, engine.device
        self._index = torch.from_numpy(np.ascontiguousarray(plan.positions.swapaxes(0, 1)))
        counts = torch.from_numpy(np.array(plan.counts.T, order="C"))
        self._weight = (torch.arange(self._index.shape[-1]) < counts[..., None]).float().to(self._device)
        self._dropout = dropout.T.contiguous().to(self._device)

    def batch(self, draw: int, live: int) -> Batch:
        x, y = self._gather(self._index[draw, :live])
        return Batch(x, y, self._weight[draw, :live], self._dropout[draw, :live])


class StackedBatches:
    """The `grad` of a step under vmap. It steps out of vmap: all clients' gradients are computed as one batch.

    `row` is a number for each client that vmap has batched; it tells vmap that the result differs between clients
    even where `theta` is the same for all.
    """

    def __init__(self, task: Task, batches: Sequence[Batch], row: Tensor) -> None:
        self._task, self._batches, self._row = task, batches, row

    def __call__(self, theta: Tensor, batch: int = 0, objective: Objective | None = None, **extra: Tensor) -> Tensor:
        function = partial(self._task.gradient_stacked, batch=self._batches[batch], objective=objective)
        return outside_vmap(function, self._row, theta, **extra)

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        here = self._batches[batch]
        return outside_vmap(partial(self._task.predict_stacked, x=here.x, weight=here.weight), self._row, theta)


def _fields(batch: Batch) -> Fields:
    return batch.x, batch.y, batch.weight, batch.key


def _private(carry: State, inputs: list[Tensor]) -> State:
    """A carry that shares no memory with anything else, so that steps may change it in place."""
    taken = {t.data_ptr() for t in inputs}
    out: State = {}
    for name, value in carry.items():
        owned = value.is_contiguous() and value.data_ptr() not in taken
        out[name] = value if owned else value.clone(memory_format=torch.contiguous_format)
        taken.add(out[name].data_ptr())
    return out
