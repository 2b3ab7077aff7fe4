"""The clients of a run at their sites, as the runner sees them: messages out, answers back, whoever answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from personafl.algorithms import Algorithm, Sent, Uploads
from personafl.backends.flower.declared_sizes import DeclaredSizes
from personafl.backends.flower.job import (
    JobDescription,
    Layout,
    fingerprint,
    layout_of,
    model_outputs,
    upload_of,
    usual_task,
)
from personafl.backends.flower.members import FederationSettings
from personafl.backends.flower.messages import pack, plain, unpack, values
from personafl.backends.flower.nodes import Nodes, missing
from personafl.backends.flower.screening import check_measures, rows_of, too_far, too_long
from personafl.backends.flower.work import gradients_per_step
from personafl.errors import DataError
from personafl.federation.splits import natural_order
from personafl.files import make_folder, write_text
from personafl.kernels.task import Task
from personafl.settings import Local
from personafl.states import Ints, State
from personafl.storage.folder import RunFolder
from personafl.training.clients import Answers, Clients
from personafl.training.evaluation import ClientIndex, Columns, ServerSnapshot, held_back_columns
from personafl.training.privacy import Noise, Privacy, SecureNoise
from personafl.training.sample_account import SampleAccount

log = logging.getLogger("personafl")

SPARE = 600.0
"""Seconds that a message stays valid beyond the round's timeout: clocks of sites may be wrong."""
MOST_STEPS = 10**9


class FlowerClients(Clients):
    """Clients at their sites.

    A site keeps its state itself; the server remembers the last round in which it took the site's answer, and tells it
    with every message. A site that was not heard in time goes back to that round's state.

    Parameters
    ----------
    algorithm
        As it was configured, not yet fitted to the run.
    model
        Its table of a config; empty for one that is not described, which only simulations have.
    seeded
        The fingerprint of the weights that sites make from the seed; left out, the task's.
    backbone
        What sites must have as their frozen backbone, see `JobDescription`.
    """

    algorithm: Algorithm
    job: JobDescription
    secret_cohorts = False  # sites know the seed

    def __init__(
        self,
        nodes: Nodes,
        client_index: ClientIndex,
        settings: FederationSettings,
        task: Task,
        algorithm: Algorithm,
        local: Local,
        seed: int,
        model: dict[str, Any],
        privacy: Privacy | None = None,
        seeded: str | None = None,
        backbone: dict[str, Any] | None = None,
    ) -> None:
        self.nodes, self.client_index, self.settings = nodes, client_index, settings
        self.task, self.local, self.seed, self.privacy = task, local, seed, privacy
        self._seeded, self._backbone = seeded or fingerprint(task.theta0), backbone
        self.threads, self.device = 1, torch.device("cpu")
        self._table, self._model = {"name": algorithm.name, **asdict(algorithm)}, model
        self.accepted = np.zeros(len(client_index), np.int64)
        nobody = np.zeros_like(self.accepted)
        self._saved = [(0, nobody), (0, nobody)]  # the two checkpoints that are kept: rounds, and `accepted`
        self._finished: set[int] = set()
        self._sizes = DeclaredSizes(nodes, client_index)
        if privacy is not None and privacy.unit == "sample":  # what sites would refuse
            made, one = algorithm.prepare(self.job_info), np.ones(1, np.int64)
            SampleAccount.of(privacy, made, task, local, task.theta0, one)

    @property
    def server_noise(self) -> Noise:
        return SecureNoise()

    # --- what the runner asks for ---------------------------------------------------------------------------

    def start(self, algorithm: Algorithm, theta0: Tensor) -> None:
        self.algorithm, self._theta0 = algorithm, theta0
        self.accepted[:] = 0
        shape, classes = self.settings.input_shape, self.settings.classes
        self.job = JobDescription(
            seed=self.seed,
            algorithm=self._table,
            model=self._model,
            local=self.local.table(),
            shape=shape,
            outputs=model_outputs(self.task.kind, classes, self.settings.outputs),
            classes=classes,
            clients=len(self.client_index),
            groups=self.client_index.groups,
            theta0=fingerprint(theta0),
            privacy=None if self.privacy is None else self.privacy.table(),
            task=None if self.task.kind == usual_task(classes) else self.task.kind.settings,
            backbone=self._backbone,
            vectors=None if self.settings.vectors is None else self.settings.vectors.sha256,
            secure=None if self.settings.secure is None else asdict(self.settings.secure),
        )
        # Weights that follow from the seed are made at the sites; others have to be sent.
        self._given = self.job.theta0 != self._seeded

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        at = self._find(ids, min(self.settings.min_answers, len(ids)))
        layout = self._upload(sent)
        each = gradients_per_step(self.algorithm, self.local, self._first(sent), sent.one(0))
        extra = {"upload": json.dumps(layout)}
        orders = {
            int(i): self._order("train", at[self.client_index.ids[i]], round, int(i), sent, k, extra)
            for k, i in enumerate(ids)
            if self.client_index.ids[i] in at
        }
        dropped = self._absent(ids, orders)
        ups: dict[int, State] = {}
        steps: dict[int, int] = {}

        def take(i: int, reply: RecordDict) -> None:
            said = self._said(reply, i, round, {"steps": int, "failed": bool})
            if not 0 <= said["steps"] <= MOST_STEPS:
                raise DataError(f"{said['steps']} steps cannot be")
            up = {} if said["failed"] else unpack(reply, "up", layout)
            if not said["failed"] and all(bool(torch.isfinite(v).all()) for v in up.values() if v.is_floating_point()):
                ups[i] = up
            steps[i] = said["steps"]

        dropped |= self.nodes.exchange(orders, self.client_index.ids, take, self.settings.round_timeout)
        for i, why in self._screen(ids, sent, ups).items():
            dropped[i] = why
            del ups[i], steps[i]
        good = np.array(sorted(ups), np.int64)
        if len(good) < self.settings.min_answers:
            few = f"given up: {len(good)} answers, at least {self.settings.min_answers} are needed"
            dropped |= {int(i): few for i in good}
            good, steps = good[:0], {i: count for i, count in steps.items() if i not in ups}
        if not len(good) and dropped:  # not everybody's update failed: the run goes on
            dropped, steps = dropped | dict.fromkeys(steps, "its update is not finite"), {}
        uploads = Uploads(
            torch.from_numpy(good),
            torch.from_numpy(self.client_index.sizes["train"][good]),
            {name: torch.stack([ups[i][name] for i in good]) for name in layout} if len(good) else {},
            self.algorithm.uplink,
            most=self.settings.max_weight,
        )
        return self._taken(round, uploads, steps, each, uploads.bytes(), dropped)

    def _taken(
        self, round: int, uploads: Uploads, steps: dict[int, int], each: int, size: int, dropped: dict[int, str]
    ) -> Answers:
        """What became of a cohort; the answers in `uploads` count, others of those that took steps failed."""
        good, active = uploads.ids.numpy(), np.array(sorted(steps), np.int64)
        self.accepted[good] = round
        taken = np.array([steps[i] for i in active], np.int64)
        failed = np.setdiff1d(active, good)
        return Answers(
            uploads,
            active,
            taken,
            each * taken,
            failed,
            size,
            dict(sorted(dropped.items())),
            self._sizes.joined(),
            np.array([i for i, client in enumerate(self.client_index.ids) if self.nodes.revoked(client)], np.int64),
        )

    def _screen(self, ids: Ints, sent: Sent, ups: dict[int, State]) -> dict[int, str]:
        """Whose update is left out, and why. Where all are too long, training has failed and not a site."""
        long = {i: why for i, up in ups.items() if (why := too_long(up)) is not None}
        if long and len(long) == len(ups):
            for i in long:
                del ups[i]
            return {}
        rest = {i: up for i, up in ups.items() if i not in long}
        places = {int(i): k for k, i in enumerate(ids) if int(i) in rest}
        return long | too_far(self.algorithm, rows_of(sent, places), rest, self.settings.max_norm_factor)

    def measure(self, snapshot: ServerSnapshot, ids: Ints) -> Columns:
        layout = self._columns(snapshot)
        found: dict[int, State] = {}

        def take(i: int, reply: RecordDict) -> None:
            # A site may report no metrics, and what its answers have cost its privacy nevertheless.
            withheld = self._said(reply, i, snapshot.round, {"withheld": str})["withheld"]
            expected = {name: kind for name, kind in layout.items() if not withheld or name == "epsilon"}
            columns = unpack(reply, "columns", expected)
            self._sizes.check(i)
            check_measures(columns, self.client_index, i, self.task, snapshot.common is not None)
            found[i] = columns
            if withheld:
                log.warning("round %d: %s", snapshot.round, plain(withheld))

        self._evaluate(snapshot, ids, take)
        silent = np.array([found.get(int(i), {}).keys() != layout.keys() for i in ids])
        columns: Columns = {"silent": silent}
        for name, (kind, _) in layout.items():
            column = np.full(len(ids), np.nan, kind if np.dtype(kind).kind == "f" or not silent.any() else "float64")
            for k, i in enumerate(ids):
                if name in found.get(int(i), {}):
                    column[k] = found[int(i)][name].numpy()[0]
            columns[name] = column
        columns["gradients"] = np.clip(columns["gradients"], 0, MOST_STEPS)  # a site says what it likes
        return columns

    def rows(self, ids: Ints) -> State:
        return {"accepted": torch.from_numpy(self.accepted[ids]), **self._sizes.rows(ids)}

    def put_rows(self, ids: Ints, rows: State) -> None:
        self.accepted[ids] = rows["accepted"].numpy()
        self._sizes.put_rows(ids, rows)

    @property
    def row_bytes(self) -> int:
        return 8 + self._sizes.row_bytes

    def saved(self, round: int) -> None:
        if round != self._saved[1][0]:
            self._saved = [self._saved[1], (round, self.accepted.copy())]

    def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
        """Nothing but a note: the personalized models are at the sites."""
        self._finish(snapshot)
        names = self.client_index.ids
        note = {
            "where": "models/personal.safetensors in the folder of each site",
            "clients": [names[i] for i in sorted(self._finished)],
            "without": [names[i] for i in range(len(names)) if i not in self._finished],
        }
        make_folder(folder.models)
        write_text(folder.models / "elsewhere.json", json.dumps(note, indent=1))

    def _finish(self, snapshot: ServerSnapshot) -> None:
        """Have sites make their models that have not yet: they were not evaluated, or not by this process."""
        waiting = np.array([i for i in range(len(self.client_index)) if i not in self._finished], np.int64)
        if len(waiting):
            self._evaluate(snapshot, waiting, lambda i, reply: None)

    # --- who is there ----------------------------------------------------------------------------------------

    def _find(self, ids: Ints, least: int) -> dict[str, int]:
        """The nodes of sites. Whoever is new is waited for, for a while; too few are waited for patiently."""
        wanted = {self.client_index.ids[i] for i in ids}

        def everybody(there: Mapping[str, int]) -> bool:
            return wanted <= there.keys() or not self.nodes.expecting

        def some(there: Mapping[str, int]) -> bool:
            return len(wanted & there.keys()) >= least

        self.nodes.look(everybody, self.settings.round_timeout)
        if not self.nodes.look(some, self.settings.patience):
            raise missing(self.nodes, sorted(wanted, key=natural_order), self.settings.patience)
        at = self.nodes.where()
        self._sizes.note(at)
        return at

    def _absent(self, ids: Ints, orders: Mapping[int, Message]) -> dict[int, str]:
        return {int(i): self.nodes.absent(self.client_index.ids[i]) for i in ids if int(i) not in orders}

    # --- messages --------------------------------------------------------------------------------------------

    def _order(
        self,
        kind: str,
        node: int,
        round: int,
        i: int,
        sent: Sent,
        k: int,
        extra: dict[str, Any],
        more: State | None = None,
    ) -> Message:
        """A message to client i, who has row k of what is sent."""
        accepted = int(self.accepted[i])
        order = {
            "job": self.job.text(), "client": self.client_index.ids[i], "round": round, "accepted": accepted,
            "durable": int(self._saved[0][1][i]), **extra,
        }  # fmt: skip
        records = {
            "order": ConfigRecord(order),
            "shared": pack(sent.shared),
            "each": pack({name: value[k : k + 1] for name, value in sent.each.items()}),
        }
        if more:
            records["common"] = pack(more)
        if self._given and (accepted == 0 or kind == "evaluate"):
            records["theta0"] = pack({"theta0": self._theta0})
        ttl = self.settings.round_timeout + SPARE
        signed = self.nodes.sign(RecordDict(records), kind, self.client_index.ids[i], self.job.run)
        return Message(signed, node, kind, ttl=ttl, group_id=str(round))

    def _said(self, reply: RecordDict, i: int, round: int, kinds: dict[str, type]) -> dict[str, Any]:
        said = values(reply, "answer", {"client": str, "round": int, **kinds})
        if (said["client"], said["round"]) != (self.client_index.ids[i], round):
            raise DataError(f"it answers as {said['client'][:80]} in round {said['round']}")
        return said

    def _evaluate(self, snapshot: ServerSnapshot, ids: Ints, take: Callable[[int, RecordDict], None]) -> None:
        at = self._find(ids, 0)
        sent = snapshot.send(ids)
        common = None if snapshot.common is None else {"theta": snapshot.common}
        extra = {"last": snapshot.last}
        orders = {
            int(i): self._order(
                "evaluate", at[self.client_index.ids[i]], snapshot.round, int(i), sent, k, extra, common
            )
            for k, i in enumerate(ids)
            if self.client_index.ids[i] in at
        }

        def taken(i: int, reply: RecordDict) -> None:
            self._said(reply, i, snapshot.round, {})
            take(i, reply)
            if snapshot.last:
                self._finished.add(i)

        dropped = self._absent(ids, orders)
        dropped |= self.nodes.exchange(orders, self.client_index.ids, taken, self.settings.round_timeout)
        for i, why in sorted(dropped.items()):
            log.warning("round %d: %s was not evaluated (%s)", snapshot.round, self.client_index.ids[i], why)

    # --- what answers must look like -------------------------------------------------------------------------

    def _upload(self, sent: Sent) -> Layout:
        return layout_of(upload_of(self.algorithm, self.local, self._first(sent), sent.one(0)))

    def _first(self, sent: Sent) -> State:
        """What a client begins with that is sent the first row."""
        return self.algorithm.new_client(self._theta0, sent.one(0))

    def _columns(self, snapshot: ServerSnapshot) -> Layout:
        """One number a column: the sums of losses and metrics, and what the algorithm reports."""
        sent = snapshot.send(np.zeros(1, np.int64))
        reported = self.algorithm.report(self._first(sent), sent.one(0))
        sums = ("loss", *self.task.kind.columns)
        tags = ("personal_", "personal_val_", "global_", "global_val_")
        out: Layout = {name: (kind, (1,)) for name, (kind, _) in layout_of(reported).items()}
        out["gradients"] = ("float64", (1,))
        if self.privacy is not None and self.privacy.noise_at == "clients":
            out["epsilon"] = ("float64", (1,))
        held = held_back_columns(self.task) if self.local.held_back is not None else []
        return (
            out
            | {f"{tag}{name}": ("float64", (1,)) for tag in tags for name in sums}
            | dict.fromkeys(held, ("float64", (1,)))
        )
