"""What every in-process engine has in common: the work it is given, the data it reads, chunks that fit in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Context, Program, Sent
from personafl.algorithms.extras import SideBySide, batches_per_step, copies, head_of
from personafl.algorithms.optimizers import optimizer_state
from personafl.algorithms.parameter_groups import rate_factors
from personafl.engines.batches import BatchPlan, draw, draw_independently
from personafl.engines.client_data import ClientData
from personafl.engines.held_back import held_back
from personafl.engines.work import Result, Work, concatenate, expand_copies
from personafl.federation import Federation
from personafl.inputs import Inputs, each_input, some, tensors
from personafl.kernels.per_sample import PerSample
from personafl.kernels.statistics import Moments, by_layer
from personafl.kernels.task import Batch, Objective, Task
from personafl.settings import Local
from personafl.states import Ints, State, each
from personafl.streams import Key, mix, name_key, stream_key

Split = Literal["train", "val", "test"]
ClientFunction = Callable[[State, State], State]


class Engine(ABC):
    """Runs client programs on a federation in this process.

    Parameters
    ----------
    memory
        Megabytes that the clients which are worked on at once may take; more are done in chunks.
    threads
        torch threads while this engine works; None takes the engine's default.
    """

    name: str
    default_threads: int

    def __init__(
        self,
        task: Task,
        federation: Federation,
        local: Local,
        seed: int,
        memory: int = 1024,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.task, self.federation, self.local, self.seed = task, federation, local, seed
        self.memory, self.device = memory, torch.device(device)
        self.threads = self.default_threads if threads is None else threads
        task.feature_layer = local.features
        self._factors: dict[tuple[bool, ...], Tensor] = {}
        self._features = sum(int(np.prod(part.shape[1:])) for part in tensors(federation.x))

    # --- what a runner calls -------------------------------------------------------------------------------

    def protect_samples(self, by: PerSample | None) -> None:
        """Have steps get gradients that are clipped by sample and noisy, or as they are."""
        self.task.per_sample = by

    def run(self, work: Work) -> Result:
        """Run a program for all of its clients."""
        with torch.no_grad():
            return concatenate([self._one_chunk(part) for part in self._chunks(work)])

    def map(self, function: ClientFunction, own: State, sent: Sent, count: int) -> State:
        """Apply a function of (own, sent), written for one client, to each of `count` rows."""
        with torch.no_grad():
            return self._map(function, own, sent, count)

    @abstractmethod
    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """Sums of loss and metrics over each client's samples, at one vector for all (P,) or one each (K, P)."""

    @abstractmethod
    def outputs(self, theta: Tensor, ids: Ints, split: Split) -> Tensor:
        """What the model puts out for every sample of a split, client after client; `theta` as in `evaluate`."""

    # --- statistics of batch normalization -----------------------------------------------------------------

    def with_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        """Models (K, P), or one (P,), for use by these clients: each with the statistics of its own training data.

        As they are where the model keeps no statistics, or has them already.
        """
        if not self.task.lacks_statistics(theta):
            return theta
        theta = theta.expand(len(ids), -1) if theta.dim() == 1 else theta
        large = self.federation.sizes("train")[ids] > self._samples_at_once()
        out = theta.new_empty(len(ids), self.task.full_size)
        out[:, : self.task.size] = theta
        with torch.no_grad():
            if not large.all():
                at = torch.from_numpy(np.flatnonzero(~large)).to(theta.device)
                out[at, self.task.size :] = self._own_statistics(theta[at], ids[~large])
            for k in np.flatnonzero(large):
                out[k] = self.with_pooled_statistics(theta[k], ids[k : k + 1])
        return out

    def with_pooled_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        """One model (P,) for use, with the statistics of all training data of these clients together: (P + S,)."""
        if not self.task.lacks_statistics(theta):
            return theta
        samples = int(self.federation.sizes("train")[ids].sum())
        with torch.no_grad():
            if 0 < samples <= self._samples_at_once():
                x, _ = self._gather(torch.from_numpy(self._index(ids, "train")))
                found = self.task.statistics(theta, x, torch.ones(samples, device=theta.device))
            else:
                found = self.task.running(by_layer(lambda known: self.moments(theta, ids, known)))
        return torch.cat([theta, found.to(theta.device)])

    def moments(self, theta: Tensor, ids: Ints, known: Sequence[Moments]) -> Moments | None:
        """What one call of a layer sees of all training data of these clients; see `Task.moments`."""
        index = torch.from_numpy(self._index(ids, "train"))
        with torch.no_grad():
            parts = [self.task.moments(theta, self._gather(p)[0], known) for p in index.split(self._samples_at_once())]
        found = [part for part in parts if part is not None]
        return Moments.merged(found) if found else None

    @abstractmethod
    def _own_statistics(self, theta: Tensor, ids: Ints) -> Tensor:
        """(K, S) of clients whose data goes through the model at once."""

    def _samples_at_once(self) -> int:
        return max(1, self.memory * 2**20 // self._bytes_per_client(1, 0))

    def _index(self, ids: Ints, split: Split) -> Ints:
        """The samples of these clients, client after client."""
        sizes, starts = self.federation.sizes(split)[ids], self.federation.starts(split)[ids]
        index: Ints = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        return index

    # --- measures ------------------------------------------------------------------------------------------

    def summed(self) -> dict[str, Objective]:
        """What is summed over samples."""
        return {"loss": self.task.objective, **self.task.metrics}

    @abstractmethod
    def _run_chunk(self, work: Work) -> Result: ...

    @abstractmethod
    def _map(self, function: ClientFunction, own: State, sent: Sent, count: int) -> State: ...

    # --- for the engines -----------------------------------------------------------------------------------

    def _context(self, work: Work, info: State, data: Mapping[str, ClientData] | None = None) -> Context:
        """The context of one client, from its row of `_info`; its data by the names that `_asked_for` has."""
        data = data or {}
        return Context(
            round=work.round,
            lr=self.local.rate(max(work.round, 1)),
            local=self.local,
            steps=info["steps"],
            samples=info["samples"],
            batch_size=info["batch_size"],
            copy=info["copy"],
            validation=data.get("validation"),
            training=data.get("training"),
            factors=self._rate_factors(work.program) if self.local.groups else None,
        )

    def _rate_factors(self, program: Program) -> Tensor:
        """The factor of the learning rate of every parameter (`local.groups`)."""
        layers = list(zip(self.task.names, self.task.sizes, strict=True))
        head = head_of(program, layers)
        if head not in self._factors:
            each_piece = torch.tensor(rate_factors(layers, self.local.groups, head))
            self._factors[head] = each_piece.repeat_interleave(torch.tensor(self.task.sizes)).to(self.device)
        return self._factors[head]

    def _optimizer_state(self, work: Work) -> State:
        """What clients have kept of their optimizer, and go on with; before an evaluation it starts anew."""
        return {} if work.purpose == "evaluation" else optimizer_state(work.own)

    def _info(self, work: Work) -> State:
        samples = self.federation.sizes("train")[work.ids]
        size = np.minimum(samples, self.local.batch_sizes(samples))
        columns = {
            "steps": self.local.default_steps(samples),
            "samples": samples,
            "batch_size": size,
            "copy": np.zeros(len(work.ids), np.int64) if work.copy is None else work.copy,
        }
        return {name: torch.from_numpy(np.ascontiguousarray(c)).to(self.device) for name, c in columns.items()}

    def _keys(self, work: Work) -> Key:
        """One key per client for this round and purpose."""
        return mix(self.federation.keys[work.ids], stream_key(self.seed, work.purpose, work.round))

    def _plan(self, work: Work, keys: Key, steps: Ints) -> BatchPlan:
        """Batches as indices into the federation's arrays."""
        drawn = draw if self.task.per_sample is None else draw_independently
        sizes = self.federation.sizes("train")[work.ids]
        batch = self.local.batch_sizes(sizes) if self.local.batch_size else 0
        plan = drawn(sizes, keys, batch, steps * batches_per_step(work.program))
        starts = self.federation.starts("train")[work.ids][:, None, None]
        return BatchPlan(plan.positions + starts, plan.counts, plan.expected)

    def _dropout_keys(self, keys: Key, draws: int) -> Tensor:
        """(K, draws) keys for the dropout of each step."""
        made = mix(mix(keys, name_key("dropout"))[:, None], np.arange(draws)[None, :])
        return torch.from_numpy(made.view(np.int64))

    def _gather(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """Samples by their index, which may have any shape."""
        flat = index.flatten()

        def at(values: Tensor) -> Tensor:
            return values.index_select(0, flat).view(*index.shape, *values.shape[1:]).to(self.device)

        return each_input(at, self.federation.x), at(self.federation.y)

    def _padded(self, ids: Ints, split: Split) -> Batch:
        """All samples of a split of these clients, padded to the longest: every field has a leading axis K."""
        sizes, starts = self.federation.sizes(split)[ids], self.federation.starts(split)[ids]
        width = max(1, int(sizes.max(initial=1)))
        slot = np.arange(width)
        # A client without samples still needs a valid index: any sample will do, at weight 0.
        index = np.minimum(
            starts[:, None] + np.minimum(slot, np.maximum(sizes[:, None] - 1, 0)), len(self.federation.y) - 1
        )
        x, y = self._gather(torch.from_numpy(index))
        weight = torch.from_numpy((slot < sizes[:, None]).astype(np.float32)).to(self.device)
        return Batch(x, y, weight, torch.zeros(len(ids), dtype=torch.int64, device=self.device))

    def _asked_for(self, program: Program, ids: Ints) -> dict[str, Batch]:
        """What the program asked for of these clients' data, as `_padded` gives it."""
        found = {"validation": self._validation(ids)} if program.uses_validation else {}
        return found | ({"training": self._padded(ids, "train")} if program.uses_training else {})

    def _validation(self, ids: Ints) -> Batch:
        """The validation samples of these clients that algorithms may choose on, as `_padded` gives them."""
        batch, share = self._padded(ids, "val"), self.local.held_back
        if share is None:
            return batch
        weight = batch.weight.clone()
        weight[weight > 0] = torch.from_numpy(~self.held_back_samples(ids)).to(weight)
        return Batch(batch.x, batch.y, weight, batch.key)

    def held_back_samples(self, ids: Ints) -> NDArray[np.bool_]:
        """Which of these clients' validation samples algorithms do not see."""
        share = self.local.held_back
        assert share is not None
        return held_back(self.federation.keys[ids], self.federation.sizes("val")[ids], share, self.seed)

    def _bytes_per_client(self, samples: int, vectors: int) -> int:
        """A generous guess of what one client takes while `samples` of its samples go through the model."""
        per_sample = 2 * self._features + 3 * self.task.activation_size(some(self.federation.x, slice(1)))
        return 4 * (vectors * self.task.size + samples * per_sample)

    def _chunk_size(self, per_client: int) -> int:
        return max(1, self.memory * 2**20 // per_client)

    def _chunks(self, work: Work) -> Iterator[Work]:
        """Parts of the work that fit in memory."""
        sizes = self.federation.sizes("train")[work.ids]
        batch = int(self.local.batch_sizes(sizes).max(initial=1))
        if work.program.uses_validation:
            batch = max(batch, int(self.federation.sizes("val")[work.ids].max(initial=1)))
        if work.program.uses_training:
            batch = max(batch, int(sizes.max(initial=1)))
        state = sum(v[:1].numel() for v in (*work.own.values(), *work.sent.each.values()))
        vectors = 6 + (0 if self.local.optimizer == "sgd" else 2) + state // max(self.task.size, 1)
        vectors += 2 * isinstance(work.program, SideBySide)  # what copies send up is there until one is picked
        rows = copies(work.program) if work.copy is None else 1
        count = self._chunk_size(rows * self._bytes_per_client(batch, vectors))
        if count >= len(work.ids):
            yield work
            return
        for i in range(0, len(work.ids), count):
            yield work.rows(slice(i, i + count))

    def _one_chunk(self, work: Work) -> Result:
        """Clients that fit in memory with all of their copies, or one of whom only some copies do."""
        if not isinstance(work.program, SideBySide):
            return self._run_chunk(work)
        return self._pick(work, concatenate([self._run_chunk(part) for part in self._chunks(expand_copies(work))]))

    def _pick(self, work: Work, result: Result) -> Result:
        program, many = work.program, copies(work.program)
        assert isinstance(program, SideBySide)
        up = each(lambda value: torch.unflatten(value, 0, (-1, many)), result.up)
        picked = self._map(program.pick, work.own, Sent({}, up), len(work.ids))
        # All copies were trained, whichever is picked.
        return Result(picked, {}, result.steps[::many], torch.unflatten(result.gradients, 0, (-1, many)).sum(1))
