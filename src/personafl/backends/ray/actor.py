"""What a Ray actor does: it holds a shard of the clients, with their data and state, and does their work.

The work itself is `LocalClients`'. Between driver and actors there are numpy arrays, which Ray moves without copying
them about; clients have the numbers that they have on the driver.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from personafl.algorithms.base import Algorithm, Sent
from personafl.engines import make_engine
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.inputs import as_state, from_state
from personafl.kernels.statistics import Moments
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local
from personafl.states import Ints, State
from personafl.tasks import LearningTask
from personafl.training.clients import LocalClients
from personafl.training.evaluation import Columns, ServerSnapshot
from personafl.training.privacy import Privacy
from personafl.version import __version__

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class WorkerConfig:
    """What every actor is told once: what clients train, how, and with what."""

    module: nn.Module
    kind: LearningTask
    local: Local
    seed: int
    engine: str
    memory: int
    state_memory: int
    privacy: Privacy | None
    one_by_one: bool = False
    """Whether the server needs each answer, and none may be averaged on the way."""
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True)
class Shard:
    """Some clients: who they are, and their samples; or all samples, in a saved federation or in Ray's memory.

    Attributes
    ----------
    everybody
        Whether the clients are among all others: they have the numbers that they have on the driver then.
    """

    ids: Ints
    fingerprint: str = ""
    path: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    everybody: bool = False

    @classmethod
    def of(cls, federation: Federation, ids: Ints, path: str | None) -> Shard:
        """These clients of a federation, by their samples, or by the path of the saved federation."""
        if path is not None:
            return cls(ids, federation.fingerprint, path, everybody=True)
        bounds = federation.bounds[ids]
        many = bounds[:, 3] - bounds[:, 0]
        starts = np.cumsum(many) - many
        rows = torch.from_numpy(np.arange(many.sum()) + np.repeat(bounds[:, 0] - starts, many))
        fields = {
            **{name: value.index_select(0, rows).numpy() for name, value in as_state(federation.x).items()},
            "y": federation.y.index_select(0, rows).numpy(),
            "bounds": bounds - (bounds[:, :1] - starts[:, None]),
            "ids": tuple(federation.ids[i] for i in ids.tolist()),
            "classes": federation.classes,
        }
        return cls(ids, fields=fields)

    def federation(self) -> Federation:
        """The clients' data: theirs alone, in memory; or everybody's, mapped."""
        if self.path is None:
            # A copy of what is theirs alone: Ray's memory is for what is on its way, or for all.
            made = _mapped if self.everybody else torch.tensor
            samples = {
                name: made(self.fields[name]) for name in self.fields if name == "y" or name.partition(".")[0] == "x"
            }
            others = {name: value for name, value in self.fields.items() if name not in samples}
            return Federation(x=from_state(samples), y=samples["y"], **others, scanned=True)
        federation = Federation.load(self.path)
        if federation.fingerprint != self.fingerprint:
            raise DataError(f"ray.data = {self.path!r} holds another federation than the one that is trained on")
        return federation


@dataclass(frozen=True)
class ShardRequest:
    """What an actor needs of a `ServerSnapshot`, for some of its clients: `each` has a row for each of `ids`."""

    round: int
    last: bool
    ids: Ints
    each: Arrays
    kept: NDArray[np.bool_] | None
    """Of all clients of the shard."""


class Worker:
    """An actor. It holds one shard, and more where other actors have died and there is no room for new ones."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config, self.task = config, Task(config.module, config.kind)
        self._shards: dict[int, tuple[Shard, LocalClients]] = {}
        torch.set_num_threads(config.threads)
        torch.set_grad_enabled(False)

    def version(self) -> str:
        """The version of personafl on the worker's machine."""
        return __version__

    def take(self, number: int, shard: Shard, everybody: dict[str, Any] | None = None) -> None:
        """Take a shard, whose clients begin with nothing; `everybody` are the fields of all in Ray's memory."""
        if everybody is not None:
            shard = Shard(shard.ids, fields=everybody, everybody=True)
        config, federation = self.config, shard.federation()
        settings = EngineSettings(config.engine, config.threads, config.memory, config.device)
        engine, _ = make_engine(settings, self.task, federation, config.local, config.seed)
        clients = LocalClients(engine, config.state_memory, Path(tempfile.gettempdir()), config.privacy)
        self._shards[number] = Shard(shard.ids, everybody=shard.everybody), clients

    def start(self, number: int, algorithm: Algorithm, theta0: NDArray[Any]) -> None:
        """As `Clients.start`, for a shard."""
        clients = self._shards[number][1]
        clients.start(algorithm, torch.tensor(theta0).to(clients.device))

    def train(
        self, number: int, round: int, ids: Ints, each: Arrays, shared: Arrays, borrowed: Ints, theirs: Arrays
    ) -> dict[str, Any]:
        """Train these clients; of uploads that are declared a `Mean` their mean comes, as one row, unless `one_by_one`.

        `borrowed` among them belong to other shards: they bring their states and take them along again.
        """
        clients = self._shards[number][1]
        sent = Sent(self._tensors(shared), self._tensors(each))
        if len(borrowed):
            clients.put_rows(borrowed, self._tensors(theirs))
        before = clients.releases.copy()
        answers = clients.train(round, self._local(number, ids), sent)
        told = np.flatnonzero(clients.releases - before)
        releases = (clients.releases - before)[told]
        if len(borrowed):
            theirs = arrays(clients.rows(borrowed))
            clients.drop(borrowed)
        whole = self.config.one_by_one or not len(answers.uploads)
        uploads = answers.uploads if whole else answers.uploads.condense()
        return {
            "ids": ids[np.isin(ids, self._global(number, answers.failed), invert=True)],
            "values": arrays(uploads.values),
            "told": self._global(number, told),
            "releases": releases,
            "steps": answers.steps,
            "gradients": answers.gradients,
            "failed": self._global(number, answers.failed),
            "bytes_up": answers.bytes_up,
            "borrowed": theirs,
        }

    def measure(self, number: int, view: ShardRequest, shared: dict[str, Any]) -> Columns:
        """As `Clients.measure`, for some clients of a shard."""
        return self._shards[number][1].measure(self._snapshot(number, view, shared), self._local(number, view.ids))

    def moments(self, number: int, ids: Ints, theta: NDArray[Any], known: list[Moments]) -> Moments | None:
        """What one call of a layer of batch normalization sees of these clients' data; see `Task.moments`."""
        engine = self._shards[number][1].engine
        return engine.moments(torch.tensor(theta).to(engine.device), self._local(number, ids), known)

    def rows(self, number: int, ids: Ints) -> Arrays:
        """What these clients keep, see `Clients.rows`."""
        return arrays(self._shards[number][1].rows(self._local(number, ids)))

    def put_rows(self, number: int, ids: Ints, rows: Arrays) -> None:
        """Give these clients what they keep."""
        self._shards[number][1].put_rows(self._local(number, ids), self._tensors(rows))

    def predictions(self, number: int, view: ShardRequest, shared: dict[str, Any]) -> pa.Table | None:
        """What the models say about the test samples of `view.ids`, client after client."""
        clients = self._shards[number][1]
        table = clients.predictions(self._snapshot(number, view, shared), self._local(number, view.ids))
        return None if table is None else table.drop_columns(["client"])

    def personal(self, number: int, view: ShardRequest, shared: dict[str, Any]) -> Arrays:
        """The personalized models of `view.ids`."""
        clients = self._shards[number][1]
        parts = clients.personal(self._snapshot(number, view, shared), self._local(number, view.ids))
        return {"theta": torch.cat([part.cpu() for part in parts]).numpy()}

    def shared_model(self, number: int, view: ShardRequest, shared: dict[str, Any]) -> NDArray[Any] | None:
        """The one model of `view.ids`, none of whom was ever active; None where each has its own."""
        clients = self._shards[number][1]
        model = clients.shared(self._snapshot(number, view, shared), self._local(number, view.ids))
        return None if model is None else model.cpu().numpy()

    # --- numbers and arrays --------------------------------------------------------------------------------

    def _local(self, number: int, ids: Ints) -> Ints:
        """The numbers that clients have here."""
        shard = self._shards[number][0]
        return ids if shard.everybody else np.searchsorted(shard.ids, ids).astype(np.int64)

    def _global(self, number: int, local: Ints) -> Ints:
        shard = self._shards[number][0]
        return local if shard.everybody else shard.ids[local]

    def _tensors(self, state: Mapping[str, NDArray[Any]]) -> State:
        """Copies: what Ray hands out may not be written to."""
        return {name: torch.tensor(value).to(self.config.device) for name, value in state.items()}

    def _snapshot(self, number: int, view: ShardRequest, shared: dict[str, Any]) -> ServerSnapshot:
        (shard, clients), ids = self._shards[number], self._local(number, view.ids)
        to_all, each = self._tensors(shared["shared"]), self._tensors(view.each)
        common = None if shared["common"] is None else torch.tensor(shared["common"]).to(clients.device)
        kept = None
        if view.kept is not None:
            kept = np.zeros(len(clients.client_index), np.bool_)
            kept[self._local(number, shard.ids)] = view.kept

        def send(some: Ints) -> Sent:
            at: Tensor = torch.from_numpy(np.searchsorted(ids, some)).to(clients.device)
            return Sent(to_all, {name: value.index_select(0, at) for name, value in each.items()})

        return ServerSnapshot(view.round, view.last, send, common, clients.theta0, kept)


def _mapped(array: NDArray[Any]) -> Tensor:
    """Memory of Ray's as a tensor. It is for reading only, and nobody writes to samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def arrays(state: Mapping[str, Tensor]) -> Arrays:
    """Tensors as numpy arrays, on their way to another process."""
    return {name: np.asarray(value.detach().cpu().numpy(), order="C") for name, value in state.items()}
