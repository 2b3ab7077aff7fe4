"""The clients of a run on a Ray cluster: each actor owns a shard of them, with their data and state.

The driver runs the same rounds as always. What goes to all clients goes out once, through Ray's object store; what goes
to one client goes to its owner. What comes back is averaged by the actors where the algorithm allows it, so that
traffic follows the number of actors, and whole where it does not.

When an actor or its machine dies, its clients are dropped from the round, a new actor takes its shard, and the clients'
states are those of the last checkpoint. Clients whom it does not know begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent, Uploads
from personafl.backends.ray.actor import Arrays, ShardRequest, WorkerConfig, arrays
from personafl.backends.ray.shards import Shards, by_value, message_bytes
from personafl.engines.machine import cores
from personafl.inputs import some
from personafl.kernels.statistics import Moments, by_layer
from personafl.settings import require_ray
from personafl.states import Ints, State
from personafl.storage import checkpoint
from personafl.storage.client_log import ClientLog
from personafl.storage.folder import RunFolder
from personafl.training.client_states import first_state
from personafl.training.clients import AT_ONCE, RELEASES, SEEN, Answers, Clients, check_kept
from personafl.training.evaluation import ClientIndex, Columns, ServerSnapshot
from personafl.training.job import Job
from personafl.training.predictions import MOST

log = logging.getLogger("personafl")


class RayClients(Clients):
    """Clients on the actors of a Ray cluster. Ray is started, or joined, when training starts.

    Attributes
    ----------
    engine
        What the actors run: `stacked`, or `loop` for a model that does not stack.
    shards
        The actors, and what went between them and here.
    """

    algorithm: Algorithm

    def __init__(self, job: Job, folder: RunFolder) -> None:
        require_ray()
        federation, task, settings = job.federation, job.task, job.engine
        self.client_index, self._folder = ClientIndex.of(federation), folder
        self.task, self.local, self.seed, self.privacy = task, job.local, job.seed, job.privacy
        self.threads, self.device = settings.threads or cores(), torch.device("cpu")
        self._one_by_one = job.robust is not None
        x, y = some(federation.x, slice(2)), federation.y[:2]
        task.check(x, y)
        self.engine = "stacked" if task.unstackable(x, y) is None else "loop"
        # Not the task: once it was used, it may hold tensors that cannot leave the process.
        what = task.template, task.kind
        config = WorkerConfig(
            *what, job.local, job.seed, self.engine, settings.memory, settings.state_memory, job.privacy,
            one_by_one=job.robust is not None,
        )  # fmt: skip
        self.shards = Shards(federation, config, job.ray, self._bring_back)

    # --- rounds --------------------------------------------------------------------------------------------

    def start(self, algorithm: Algorithm, theta0: Tensor) -> None:
        if self.privacy is not None:
            self.privacy.check(algorithm)
        self.algorithm, self._theta0 = algorithm, theta0
        self._like = first_state(algorithm, theta0, self.local)
        self._releases = np.zeros(len(self.client_index), np.int64)
        self.shards.open()
        self.shards.ask("start", dict.fromkeys(self.shards, (algorithm, theta0.numpy())))

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        trainer = self.shards.trainers(ids)
        places = by_value(trainer)
        away = np.flatnonzero(trainer != self.shards.owner[ids])
        if not self._like and self.privacy is None:
            away = away[:0]  # they have nothing to bring along
        states = self.rows(ids[away]) if len(away) else {}
        to_all = self.shards.put("train", arrays(sent.shared))
        messages, borrowed = {}, {}
        for n, at in places.items():
            there = np.flatnonzero(trainer[away] == n)
            borrowed[n] = ids[away[there]]
            brought = arrays(_rows(states, there))
            messages[n] = round, ids[at], arrays(_rows(sent.each, at)), to_all, borrowed[n], brought
        found, gone = self.shards.answers("train", messages)
        self._send_home([(borrowed[n], answer["borrowed"]) for n, answer in found.items() if answer["borrowed"]])
        answered = np.sort(np.concatenate([np.arange(0), *(places[n] for n in found)]))
        failed = np.sort(np.concatenate([np.arange(0), *(answer["failed"] for answer in found.values())]))
        steps, gradients = np.zeros((2, len(ids)), np.int64)
        for n, answer in found.items():
            steps[places[n]], gradients[places[n]] = answer["steps"], answer["gradients"]
            self._releases[answer["told"]] += answer["releases"]
        dropped = {int(i): why for n, why in gone.items() for i in ids[places[n]]}
        uploads = self._uploads([found[n] for n in sorted(found)])
        bytes_up = sum(answer["bytes_up"] for answer in found.values())
        worked = ids[answered], steps[answered], gradients[answered]
        return Answers(uploads, *worked, failed, bytes_up, dict(sorted(dropped.items())))

    def _send_home(self, borrowed: Sequence[tuple[Ints, Arrays]]) -> None:
        """Give the states of clients that were trained elsewhere to their owners."""
        if borrowed:
            ids = np.concatenate([some for some, _ in borrowed])
            rows = {name: np.concatenate([state[name] for _, state in borrowed]) for name in borrowed[0][1]}
            self.shards.tell_soon("put_rows", self._by_shard(ids, _tensors(rows)))

    def _uploads(self, answers: Sequence[Mapping[str, Any]]) -> Uploads:
        parts = []
        for answer in answers:
            if len(ids := answer["ids"]):
                samples = torch.from_numpy(self.client_index.sizes["train"][ids])
                group = None if self._one_by_one else torch.tensor([[int(samples.sum()), len(ids)]])
                values = _tensors(answer["values"])
                parts.append(Uploads(torch.tensor(ids), samples, values, self.algorithm.uplink, group))
        return Uploads.join(parts) if parts else Uploads(torch.arange(0), torch.arange(0), {}, self.algorithm.uplink)

    def with_statistics(self, theta: Tensor) -> Tensor:
        if self.privacy is not None or not self.task.lacks_statistics(theta):
            return theta

        def ask(known: Sequence[Moments]) -> Moments | None:
            messages = {n: (self.shards.ids[n], theta.numpy(), list(known)) for n in self.shards}
            found = [part for part in self.shards.ask("moments", messages).values() if part is not None]
            return Moments.merged(found) if found else None

        return torch.cat([theta, self.task.running(by_layer(ask))])

    def measure(self, snapshot: ServerSnapshot, ids: Ints) -> Columns:
        places = self.shards.places(ids)
        found = self.shards.ask("measure", self._views("measure", snapshot, ids, places))
        return _gathered(found, places, len(ids))

    def _views(
        self, purpose: str, snapshot: ServerSnapshot, ids: Ints, places: Mapping[int, Ints]
    ) -> dict[int, tuple[Any, ...]]:
        """What each shard is told of a snapshot, and what all are told."""
        sent = snapshot.send(ids)
        common = None if snapshot.common is None else snapshot.common.numpy()
        to_all = self.shards.put(purpose, {"shared": arrays(sent.shared), "common": common})
        views: dict[int, tuple[Any, ...]] = {}
        for n, at in places.items():
            kept = None if snapshot.kept is None else snapshot.kept[self.shards.ids[n]]
            views[n] = ShardRequest(snapshot.round, snapshot.last, ids[at], arrays(_rows(sent.each, at)), kept), to_all
        return views

    # --- states --------------------------------------------------------------------------------------------

    def rows(self, ids: Ints) -> State:
        places = self.shards.places(ids)
        found = self.shards.ask("rows", {n: (ids[at],) for n, at in places.items()})
        return _tensors(_gathered(found, places, len(ids)))

    def put_rows(self, ids: Ints, rows: State) -> None:
        if self.privacy is not None:
            self._releases[ids] = rows[RELEASES].numpy()
        if SEEN not in rows:
            check_kept(self._like, {name: value for name, value in rows.items() if name != RELEASES})
        self.shards.ask("put_rows", self._by_shard(ids, rows))

    @property
    def row_bytes(self) -> int:
        return message_bytes(arrays(self._like)) + 1 + (8 if self.privacy is not None else 0)

    def _by_shard(self, ids: Ints, rows: State) -> dict[int, tuple[Any, ...]]:
        return {n: (ids[at], arrays(_rows(rows, at))) for n, at in self.shards.places(ids).items()}

    def _bring_back(self, lost: list[int]) -> str:
        """Bring the clients of shards that have a new actor to their states in the last checkpoint; says which."""
        self.shards.tell("start", dict.fromkeys(lost, (self.algorithm, self._theta0.numpy())))
        theirs = np.zeros(len(self.client_index), np.bool_)
        theirs[np.concatenate([self.shards.ids[n] for n in lost])] = True

        def put(ids: Ints, own: State) -> None:
            counted = {} if self.privacy is None else {RELEASES: torch.from_numpy(self._releases[ids])}
            self.shards.tell("put_rows", self._by_shard(ids, own | counted))

        def put_theirs(ids: Ints, rows: State) -> None:
            mine = np.flatnonzero(theirs[ids])
            # The rows have the runner's counters too, which are not lost.
            own = {name: value for name, value in rows.items() if name.startswith("own.") and name != f"own.{RELEASES}"}
            put(ids[mine], {name.removeprefix("own."): value for name, value in _rows(own, mine).items()})

        if self.privacy is not None:  # what was sent was sent, whatever a client has forgotten
            sent = np.flatnonzero(theirs & (self._releases > 0))
            nothing = {name: value.new_zeros(len(sent), *value.shape) for name, value in self._like.items()}
            put(sent, {**nothing, SEEN: torch.zeros(len(sent), dtype=torch.bool)})
        found = checkpoint.latest(self._folder.checkpoints)
        if found is None:
            return "who begin anew: there is no checkpoint yet"
        ClientLog(len(self.client_index), self.row_bytes).read(self._folder.checkpoints, found.clients, put_theirs)
        return f"as they were after round {found.round}"

    # --- at the end ----------------------------------------------------------------------------------------

    def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
        predictions, names = self._predictions(snapshot, ids), self.client_index.ids
        if predictions is not None:
            folder.write_predictions(predictions)
        kept = np.ones(len(self.client_index), np.bool_) if snapshot.kept is None else snapshot.kept
        mine, others = np.flatnonzero(kept), np.flatnonzero(~kept)
        shared = self._shared(snapshot, others)
        folder.write_others([names[i] for i in others], None if shared is None else self.task.state_dict(shared))
        models = (self.task.state_dict(theta) for theta in self._personal(snapshot, mine))
        folder.write_personal([names[i] for i in mine], models)

    def _predictions(self, snapshot: ServerSnapshot, ids: Ints) -> pa.Table | None:
        """As `Predictions.table` of all clients: the actors' tables, in the order of the clients."""
        sizes = self.client_index.sizes["test"][ids]
        if sizes.sum() > MOST:
            return None
        places = {n: at for n, at in self.shards.places(ids).items() if sizes[at].any()}
        found = self.shards.ask("predictions", self._views("predictions", snapshot, ids, places))
        if not found or any(table is None for table in found.values()):
            return None
        owners = np.concatenate([np.repeat(places[n], sizes[places[n]]) for n in found])
        rows = pa.concat_tables(found.values()).take(np.argsort(owners, kind="stable")).combine_chunks()
        number = np.repeat(np.arange(len(ids)), sizes).astype(np.int32)
        clients = pa.DictionaryArray.from_arrays(number, [self.client_index.ids[i] for i in ids.tolist()])
        return pa.table({"client": clients, **{name: rows.column(name).chunk(0) for name in rows.column_names}})

    def _shared(self, snapshot: ServerSnapshot, others: Ints) -> Tensor | None:
        """The one model of clients that were never active; None where they differ."""
        if not len(others):
            return None
        places = self.shards.places(others)
        models = list(self.shards.ask("shared_model", self._views("shared_model", snapshot, others, places)).values())
        same = all(model is not None and np.array_equal(model, models[0]) for model in models)
        return torch.tensor(models[0]) if same else None

    def _personal(self, snapshot: ServerSnapshot, ids: Ints) -> Iterator[Tensor]:
        many = max(1, AT_ONCE // (4 * self.task.full_size))
        for first in range(0, len(ids), many):
            some = ids[first : first + many]
            places = self.shards.places(some)
            found = self.shards.ask("personal", self._views("personal", snapshot, some, places))
            yield _tensors(_gathered(found, places, len(some)))["theta"]

    def close(self) -> None:
        self.shards.close()


def _rows(state: State, places: Ints) -> State:
    at = torch.from_numpy(places)
    return {name: value.index_select(0, at.to(value.device)) for name, value in state.items()}


def _tensors(state: Arrays) -> State:
    """Copies: what Ray hands out may not be written to."""
    return {name: torch.tensor(value) for name, value in state.items()}


def _gathered(found: Mapping[int, Arrays], places: Mapping[int, Ints], count: int) -> Arrays:
    """The rows of several shards in their places."""
    first = next(iter(found.values()))
    out = {name: np.empty((count, *value.shape[1:]), value.dtype) for name, value in first.items()}
    for n, columns in found.items():
        for name, value in columns.items():
            out[name][places[n]] = value
    return out
