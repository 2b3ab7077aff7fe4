"""What a site does: one client with its own data, its own disk, and a say in what it takes part in.

A site is told what to do by messages, and keeps what is its own: the samples, the state between rounds, the
personalized model. What it gives away is what it says of itself (`introduce`), what the algorithm sends up (`train`),
and sums of metrics (`measure`). Each of the latter two is in its ledger before it leaves.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms import Algorithm
from personafl.backends.flower.evaluations import LastReport, digest, rounded, why_not
from personafl.backends.flower.job import (
    JobDescription,
    Layout,
    Order,
    Together,
    fingerprint,
    layout_of,
    upload_of,
)
from personafl.backends.flower.ledger import Entry, Ledger, What, check_budget
from personafl.backends.flower.limits import (
    SiteEngine,
    check_common,
    check_local,
    check_model,
    check_sent,
    check_together,
    noise_that_counts,
)  # fmt: skip
from personafl.backends.flower.policy import check_order, check_rounds, check_upload, read_policy
from personafl.backends.flower.site_data import SiteSettings, read_data
from personafl.backends.flower.state_history import StateHistory
from personafl.backends.flower.vectors import with_vectors
from personafl.engines.loop import LoopEngine
from personafl.engines.machine import torch_threads
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.federation.missing import VALUE
from personafl.files import make_folder, write_tensors, write_text
from personafl.inputs import dtype_of, shape_of, shape_text
from personafl.kernels.task import Task
from personafl.settings import Local
from personafl.states import State
from personafl.training.clients import LocalClients
from personafl.training.distributed_noise import NoiseShare
from personafl.training.evaluation import Columns, ServerSnapshot
from personafl.training.privacy import Privacy, SecureNoise
from personafl.version import __version__

ME = np.zeros(1, np.int64)
"""The position of a site's client in its own federation."""


@dataclass(frozen=True)
class Trained:
    """What a site answers after training; a `failed` update was not finite, and the site keeps what it had."""

    up: State
    steps: int
    failed: bool


@dataclass(frozen=True)
class Measured:
    """What a site reports of its models; `withheld` says why there are no metrics, where there are none."""

    columns: Columns
    withheld: str = ""


class Site:
    """One client at its own site.

    Parameters
    ----------
    settings
        As its TOML file says.
    own
        A model and an algorithm that are not described by name; only simulations have them. These have no limits, and
        their noise follows from the seed.
    """

    def __init__(self, settings: SiteSettings, own: tuple[Task, Algorithm] | None = None) -> None:
        self.settings, self._own = settings, own
        self.ledger = Ledger(Path(settings.folder), settings.id)
        self.policy = None if settings.policy is None else read_policy(Path(settings.policy))

    @property
    def simulated(self) -> bool:
        """Whether this is one of many in a simulation, which has no limits and keeps no record."""
        return self._own is not None

    # --- what the server may ask for -----------------------------------------------------------------------

    def introduce(self) -> dict[str, Any]:
        """Who this is, and what its data looks like: never a sample."""
        data = self._data
        return {
            "client": self.settings.id,
            "group": data.groups[0] if data.groups is not None else "",
            **{split: int(data.sizes(split)[0]) for split in ("train", "val", "test")},
            "classes": data.classes or 0,
            "outputs": int(np.prod(data.y.shape[1:])),
            "inputs": json.dumps({"shape": shape_of(data.x), "dtype": dtype_of(data.x)}),
            "personafl": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }

    def train(self, order: Order, upload: Layout) -> Trained:
        """Train for a round, keep the new state on the disk, and give what goes up.

        Parameters
        ----------
        upload
            What the server expects to get, see `layout_of`.

        Raises
        ------
        PersonaflError
            This site does not take part, or cannot. What it kept is as it was.
        """
        with torch_threads(self.settings.threads), torch.no_grad():
            check_together(self.settings, order)
            clients, versions = self._clients(order)
            own, sent = clients.algorithm.new_client(clients.theta0, order.sent.one(0)), order.sent.one(0)
            agreed = upload_of(clients.algorithm, clients.local, own, sent)
            if layout_of(agreed) != upload:
                raise ConfigError(
                    f"site {self.settings.id}: {clients.algorithm.name} sends {', '.join(agreed) or 'nothing'} by this "
                    f"site's code, the server asks for {', '.join(map(str, upload)) or 'nothing'} or other shapes"
                )
            check_upload(self.policy, self.settings.id, layout_of(agreed))
            versions.settle(order.accepted, order.durable)
            entry = self._entry(order, clients, "update" if agreed else "nothing")
            if isinstance(clients.engine, SiteEngine):
                clients.engine.sends = bool(agreed)
                self._check_entry(self.ledger.entries(), entry)
            before = int(clients.releases[0])
            answers = clients.train(order.round, ME, order.sent)
            if clients.privacy is not None and clients.privacy.unit == "sample":
                entry = replace(entry, batches=int(clients.releases[0]) - before)
            failed = len(answers.failed) > 0
            self._write_down(replace(entry, what="failed") if failed else entry)
            if not failed:
                versions.write(order.round, {name: value[0] for name, value in clients.store.get(ME).items()})
            up = {} if failed else {name: value[0] for name, value in answers.uploads.values.items()}
            return Trained(up, int(answers.steps[0]), failed)

    def measure(self, order: Order, last: bool, common: Tensor | None) -> Measured:
        """Sums of loss and metrics of this client's personalized model and the common one, as far as they are reported.

        After the last round the personalized model is written to the site's disk, whatever is reported.
        """
        with torch_threads(self.settings.threads), torch.no_grad():
            clients, versions = self._clients(order, evaluating=True)
            versions.settle(order.accepted, order.durable)
            if self._own is not None:
                return Measured(self._measure(clients, order, last, common))
            return self._report(clients, versions, order, last, common)

    # --- how -------------------------------------------------------------------------------------------------

    @cached_property
    def _data(self) -> Federation:
        return read_data(self.settings)

    def _clients(self, order: Order, evaluating: bool = False) -> tuple[LocalClients, StateHistory]:
        """This client with the state that the server knows of."""
        job, here = order.job, self.settings
        if here.allow and job.algorithm.get("name") not in here.allow:
            raise ConfigError(f"site {here.id} does not take part in {job.algorithm.get('name')!r}: not in its allow")
        if self.policy is not None:
            check_order(self.policy, here.id, order, self.ledger.entries(), not evaluating)
        data = read_data(here, job.seed, job.classes)
        if self._own is None:
            job.check_backbone(here.id, data.backbone)
        self._check(data, job)
        local = job.make_local()
        if self._own is None:
            check_local(here, local, int(data.sizes("train")[0]))
            constants = with_vectors(data.constants, here.id, here.vectors, job.vectors)
            check_model(here, job, constants)
            made = job.make_task(constants, here.id, here.weights), job.make_algorithm()
        task, algorithm = self._own or made
        theta0 = task.theta0 if order.theta0 is None else order.theta0
        if (order.accepted == 0 or (evaluating and self._own is None)) and fingerprint(theta0) != job.theta0:
            raise ConfigError(
                f"site {here.id}: the initial weights are not the server's: they follow from model and seed, and may "
                f"differ between versions of torch (here {torch.__version__})"
            )
        versions = StateHistory(here.states / job.run, here.id)
        privacy = job.make_privacy()
        own_noise = noise_that_counts(here, privacy, order.together)
        if here.least_noise > own_noise:
            at_server = " at the sites" if privacy is not None and privacy.noise_at == "server" else ""
            raise ConfigError(
                f"site {here.id} takes part with privacy.noise of at least {here.least_noise:g}, this run has "
                f"{own_noise:g}{at_server}"
            )
        clients = self._engine_clients(task, data, local, job, privacy, order.together)
        clients.start(job.prepare(algorithm, task, local), theta0)
        if self._own is None:
            check_sent(here, clients.algorithm, theta0, order.sent, evaluating)
        if privacy is not None:
            before = [e for e in self.ledger.entries() if e.run == job.run]
            counted = [e.batches if privacy.unit == "sample" else e.what == "update" for e in before]
            clients.releases[:] = sum(counted)
        if order.accepted:
            own = versions.read(order.accepted, clients.store.like)
            clients.store.put(ME, {name: value[None] for name, value in own.items()})
        return clients, versions

    def _engine_clients(
        self,
        task: Task,
        data: Federation,
        local: Local,
        job: JobDescription,
        privacy: Privacy | None,
        together: Together | None,
    ) -> LocalClients:
        threads = self.settings.threads
        if self._own is not None:
            return LocalClients(LoopEngine(task, data, local, job.seed, threads=threads), privacy=privacy)
        engine = SiteEngine(task, data, local, job.seed, threads=threads)
        engine.settings = self.settings
        share = SecureNoise() if together is None else NoiseShare(together.noise_sharers, together.weight)
        return LocalClients(engine, privacy=privacy, noise=share)

    # --- the ledger ------------------------------------------------------------------------------------------

    def _entry(self, order: Order, clients: LocalClients, what: What) -> Entry:
        privacy, job = clients.privacy, order.job
        entry = Entry(job.run, order.round, what, clients.algorithm.name)
        if privacy is None:
            return entry
        noise = noise_that_counts(self.settings, privacy, order.together)
        return replace(entry, clip=privacy.clip, noise=noise, delta=privacy.delta)

    def _write_down(self, entry: Entry) -> None:
        """Before an answer leaves: another process may have answered since this one began."""
        if self._own is None:
            self.ledger.add(entry, lambda entries: self._check_entry(entries, entry))
        elif entry.clip is not None:  # a simulation counts its answers, for their ε, and nothing else
            self.ledger.add(entry)

    def _check_entry(self, entries: Sequence[Entry], entry: Entry) -> None:
        here = self.settings
        check_budget(here.id, entries, entry, here.most_epsilon, here.delta)
        if self.policy is not None and entry.what != "metrics":
            check_rounds(self.policy, here.id, entry.run, entries)
        if entry.what == "metrics" and (why := why_not(entries, entry.run, entry.round)):
            raise ConfigError(f"site {here.id} reports no metrics: {why}")

    # --- evaluation ------------------------------------------------------------------------------------------

    def _measure(self, clients: LocalClients, order: Order, last: bool, common: Tensor | None) -> Columns:
        snapshot = ServerSnapshot(order.round, last, lambda ids: order.sent, common, clients.theta0)
        columns = clients.measure(snapshot, ME)
        if last:
            theta = next(iter(clients.personal(snapshot, ME)))[0]
            self._keep(clients, order, theta, columns)
        return columns

    def _report(
        self, clients: LocalClients, versions: StateHistory, order: Order, last: bool, common: Tensor | None
    ) -> Measured:
        """What leaves the site, see `evaluations`."""
        theta0 = clients.task.theta0 if order.theta0 is None else order.theta0
        check_common(self.settings, clients.algorithm, theta0, order.sent, common)
        asked, last_report = (
            digest(order, last, common, clients.engine.federation.fingerprint),
            LastReport(versions.folder),
        )
        again, why = last_report.recall(asked) if self.settings.reports_metrics else None, self._why_not(order)
        exact = self._measure(clients, order, last, common) if last or (again is None and not why) else {}
        if again is not None:
            return Measured(again)
        if why:
            return Measured(clients.spent(ME), why)
        sizes = {str(split): int(count[0]) for split, count in clients.client_index.sizes.items()}
        columns = rounded(exact, sizes, clients.task.classification)
        self._write_down(self._entry(order, clients, "metrics"))
        last_report.keep(asked, columns)
        return Measured(columns)

    def _why_not(self, order: Order) -> str:
        if self.settings.reports_metrics:
            why = why_not(self.ledger.entries(), order.job.run, order.round)
        else:
            why = "it asks for privacy, and with enough noise they would say nothing"
        return f"site {self.settings.id} reports no metrics: {why}" if why else ""

    # --- its data and model ----------------------------------------------------------------------------------

    def _check(self, data: Federation, job: JobDescription) -> None:
        shape, outputs = shape_of(data.x), data.classes or int(np.prod(data.y.shape[1:]))
        if shape != job.shape:
            here, wanted = shape_text(shape), shape_text(job.shape)
            raise DataError(f"site {self.settings.id}: its samples have shape {here}, the model wants {wanted}")
        if job.task is not None and self._own is None:
            job.make_kind().check_labels(data.y)
        elif job.task is None and ((data.classes is None) != (job.classes is None) or outputs != job.outputs):
            raise DataError(f"site {self.settings.id}: its labels are not what the federation's model puts out")

    def _keep(self, clients: LocalClients, order: Order, theta: Tensor, columns: Columns) -> None:
        """Write the personalized model and what there is to know of it."""
        folder = self.settings.models
        make_folder(folder)
        write_tensors(folder / "personal.safetensors", clients.task.state_dict(theta.cpu()), {"format": "pt"})
        about = {
            "client": self.settings.id,
            "round": order.round,
            "algorithm": order.job.algorithm,
            "model": order.job.model,
            **({} if order.job.backbone is None else {"backbone": order.job.backbone}),
            "samples": {split: int(sizes[0]) for split, sizes in clients.client_index.sizes.items()},
            "sums": {name: float(value[0]) for name, value in columns.items()},
            **_filled_in(clients.engine.federation),
        }
        write_text(folder / "personal.json", json.dumps(about, indent=1))


def _filled_in(data: Federation) -> dict[str, Any]:
    """What the model's samples need where values are missing, see `SiteSettings.missing`."""
    found = {name: value.tolist() for name, value in data.constants.items() if name.startswith(VALUE)}
    return {"filled_in": found} if found else {}
