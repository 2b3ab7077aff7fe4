"""An operator who changes what is asked of a site, but not the site's code: orders of any content, one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from personafl.algorithms import ALGORITHMS, Sent
from personafl.backends.flower.job import JobDescription, Order, fingerprint, layout_of, upload_of
from personafl.backends.flower.site import Site, Trained
from personafl.backends.flower.site_data import read_site
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.models import MODELS, initialize
from personafl.registry import checked, choose
from personafl.settings import Local
from tests.backends.flower.grid import write_site

SIZE, CLASSES = 16, 3
LOCAL = {"lr": 0.1, "batch_size": 20, "steps": 4}


def images(train: int = 40, test: int = 12) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Samples of 16 pixels between 0 and 1."""
    rng = np.random.default_rng(5)
    return {
        split: (rng.uniform(0, 1, (count, SIZE)).astype(np.float32), rng.integers(0, CLASSES, count))
        for split, count in {"train": train, "val": 6, "test": test}.items()
    }


class Operator:
    """Asks one site, called ann; `site.toml` has what is given here."""

    def __init__(self, folder: Path, data: dict[str, tuple[np.ndarray, np.ndarray]] | None = None, **table: Any):
        self.data = data or images()
        federation = Federation.from_clients({"ann": self.data}, classes=CLASSES)
        self.folder = folder / "ann"
        self.file = write_site(self.folder, "ann", federation, **table)

    @property
    def site(self) -> Site:
        """A new one for each message, as Flower starts a process for each."""
        return Site(read_site(self.file))

    def job(self, algorithm: Any = "fedavg", seed: int = 0, model: Any = "mclr", **more: Any) -> JobDescription:
        named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
        described = {"name": model} if isinstance(model, str) else model
        table = {"classes": CLASSES, "outputs": CLASSES, "clients": 3, "local": LOCAL, **more}
        theta0 = table.pop("theta0", None) or fingerprint(self.task(described, seed).theta0)
        return JobDescription(seed, named, described, shape=(SIZE,), groups=None, theta0=theta0, **table)

    def task(self, model: dict[str, Any], seed: int = 0) -> Task:
        return Task(initialize(choose("model", model, MODELS, None), (SIZE,), CLASSES, seed))

    def train(
        self, job: JobDescription, theta: torch.Tensor | None = None, round: int = 1, accepted: int = 0, **more
    ) -> Trained:
        """What the site answers when it is to train from `theta`, with `more` in place of what else is sent."""
        task, local = self.task(job.model, job.seed), checked(Local, "local", job.local)
        chosen = {k: v for k, v in job.algorithm.items() if k != "name"}
        algorithm = job.prepare(checked(ALGORITHMS[job.algorithm["name"]], "algorithm", chosen), task, local)
        sent = algorithm.send(algorithm.new_server(task.theta0, 3), torch.arange(1))
        if theta is not None:
            sent = Sent({**sent.shared, "theta": theta}, sent.each)
        each = {name: more.pop(name) for name in list(more) if name in sent.each}
        sent = Sent({**sent.shared, **more}, {**sent.each, **each})
        own = algorithm.new_client(task.theta0, sent.one(0))
        upload = layout_of(upload_of(algorithm, local, own, sent.one(0)))
        return self.site.train(Order(job, round, accepted, accepted, sent), upload)

    def evaluate(
        self,
        job: JobDescription,
        theta: torch.Tensor,
        round: int = 1,
        accepted: int = 0,
        last: bool = False,
        common: Any = None,
    ) -> Any:
        """What the site tells of a model that the operator has chosen."""
        order = Order(job, round, accepted, accepted, Sent({"theta": theta}))
        return self.site.measure(order, last, theta if common is None else common)
