"""One client after another: the reference that every engine is tested against, and for models that do not stack."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Sent
from personafl.algorithms.extras import batches_per_step
from personafl.engines.base import ClientFunction, Engine, Split
from personafl.engines.client_data import ClientData
from personafl.engines.work import Result, StepBatches, Work
from personafl.inputs import some
from personafl.kernels.task import Batch, Objective
from personafl.states import Ints, State, each, row


class LoopEngine(Engine):
    """Runs the same client programs as the stacked engine, without vmap."""

    name = "loop"
    default_threads = 1

    def _run_chunk(self, work: Work) -> Result:
        info, keys = self._info(work), self._keys(work)
        results = []
        for k in range(len(work.ids)):
            own, sent = row(work.own, k), {**work.sent.shared, **row(work.sent.each, k)}
            kept = row(self._optimizer_state(work), k)
            results.append(self._client(work, k, own, kept, sent, row(info, k), keys[k : k + 1]))
        owns, ups, steps, gradients = zip(*results, strict=True)
        return Result(_stack(owns), _stack(ups), torch.tensor(steps), torch.tensor(gradients))

    def _client(
        self, work: Work, k: int, own: State, optimizer: State, sent: State, info: State, key: NDArray[np.uint64]
    ) -> tuple[State, State, int, int]:
        one = Work(work.program, work.round, work.purpose, work.ids[k : k + 1], {}, work.sent)
        asked = self._asked_for(work.program, work.ids[k : k + 1])
        data = {name: ClientData.of(self.task, _first(batch)) for name, batch in asked.items()}
        ctx = self._context(work, info, data)
        begun, wanted = work.program.begin(own, sent, ctx)
        carry = each(torch.clone, begun | optimizer)
        steps, draws, gradients = int(wanted), batches_per_step(work.program), 0
        plan = self._plan(one, key, np.array([steps]))
        dropout = self._dropout_keys(key, steps * draws)
        expected = None if plan.expected is None else torch.from_numpy(plan.expected).to(self.device)
        for s in range(steps):
            batches = []
            for d in range(s * draws, (s + 1) * draws):
                x, y = self._gather(torch.from_numpy(plan.positions[0, d, : plan.counts[0, d]]))
                weight = torch.ones(len(y), device=self.device)
                batches.append(Batch(x, y, weight, dropout[0, d], expected))
            grad = StepBatches(self.task, batches, self._gradient)
            carry = work.program.step(carry, sent, grad, ctx.at_step(s, steps))
            gradients += grad.made
        kept = {name: carry[name] for name in begun}
        new, up = work.program.finish(own, kept, sent, ctx)
        return new | {name: carry[name] for name in optimizer}, up, steps, gradients

    def _gradient(self, theta: Tensor, batch: Batch, objective: Objective | None, extra: State) -> Tensor:
        return self.task.gradient(theta, batch, objective, **extra)

    def _map(self, function: ClientFunction, own: State, sent: Sent, count: int) -> State:
        return _stack([function(row(own, k), {**sent.shared, **row(sent.each, k)}) for k in range(count)])

    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        out: dict[str, list[NDArray[np.float64]]] = {name: [] for name in self.summed()}
        with torch.no_grad():
            for k, i in enumerate(ids):
                sums = self.task.evaluate(theta if theta.dim() == 1 else theta[k], self._samples(int(i), split))
                for name, value in sums.items():
                    out[name].append(value.double().cpu().numpy())
        return {name: np.array(values, np.float64) for name, values in out.items()}

    def _own_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        each = [self.with_pooled_statistics(theta[k], ids[k : k + 1])[self.task.size :] for k in range(len(ids))]
        return torch.stack(each)

    def outputs(self, theta: Tensor, ids: Ints, split: Split) -> Tensor:
        sizes = self.federation.sizes(split)[ids]
        with torch.no_grad():
            parts = [
                self.task.predict(theta if theta.dim() == 1 else theta[k], self._samples(int(i), split).x)[: sizes[k]]
                for k, i in enumerate(ids)
            ]
        return torch.cat(parts).cpu()

    def _samples(self, client: int, split: Split) -> Batch:
        """All samples of a client's split; one at weight 0 where there are none."""
        return _first(self._padded(np.array([client]), split))


def _first(padded: Batch) -> Batch:
    return Batch(some(padded.x, 0), padded.y[0], padded.weight[0], padded.key[0])


def _stack(states: tuple[State, ...] | list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]} if states else {}
