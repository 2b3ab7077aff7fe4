"""What a site does: one client with its own data, its own disk, and a say in what it takes part in.

A site is told what to do by messages, and keeps what is its own: the samples, the state between rounds, the
personalized model. What it gives away is its card (`introduce`), what the algorithm sends up (`train`), and sums of
metrics (`measure`).
"""

from __future__ import annotations

import json
import os
import platform
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms import Algorithm, Sent, State
from personafl.clients import LocalClients
from personafl.engines.base import torch_threads
from personafl.engines.loop import LoopEngine
from personafl.errors import ConfigError, DataError
from personafl.evaluation import Columns, Moment
from personafl.federation import Federation
from personafl.files import disk_errors, make_folder, write_tensors, write_text
from personafl.flower.job import Job, Layout, fingerprint, layout_of, upload_of
from personafl.flower.site_data import SiteSettings, read_data
from personafl.flower.versions import Versions
from personafl.task import Task
from personafl.version import __version__

ME = np.zeros(1, np.int64)
"""The position of a site's client in its own federation."""


@dataclass(frozen=True)
class Order:
    """What the server asks for.

    Attributes
    ----------
    round
        The round that is running, or that has just ended where it is about evaluation.
    accepted
        The last round in which the server took this site's answer; 0 for none.
    durable
        The same as the oldest checkpoint has it that the server may go back to.
    sent
        What the algorithm sends.
    theta0
        The initial weights, where they do not follow from the seed and this site may need them.
    """

    job: Job
    round: int
    accepted: int
    durable: int
    sent: Sent
    theta0: Tensor | None = None


@dataclass(frozen=True)
class Trained:
    """What a site answers after training; a `failed` update was not finite, and the site keeps its old state."""

    up: State
    steps: int
    failed: bool


class Site:
    """One client at its own site.

    Parameters
    ----------
    settings
        As its TOML file says.
    own
        A model and an algorithm that are not described by name; only simulations have them.
    """

    def __init__(self, settings: SiteSettings, own: tuple[Task, Algorithm] | None = None) -> None:
        self.settings, self._own = settings, own

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
            "shape": list(data.x.shape[1:]),
            "dtype": str(data.x.dtype).removeprefix("torch."),
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
            clients, versions = self._clients(order)
            agreed = upload_of(clients.algorithm, clients.local, clients.store.default, _row(order.sent))
            if layout_of(agreed) != upload:
                raise ConfigError(
                    f"site {self.settings.id}: {clients.algorithm.name} sends {', '.join(agreed) or 'nothing'} by this "
                    f"site's code, the server asks for {', '.join(map(str, upload)) or 'nothing'} or other shapes"
                )
            versions.settle(order.accepted, order.durable)
            answers = clients.train(order.round, ME, order.sent)
            failed = len(answers.failed) > 0
            if not failed:
                versions.count(versions.answers + (len(agreed) > 0))
                versions.write(order.round, {name: value[0] for name, value in clients.store.get(ME).items()})
            up = {} if failed else {name: value[0] for name, value in answers.uploads.values.items()}
            return Trained(up, int(answers.steps[0]), failed)

    def measure(self, order: Order, last: bool, common: Tensor | None) -> Columns:
        """Sums of loss and metrics of this client's personalized model and the common one.

        After the last round the personalized model is written to the site's disk.
        """
        with torch_threads(self.settings.threads), torch.no_grad():
            clients, versions = self._clients(order)
            versions.settle(order.accepted, order.durable)
            moment = Moment(order.round, last, lambda ids: order.sent, common)
            columns = clients.measure(moment, ME)
            if last:
                theta = next(iter(clients.personal(moment, ME)))[0]
                self._keep(clients, order, theta, columns)
            return columns

    # --- how -------------------------------------------------------------------------------------------------

    @cached_property
    def _data(self) -> Federation:
        return read_data(self.settings)

    def _clients(self, order: Order) -> tuple[LocalClients, Versions]:
        """This client with the state that the server knows of."""
        job, here = order.job, self.settings
        if here.allow and job.algorithm.get("name") not in here.allow:
            raise ConfigError(f"site {here.id} does not take part in {job.algorithm.get('name')!r}: not in its allow")
        data = read_data(here, job.seed, job.classes)
        self._check(data, job)
        task, algorithm = self._own or (job.make_task(data.tables), job.make_algorithm())
        local = job.make_local()
        theta0 = task.theta0 if order.theta0 is None else order.theta0
        if order.accepted == 0 and fingerprint(theta0) != job.theta0:
            raise ConfigError(
                f"site {here.id}: the initial weights are not the server's: they follow from model and seed, and may "
                f"differ between versions of torch (here {torch.__version__})"
            )
        versions = Versions(here.states / job.run, here.id)
        engine = LoopEngine(task, data, local, job.seed, threads=here.threads)
        privacy = job.make_privacy()
        if here.least_noise > (privacy.noise if privacy else 0.0):
            raise ConfigError(
                f"site {here.id} takes part with privacy.noise of at least {here.least_noise:g}, this run has "
                f"{privacy.noise if privacy else 0.0:g}"
            )
        clients = LocalClients(engine, privacy=privacy, secret=self._secret if privacy else None)
        clients.start(job.prepare(algorithm, task, local), theta0)
        clients.releases[:] = versions.answers
        own = versions.read(order.accepted, clients.store.default)
        if order.accepted:
            clients.store.put(ME, {name: value[None] for name, value in own.items()})
        return clients, versions

    @property
    def _secret(self) -> str | None:
        """What this site's noise follows from, known to nobody else; a simulation's follows from the seed."""
        if self._own is not None:
            return None
        path = Path(self.settings.folder) / "secret"
        with disk_errors(path, "keeping"):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                    file.write(secrets.token_hex(32))
            return path.read_text(encoding="utf-8")

    def _check(self, data: Federation, job: Job) -> None:
        shape, outputs = tuple(data.x.shape[1:]), data.classes or int(np.prod(data.y.shape[1:]))
        if shape != job.shape:
            raise DataError(f"site {self.settings.id}: its samples have shape {shape}, the model wants {job.shape}")
        if (data.classes is None) != (job.classes is None) or outputs != job.outputs:
            raise DataError(f"site {self.settings.id}: its labels are not what the federation's model puts out")

    def _keep(self, clients: LocalClients, order: Order, theta: Tensor, columns: Columns) -> None:
        """Write the personalized model and what there is to know of it."""
        folder = self.settings.models
        make_folder(folder)
        write_tensors(folder / "personal.safetensors", clients.task.state_dict(theta.cpu()), {"format": "pt"})
        card = {
            "client": self.settings.id,
            "round": order.round,
            "algorithm": order.job.algorithm,
            "model": order.job.model,
            "samples": {split: int(sizes[0]) for split, sizes in clients.roster.sizes.items()},
            "sums": {name: float(value[0]) for name, value in columns.items()},
        }
        write_text(folder / "personal.json", json.dumps(card, indent=1))


def _row(sent: Sent) -> State:
    return {**sent.shared, **{name: value[0] for name, value in sent.each.items()}}
