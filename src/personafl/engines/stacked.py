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

from personafl.algorithms.base import Context, Program, Sent
from personafl.algorithms.extras import batches_per_step
from personafl.engines.base import ClientFunction, Engine, Split
from personafl.engines.batches import BatchPlan
from personafl.engines.client_data import ClientData
from personafl.engines.machine import cores, reuse_memory
from personafl.engines.sums import ClientSums
from personafl.engines.vmap import outside_vmap, over_clients
from personafl.engines.work import Result, Work, descend, require_none, require_public
from personafl.inputs import some, tensors, unbound
from personafl.kernels.per_sample import mean_squares_stacked
from personafl.kernels.task import Batch, Objective, Task
from personafl.states import Ints, State, rows

FETCHED_AT_ONCE = 4 * 2**20  # bytes of samples: more would push the parameters out of the processor's cache


class StackedEngine(Engine):
    """Runs client programs under `torch.func.vmap`."""

    name = "stacked"
    default_threads = cores()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reuse_memory()

    def _run_chunk(self, work: Work) -> Result:
        program, info, keys, shared = work.program, self._info(work), self._keys(work), work.sent.shared
        asked = self._asked_for(program, work.ids)
        fields = {f"{name}.{f}": getattr(batch, f) for name, batch in asked.items() for f in ("y", "weight")}

        def context(info: State, fields: State) -> Context:
            data = {name: self._data(batch, name, info["copy"], fields) for name, batch in asked.items()}
            return self._context(work, info, data)

        def begin(own: State, each: State, info: State, fields: State) -> tuple[State, State]:
            ctx = context(info, fields)
            carry, steps = program.begin(own, {**shared, **each}, ctx)
            return carry, {"wanted": steps}

        def finish(own: State, carry: State, each: State, info: State, fields: State) -> tuple[State, State]:
            return program.finish(own, carry, {**shared, **each}, context(info, fields))

        count, each = len(work.ids), work.sent.each
        begun, wanted = over_clients(begin, count, work.own, each, info, fields)
        optimizer = self._optimizer_state(work)
        begun |= optimizer
        steps = wanted["wanted"].cpu().numpy().astype(np.int64)
        order = np.argsort(-steps, kind="stable")
        in_order = bool((order == np.arange(len(order))).all())
        if in_order:
            carry = _private(begun, [*work.own.values(), *shared.values(), *each.values()])
            stepped_each, stepped_info = each, info | wanted
        else:
            at = torch.from_numpy(order).to(self.device)
            carry, stepped_each, stepped_info = (rows(state, at) for state in (begun, each, info | wanted))

        ordered = Work(program, work.round, work.purpose, work.ids[order], {}, Sent(shared, stepped_each))
        carry, gradients = self._steps(ordered, keys[order], steps[order], carry, stepped_info)
        gradients[order] = gradients.copy()
        if not in_order:
            back = torch.from_numpy(np.argsort(order, kind="stable")).to(self.device)
            carry = rows(carry, back)
        own, up = over_clients(finish, count, work.own, carry, each, info, fields)
        own |= {name: carry[name] for name in optimizer}
        return Result(own, up, wanted["wanted"], torch.from_numpy(gradients).to(self.device))

    def _steps(
        self, work: Work, keys: NDArray[np.uint64], steps: Ints, carry: State, info: State
    ) -> tuple[State, Ints]:
        """All steps of clients that are sorted by their number of steps, longest first; and how many gradients."""
        draws, names, each = batches_per_step(work.program), list(carry), work.sent.each
        plan = self._plan(work, keys, steps)
        drawn = _Drawn(self, plan, self._dropout_keys(keys, plan.counts.shape[1]))
        gradients = np.zeros_like(steps)
        if self._only_descends(work):
            left_at = np.searchsorted(-steps, -np.arange(int(steps.max(initial=0))), side="left")
            batches = (drawn.batch(s, int(left)) for s, left in enumerate(left_at))
            self.task.descend_through(carry["theta"], batches, self.local.rate(max(work.round, 1)))
            return carry, steps.copy()
        done: State = {}
        live, step = len(steps), 0
        while step < int(steps.max(initial=0)):
            left = int(np.searchsorted(-steps, -step, side="left"))  # clients with more than `step` steps
            if left < live:
                done = done or {name: torch.empty_like(carry[name]) for name in names}
                for name in names:
                    done[name][left:live] = carry[name][left:live]
                carry, info, each = ({n: v[:left] for n, v in state.items()} for state in (carry, info, each))
                live = left
            until = int(steps[live - 1])  # nobody drops off before
            made: list[int] = []

            def segment(
                row: State, carry: State, each: State, info: State, *, begin: int, end: int, live: int, made: list[int]
            ) -> tuple[State]:
                ctx, sent = self._context(work, info), {**work.sent.shared, **each}
                for s in range(begin, end):
                    batches = [drawn.batch(d, live) for d in range(s * draws, (s + 1) * draws)]
                    grad = StackedBatches(self.task, batches, row["number"])
                    carry = work.program.step(carry, sent, grad, ctx.at_step(s, info["wanted"]))
                    made.append(grad.made)
                return (carry,)

            bound = partial(segment, begin=step, end=until, live=live, made=made)
            (carry,) = over_clients(bound, live, {"number": torch.arange(live, device=self.device)}, carry, each, info)
            gradients[:live] += sum(made)
            step = until
        if not done:
            return {name: carry[name] for name in names}, gradients
        for name in names:
            done[name][:live] = carry[name]
        return done, gradients

    def _only_descends(self, work: Work) -> bool:
        """Whether a step is SGD on θ at one rate and nothing else, for networks that take many such steps at once."""
        plain = type(work.program).step is Program.step and batches_per_step(work.program) == 1
        plain = plain and self.local.plain and self.local.beyond() is None and self.task.per_sample is None
        return plain and self.task.takes_steps_at_once(self.federation.x)

    def _data(self, batch: Batch, name: str, row: Tensor, fields: State) -> ClientData:
        """One client's data under vmap; outputs are computed outside of it, for all clients as one batch."""

        def outputs(task: Task, theta: Tensor) -> Tensor:
            return outside_vmap(partial(task.predict_stacked, x=batch.x, weight=batch.weight), row, theta)

        def squares(task: Task, theta: Tensor) -> Tensor:
            return outside_vmap(partial(mean_squares_stacked, task, batch=batch), row, theta)

        return ClientData(self.task, fields[f"{name}.y"], fields[f"{name}.weight"], outputs, squares)

    def _map(self, function: ClientFunction, own: State, sent: Sent, count: int) -> State:
        def one(own: State, each: State) -> tuple[State]:
            return (function(own, {**sent.shared, **each}),)

        return over_clients(one, count, own, sent.each)[0]

    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        with torch.no_grad():
            if theta.dim() == 1 and self.task.takes_any_batch(theta):
                return self._evaluate_together(theta, ids, split)
            return self._evaluate_each(theta, ids, split)

    def _evaluate_together(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """One model for everybody: all samples in long batches, then a sum for each client."""
        sizes, starts = self.federation.sizes(split)[ids], self.federation.starts(split)[ids]
        owner = np.repeat(np.arange(len(ids)), sizes)
        index = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + starts[owner]
        sums = ClientSums(self.summed(), len(ids))
        many = max(1, min(4096, self.memory * 2**20 // self._bytes_per_client(1, 0)))
        for i in range(0, len(index), many):
            x, y = self._gather(torch.from_numpy(index[i : i + many]))
            sums.add(self.task.predict(theta, x), y, owner[i : i + many])
        return sums.result(sizes)

    def _evaluate_each(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """A model for each client."""
        out: dict[str, NDArray[np.float64]] = {}
        for now, thetas, batch in self._like_sized(theta, ids, split):
            for name, values in self.task.evaluate_stacked(thetas, batch).items():
                known = values.double().cpu().numpy()
                out.setdefault(name, np.zeros((len(ids), *known.shape[1:])))[now] = known
        return {name: out.get(name, np.zeros(len(ids))) for name in self.summed()}

    def _own_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        out = self.task.running([]).repeat(len(ids), 1).to(theta.device)
        for now, thetas, batch in self._like_sized(theta, ids, "train"):
            out[torch.from_numpy(now).to(out.device)] = self.task.statistics_stacked(thetas, batch.x, batch.weight)
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
    """The batches of all steps, fetched when their step comes: of several steps at once where they are small."""

    def __init__(self, engine: Engine, plan: BatchPlan, dropout: Tensor) -> None:
        self._gather, self._sample_bytes = engine._gather, _sample_bytes(engine)
        # Where a batch is all of a client's data, it is the same at every step.
        self._constant = engine.local.batch_size == 0
        positions = plan.positions[:, :1] if self._constant else plan.positions
        self._index = torch.from_numpy(np.ascontiguousarray(positions.swapaxes(0, 1)))
        counts = torch.from_numpy(np.array(plan.counts.T, order="C"))
        self._weight = (torch.arange(self._index.shape[-1]) < counts[..., None]).float().to(engine.device)
        self._dropout = dropout.T.contiguous().to(engine.device)
        self._expected = None if plan.expected is None else torch.from_numpy(plan.expected).to(engine.device)
        self._begin = self._end = 0

    def batch(self, draw: int, live: int) -> Batch:
        """The batches of the first `live` clients; `draw` and `live` of later calls are no smaller and no larger."""
        place = 0 if self._constant else draw
        if place >= self._end:
            each = live * self._index.shape[-1] * self._sample_bytes
            self._begin, self._end = place, place + max(1, FETCHED_AT_ONCE // max(each, 1))
            x, y = self._gather(self._index[self._begin : self._end, :live])
            self._fetched = list(zip(unbound(x), y.unbind(0), strict=True))
        x, y = self._fetched[place - self._begin]
        weight, key = self._weight[draw], self._dropout[draw]
        expected = None if self._expected is None else self._expected[:live]
        if live == len(y) == len(weight):
            return Batch(x, y, weight, key, expected)
        return Batch(some(x, slice(live)), y[:live], weight[:live], key[:live], expected)


class StackedBatches:
    """The `grad` of a step under vmap. It steps out of vmap: all clients' gradients are computed as one batch.

    `row` is a number for each client that vmap has batched; it tells vmap that the result differs between clients
    even where `theta` is the same for all. `made` counts the gradients of each client.
    """

    def __init__(self, task: Task, batches: Sequence[Batch], row: Tensor) -> None:
        self._task, self._batches, self._row = task, batches, row
        self.made = 0

    def __call__(self, theta: Tensor, batch: int = 0, objective: Objective | None = None, **extra: Tensor) -> Tensor:
        self.made += 1
        private, here = self._task.per_sample, self._batches[batch]
        if private is not None:
            require_none(extra)
            noisy = partial(private.gradient_stacked, self._task, batch=here, objective=objective, number=self.made)
            return outside_vmap(noisy, self._row, theta)
        function = partial(self._task.gradient_stacked, batch=here, objective=objective)
        return outside_vmap(function, self._row, theta, **extra)

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """One step of SGD in place, for all clients at once; `proximal` is (factor, anchor)."""
        if self._task.per_sample is not None:
            descend(self(theta), theta, lr, proximal)
            return
        self.made += 1
        function = partial(self._task.descend_stacked, batch=self._batches[0], lr=lr)
        if proximal is None:
            outside_vmap(function, self._row, theta)
        else:
            outside_vmap(partial(function, pull=proximal[0]), self._row, theta, anchor=proximal[1])

    def count(self, batch: int = 0) -> Tensor:
        """How many samples a batch has."""
        return outside_vmap(lambda row: self._batches[batch].count, self._row, self._row)

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """Outputs in evaluation mode for the samples of a batch."""
        require_public(self._task)
        here = self._batches[batch]
        return outside_vmap(partial(self._task.predict_stacked, x=here.x, weight=here.weight), self._row, theta)

    def features(self, theta: Tensor, batch: int = 0) -> Tensor:
        """The features of the samples of a batch."""
        require_public(self._task)
        here, task = self._batches[batch], self._task.with_features
        both = outside_vmap(partial(task.predict_stacked, x=here.x, weight=here.weight), self._row, theta)
        return self._task.features_of(both)


def _sample_bytes(engine: Engine) -> int:
    return sum(part[:1].numel() * part.element_size() for part in tensors(engine.federation.x))


def _private(carry: State, inputs: list[Tensor]) -> State:
    """A carry that shares no memory with anything else, so that steps may change it in place."""
    taken = {t.data_ptr() for t in inputs}
    out: State = {}
    for name, value in carry.items():
        owned = value.is_contiguous() and value.data_ptr() not in taken
        out[name] = value if owned else value.clone(memory_format=torch.contiguous_format)
        taken.add(out[name].data_ptr())
    return out
