"""Shadow runs of an audit: the loss of each sample, by models trained with it and by models trained without it.

A client's training and test samples are one pool. The run that is audited was trained on the first of them; a shadow is
the same run with another part of the pool, of the same size, as each client's training data, and other random numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Sent
from personafl.engines.auto import make_engine
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.inputs import some
from personafl.metrics.inputs import Floats
from personafl.states import Ints
from personafl.storage.folder import RunFolder
from personafl.streams import generator, stream_key
from personafl.training.clients import Answers, LocalClients
from personafl.training.evaluation import ServerSnapshot
from personafl.training.job import Job
from personafl.training.rounds import Origin, run_rounds

Target = Literal["personal", "update", "global"]


@dataclass(frozen=True)
class Observed:
    """The result of a training: the loss of every sample by each kind of model, NaN where there is none.

    `inside` says which samples were training data, `first` is the personalized model of the first client.
    """

    losses: dict[Target, Floats]
    inside: NDArray[np.bool_]
    first: Tensor


def observe(job: Job) -> Observed:
    """Train a job and look at its models."""
    if job.task.couples_samples:
        raise ConfigError("an audit needs the loss of each sample, and this task's loss couples them")
    cohort = job.schedule.cohort_size(len(job.federation))
    engine, _ = make_engine(
        job.engine, job.task, job.federation, job.local, job.seed, cohort=cohort, rounds=job.schedule.rounds
    )
    stops = job.schedule.patience is not None
    schedule = replace(job.schedule, checkpoint_every=0, eval_every=job.schedule.eval_every if stops else 0)
    with tempfile.TemporaryDirectory(prefix="personafl-audit-") as folder:
        clients = WatchedClients(engine, job.engine.state_memory, Path(folder), job.privacy)
        origin = Origin(resolved={"clients": len(job.federation), "fingerprint": job.federation.fingerprint})
        run_rounds(RunFolder(Path(folder) / "run"), clients, job.algorithm, schedule, origin, robust=job.robust)
    inside = np.zeros(len(job.federation.y), np.bool_)
    for start, size in zip(job.federation.starts("train"), job.federation.sizes("train"), strict=True):
        inside[start : start + size] = True
    return Observed(clients.losses, inside, clients.first)


def shadow(job: Job, seed: int, number: int) -> Observed:
    """Train with another split of every client's samples; losses are in the order of the job's own samples."""
    order = redrawn(job.federation, seed, number)
    federation = replace(job.federation, x=some(job.federation.x, torch.from_numpy(order)), y=job.federation.y[order])
    other = int(stream_key(seed, "shadow", number)) % 2**62
    found = observe(replace(job, federation=federation, seed=other))
    back = np.argsort(order)
    return Observed({name: loss[back] for name, loss in found.losses.items()}, found.inside[back], found.first)


def redrawn(federation: Federation, seed: int, number: int) -> Ints:
    """An order of all samples in which each client's training and test samples are drawn anew from both."""
    order = np.arange(len(federation.y))
    draw = generator(seed, "audit", number)
    places = [part(split) for split in ("train", "test") for part in (federation.starts, federation.sizes)]
    for train, many, test, more in zip(*places, strict=True):
        pool = np.concatenate([np.arange(train, train + many), np.arange(test, test + more)])
        order[pool] = draw.permutation(pool)
    return order


class WatchedClients(LocalClients):
    """Clients whose uploads and models are recorded, as an attacker would record them."""

    losses: dict[Target, Floats]
    first: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._answers: dict[int, Tensor] = {}

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        answers = super().train(round, ids, sent)
        for name, how in self.algorithm.uplink.items():
            rows = answers.uploads.values.get(name)
            if how.relative_to is not None and rows is not None and rows[0].numel() == self.task.size:
                self._answers |= {int(i): rows[k].flatten().clone() for k, i in enumerate(answers.uploads.ids)}
                break
        return answers

    def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
        everybody = np.arange(len(self.client_index))
        with torch.no_grad():
            personal = torch.cat([part.expand(1, -1) if part.dim() == 1 else part for part in self._each(snapshot)])
            self.first = personal[0].cpu()
            self.losses = {"personal": self._losses(personal, everybody)}
            if self._answers:
                heard = np.array(sorted(self._answers))
                answers = torch.stack([self._answers[int(i)] for i in heard])
                self.losses["update"] = self._losses(self.engine.with_statistics(answers, heard), heard)
            if snapshot.common is not None:
                self.losses["global"] = self._losses(snapshot.common.expand(len(everybody), -1), everybody)

    def _each(self, snapshot: ServerSnapshot) -> Iterator[Tensor]:
        yield from self.personal(snapshot, np.arange(len(self.client_index)))

    def _losses(self, theta: Tensor, ids: Ints) -> Floats:
        """The loss of each training and test sample of these clients, by the model of its client."""
        federation, out = self.engine.federation, np.full(len(self.engine.federation.y), np.nan)
        theta = self.engine.with_statistics(theta, ids)
        for split in ("train", "test"):
            if not federation.sizes(split)[ids].any():
                continue
            at = self.engine._index(ids, split)
            found: Any = self.task.objective(self.engine.outputs(theta, ids, split), federation.y[at])
            values = found[0] if isinstance(found, tuple) else found
            out[at] = values.double().numpy()
        return out
