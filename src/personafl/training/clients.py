"""The clients of a run, wherever they are: what the runner asks of them.

`LocalClients` are in this process, all of them on one engine. Clients in other processes or on other machines are
further subclasses of `Clients`; the work for each of them is done by `LocalClients` over there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, JobInfo, Sent, Uploads
from personafl.algorithms.uploads import check_declared
from personafl.engines.base import Engine
from personafl.engines.machine import give_back_memory
from personafl.engines.work import Work
from personafl.errors import RunError
from personafl.kernels.task import Task
from personafl.settings import Local
from personafl.states import Ints, State, rows
from personafl.storage.client_store import ClientStore
from personafl.storage.folder import RunFolder
from personafl.training.client_states import first_state, states
from personafl.training.evaluation import (
    ClientIndex,
    Columns,
    Personal,
    ServerSnapshot,
    measure,
    personal_models,
    shared_model,
)
from personafl.training.job_info import job_info
from personafl.training.predictions import Predictions
from personafl.training.privacy import Noise, NoiseSource, Privacy
from personafl.training.sample_account import SampleAccount

AT_ONCE = 16 * 2**20
LONGEST = 1e15
"""The longest vector that is taken. Servers add up squares in float32, which ends at 3.4·10³⁸: as many as 10⁷ of these,
and of their differences, stay below that. Models that are any use have lengths of at most thousands."""
RELEASES = "privacy.releases"
SEEN = "store.seen"
"""Of the rows of a checkpoint: whether there is a state in it. Who failed whenever it was active has none."""


@dataclass(frozen=True)
class Answers:
    """What became of a cohort.

    Attributes
    ----------
    uploads
        Of the clients whose answers count.
    active, steps, gradients
        Who did the work, how many steps each took and how many gradients it computed: those whose answers count, and
        those who failed.
    failed
        Whose update is not finite, or longer than `LONGEST`; they keep their old state, or none where it was their
        first round.
    dropped
        Who did not answer, or not in time or not acceptably, and why.
    bytes_up
        What the answers take on their way.
    joined
        Clients elsewhere that were heard of for the first time: their rows are not what a checkpoint says.
    removed
        Clients elsewhere that belong to the federation no more: the server forgets what it keeps of them.
    """

    uploads: Uploads
    active: Ints
    steps: Ints
    gradients: Ints
    failed: Ints
    bytes_up: int
    dropped: dict[int, str] = field(default_factory=dict)
    joined: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    removed: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class Clients(ABC):
    """The clients of a run.

    Attributes
    ----------
    client_index
        What the server side knows of them: names, groups, numbers of samples.
    task, local, seed
        What they train, and how.
    threads, device
        Of the server's own tensors.
    privacy
        What they do to their answers before they send them.
    """

    client_index: ClientIndex
    task: Task
    local: Local
    seed: int
    threads: int
    device: torch.device
    privacy: Privacy | None = None
    secret_cohorts: bool = True
    """Whether only the server knows who is drawn; in a simulation, as if the seed were secret."""

    @property
    def server_noise(self) -> Noise:
        """Where the noise comes from that the server adds, if it does."""
        return NoiseSource(self.seed)

    @property
    def job_info(self) -> JobInfo:
        """The job, as algorithms may know it."""
        return job_info(self.task, len(self.client_index), self.local, self.client_index.groups)

    @abstractmethod
    def start(self, algorithm: Algorithm, theta0: Tensor) -> None:
        """Nobody was active yet; a client's first state comes from `theta0` and what it is sent then."""

    @abstractmethod
    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        """Have these clients train."""

    def with_statistics(self, theta: Tensor) -> Tensor:
        """The model that serves everybody, with the statistics of all clients' training data together.

        As it is where the model keeps none, and where none may leave the clients: then each measures it with its own.
        """
        return theta

    @abstractmethod
    def measure(self, snapshot: ServerSnapshot, ids: Ints) -> Columns:
        """Have these clients evaluate their personalized models and the common one: sums, a row for each."""

    @abstractmethod
    def rows(self, ids: Ints) -> State:
        """What a checkpoint keeps of these clients."""

    @abstractmethod
    def put_rows(self, ids: Ints, rows: State) -> None:
        """The inverse of `rows`, on the way back to a checkpoint; those that are not named were never active."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """The size of a row of `rows`."""

    def saved(self, round: int) -> None:  # noqa: B027 (few have to know)
        """There is a checkpoint of this round: nobody will be asked to go back behind it."""

    @abstractmethod
    def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
        """At the end: write the personalized models that `snapshot` says are kept, and predictions of `ids`.

        Models that are kept elsewhere stay there.
        """

    def close(self) -> None:  # noqa: B027
        """The run has ended."""


@dataclass(frozen=True)
class FinalOutputs:
    """What the last evaluation leaves for the run folder: predictions, and models that take a program to make."""

    predictions: Predictions
    models: ClientStore | None
    kept: NDArray[np.bool_]

    def add(self, part: Personal) -> None:
        """Keep the predictions and models of some clients."""
        self.predictions.add(part)
        if self.models is not None:
            mine = torch.from_numpy(np.flatnonzero(self.kept[part.ids])).to(part.theta.device)
            self.models.put(part.ids[self.kept[part.ids]], {"theta": part.theta.index_select(0, mine)})


class LocalClients(Clients):
    """Clients in this process.

    Parameters
    ----------
    memory
        Megabytes of the clients' states that are kept in memory; more are memory-mapped files in `folder`.
    privacy
        Clipping and noise on what the clients send; `clients.parquet` then has their ε.
    noise
        Where their noise comes from; left out, the seed, which is for simulations.
    """

    algorithm: Algorithm
    theta0: Tensor
    store: ClientStore
    releases: Ints
    """How many protected answers each client has sent; with privacy of samples, how many batches it has drawn."""
    _account: SampleAccount | None = None

    def __init__(
        self,
        engine: Engine,
        memory: int = 1024,
        folder: Path | None = None,
        privacy: Privacy | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.engine, self._memory, self._folder = engine, memory, folder
        self.privacy, self._noise = privacy, noise or NoiseSource(engine.seed)
        engine.protect_samples(None if privacy is None else privacy.per_sample)
        self.task, self.local, self.seed = engine.task, engine.local, engine.seed
        self.threads, self.device = engine.threads, engine.device
        self.client_index = ClientIndex.of(engine.federation)
        self._made: FinalOutputs | None = None

    def start(self, algorithm: Algorithm, theta0: Tensor) -> None:
        if self.privacy is not None:
            self.privacy.check(algorithm)
        self.algorithm, self.theta0, self._made = algorithm, theta0, None
        self.store = ClientStore(
            first_state(algorithm, theta0, self.local), len(self.client_index), self._memory, self._folder
        )
        self.releases = np.zeros(len(self.client_index), np.int64)
        if self.privacy is not None and self.privacy.unit == "sample":
            sizes = self.client_index.sizes["train"]
            self._account = SampleAccount.of(self.privacy, algorithm, self.task, self.local, theta0, sizes)

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        own = states(self.algorithm, self.engine, self.store, self.theta0, ids, sent)
        result = self.engine.run(Work(self.algorithm, round, "train", ids, own, sent))
        check_declared(self.algorithm.name, result.up, self.algorithm.uplink)
        good = usable({**result.own, **{f"up.{n}": v for n, v in result.up.items()}}, len(ids)).cpu().numpy()
        kept, failed = ids[good], ids[~good]
        own, up = result.own, result.up
        if self.privacy is not None:
            names = [self.client_index.ids[i] for i in ids]
            up = self.privacy.protect(self.algorithm, up, sent, names, round, self._noise)
        steps, gradients = (counts.cpu().numpy() for counts in (result.steps, result.gradients))
        if self._account is not None:
            self.releases[ids] += self._account.batches(steps, gradients)
        elif self.privacy is not None:
            self.releases[kept] += len(up) > 0
        if len(failed):
            at = torch.from_numpy(np.flatnonzero(good))
            own, up = rows(own, at), rows(up, at)
        self.store.put(kept, own)
        samples = torch.from_numpy(self.client_index.sizes["train"][kept]).to(self.device)
        uploads = Uploads(torch.from_numpy(kept), samples, up, self.algorithm.uplink)
        return Answers(uploads, ids, steps, gradients, failed, uploads.bytes())

    def with_statistics(self, theta: Tensor) -> Tensor:
        if self.privacy is not None:  # promised for everything that leaves a client
            return theta
        return self.engine.with_pooled_statistics(theta, np.arange(len(self.client_index)))

    def measure(self, snapshot: ServerSnapshot, ids: Ints) -> Columns:
        if not snapshot.last:
            return measure(self.algorithm, self.engine, self.store, snapshot, ids) | self.spent(ids)
        models = None
        if self.algorithm.evaluation_program(True) is not None:
            like = {"theta": torch.zeros(self.task.full_size, device=self.device)}
            models = ClientStore(like, len(self.client_index), self._memory, self._folder)
        self._made = FinalOutputs(Predictions(self.engine, ids, snapshot.common), models, self._kept(snapshot))
        columns = measure(self.algorithm, self.engine, self.store, snapshot, ids, self._made.add)
        # Of each model that is kept: a program that made it of gradients drew no more batches than these.
        return columns | self.spent(ids, columns["gradients"])

    def spent(self, ids: Ints, gradients: NDArray[Any] | int = 0) -> Columns:
        """What the answers of these clients have cost their privacy; where the server adds the noise, it knows."""
        if self.privacy is None or self.privacy.noise_at == "server":
            return {}
        if self._account is not None:
            return {"epsilon": self._account.epsilon(ids, self.releases[ids] + np.nan_to_num(gradients))}
        return {"epsilon": self.privacy.epsilon(self.releases[ids])}

    def rows(self, ids: Ints) -> State:
        counted = {} if self.privacy is None else {RELEASES: torch.from_numpy(self.releases[ids])}
        return self.store.rows(ids) | counted | {SEEN: torch.from_numpy(self.store.known(ids))}

    def put_rows(self, ids: Ints, kept: State) -> None:
        if self.privacy is not None:
            self.releases[ids] = kept[RELEASES].numpy()
        own = {name: value for name, value in kept.items() if name not in (RELEASES, SEEN)}
        check_kept(self.store.like, own)
        if SEEN not in kept:
            self.store.put(ids, own)
            return
        seen = np.flatnonzero(kept[SEEN].cpu().numpy())
        self.store.put(ids[seen], rows(own, torch.from_numpy(seen)))

    def drop(self, ids: Ints) -> None:
        """Forget what these clients keep: they were here for a round."""
        self.releases[ids] = 0
        self.store.drop(ids)

    @property
    def row_bytes(self) -> int:
        return self.store.row_bytes + 1 + (8 if self.privacy is not None else 0)

    # --- at the end ----------------------------------------------------------------------------------------

    def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
        predictions, names = self.predictions(snapshot, ids), self.client_index.ids
        if predictions is not None:
            folder.write_predictions(predictions)
        kept = self._kept(snapshot)
        mine, others = np.flatnonzero(kept), np.flatnonzero(~kept)
        shared = self.shared(snapshot, others)
        one = None if shared is None else self.task.state_dict(shared.cpu())
        folder.write_others([names[i] for i in others], one)
        models = (self.task.state_dict(theta.cpu()) for theta in self.personal(snapshot, mine))
        folder.write_personal([names[i] for i in mine], models)

    def close(self) -> None:
        give_back_memory()  # the process may make more runs, and others may be beside it

    def _kept(self, snapshot: ServerSnapshot) -> NDArray[np.bool_]:
        return np.ones(len(self.client_index), np.bool_) if snapshot.kept is None else snapshot.kept

    def predictions(self, snapshot: ServerSnapshot, ids: Ints) -> pa.Table | None:
        """What the models say about every test sample of these clients, after the last round."""
        if self._made is None:  # the process that evaluated the last round did not live to write them
            self.measure(snapshot, ids)
        assert self._made is not None
        return self._made.predictions.table()

    def shared(self, snapshot: ServerSnapshot, others: Ints) -> Tensor | None:
        """The one personalized model of clients that were never active; None where each has its own."""
        return shared_model(self.algorithm, self.task, snapshot, others)

    def personal(self, snapshot: ServerSnapshot, ids: Ints) -> Iterator[Tensor]:
        """The personalized models of these clients, some at a time."""
        models = None if self._made is None else self._made.models
        missing = ids if models is None else ids[~models.known(ids)]
        for part in personal_models(self.algorithm, self.engine, self.store, snapshot, missing):
            if models is None:
                yield part.theta
            else:
                models.put(part.ids, {"theta": part.theta})
        if models is not None:
            many = max(1, AT_ONCE // max(models.row_bytes, 1))
            for first in range(0, len(ids), many):
                yield models.get(ids[first : first + many])["theta"]


def check_kept(like: State, rows: State) -> None:
    """Refuse the rows of a checkpoint of an earlier version, where clients kept something else then."""
    if rows.keys() != like.keys():
        raise RunError(
            f"this run was begun by an earlier version of personafl, whose clients keep {', '.join(rows) or 'nothing'} "
            f"and not {', '.join(like) or 'nothing'}: its models can be used, but it cannot be resumed"
        )
    for name, value in rows.items():
        if value.dtype != like[name].dtype or value.shape[1:] != like[name].shape:
            raise RunError(
                f"the checkpoint is of another model or algorithm: a client's {name} has the shape "
                f"{tuple(value.shape[1:])}, expected {tuple(like[name].shape)}"
            )


def usable(values: State, count: int) -> Tensor:
    """Which rows can be computed with: finite, and no longer than `LONGEST`; it takes one pass."""
    good = torch.ones(count, dtype=torch.bool)
    seen: set[int] = set()
    for value in values.values():
        if value.data_ptr() in seen or not value.is_floating_point():
            continue
        seen.add(value.data_ptr())
        good &= (torch.linalg.vector_norm(value.reshape(count, -1), dim=1) <= LONGEST).cpu()  # nor is it NaN
    return good
