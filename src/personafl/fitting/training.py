"""Training a candidate up to so many rounds, into a run folder of its own; longer training starts from a copy."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from personafl.engines import make_engine
from personafl.errors import PersonaflError, RunError
from personafl.federation import Federation
from personafl.files import disk_errors, make_folder
from personafl.fitting import budget
from personafl.fitting.candidates import Candidate, Outcome, Portfolio
from personafl.fitting.search import Attempt
from personafl.fitting.validation import with_all_training
from personafl.jobs import run_job
from personafl.metrics.measures import LOSS
from personafl.runs.run import Run
from personafl.settings import EngineSettings
from personafl.storage.folder import RunFolder
from personafl.study.processes import given, stopped
from personafl.training.events import Listener
from personafl.training.job import Job

log = logging.getLogger("personafl")


class OutOfTime(Exception):
    """The budget ended in the middle of a training."""


class Deadline(Listener):
    """Ends a training at the end of the round in which the time is over."""

    def __init__(self, at: float) -> None:
        self._at = at

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        if budget.now() > self._at:
            raise OutOfTime


class Trainer:
    """Trains candidates of one job: the same data, model and seed."""

    def __init__(self, job: Job, folder: Path, portfolio: Portfolio) -> None:
        self.job, self.folder, self.portfolio = job, folder, portfolio
        self.engine: EngineSettings = job.engine

    def train(self, attempt: Attempt, until: float, listeners: Sequence[Listener] = ()) -> Outcome | None:
        """What came of it; None where the time (of `budget.now`) was over before."""
        candidate, begun = attempt.candidate, budget.now()
        name = _name(candidate, attempt.rounds) + ("-again" if attempt.again else "")
        path = self.folder / name
        try:
            job = self.job_of(candidate, attempt.rounds, attempt.again)
            if not (RunFolder(path).exists and Run(path).complete):
                if not attempt.again:
                    self._begin_from(candidate, job, path)
                with quiet():
                    run_job(job, path, True, [Deadline(until), *listeners])
            run = Run(path, algorithm=job.algorithm, task=job.task)
        except OutOfTime:
            _remove(path)
            return None
        except RunError:
            raise  # the disk, or a folder in use: the next one would fail too
        except PersonaflError as error:
            _remove(path)
            return Outcome(attempt.rounds, np.nan, np.nan, budget.now() - begun, "", str(error))
        self._keep_engine(run)
        personal, common = self._scores(run)
        return Outcome(attempt.rounds, personal, common, budget.now() - begun, name)

    def remove(self, names: Sequence[str]) -> None:
        """Delete the folders of trainings that are not needed any more."""
        for name in names:
            _remove(self.folder / name)

    def share_cores(self, threads: int) -> None:
        """Train with so many threads, where nothing else was asked for; `auto` is settled here, once for all."""
        job, settings = self.job, replace(self.engine, threads=self.engine.threads or threads)
        _, choice = make_engine(settings, job.task, job.federation, job.local, job.seed)
        self.engine = replace(settings, name=choice.engine, threads=choice.threads)

    @cached_property
    def all_training(self) -> Federation:
        """The clients' data with the validation samples among the training samples."""
        return with_all_training(self.job.federation)

    def job_of(self, candidate: Candidate, rounds: int, again: bool = False) -> Job:
        """The job of a candidate; `again`: with the validation data among the training data."""
        algorithm, local = self.portfolio.made(candidate.method, candidate.settings, self.job.local)
        schedule = replace(self.job.schedule, rounds=rounds, eval_every=0, checkpoint_every=0, patience=None)
        federation = self.all_training if again else self.job.federation
        return replace(
            self.job, federation=federation, algorithm=algorithm, local=local, schedule=schedule, engine=self.engine
        )

    def run_of(self, candidate: Candidate, outcome: Outcome) -> Run:
        """The finished run of an outcome."""
        job = self.job_of(candidate, outcome.rounds)
        return Run(
            self.folder / outcome.folder, algorithm=job.algorithm, task=job.task, backbone=job.federation.backbone
        )

    def _begin_from(self, candidate: Candidate, job: Job, path: Path) -> None:
        """Put a copy of the candidate's longest training there, so that only the rest has to be trained."""
        known = [o for o in candidate.outcomes.values() if o.folder and o.rounds < job.schedule.rounds]
        if path.exists() or not known or job.local.schedule == "cosine":  # whose rates follow from the length
            return
        source, partial = (
            self.folder / max(known, key=lambda o: o.rounds).folder,
            path.with_name(f"{path.name}.partial"),
        )
        with disk_errors(path, "copying"):
            _remove(partial)
            make_folder(path.parent)
            shutil.copytree(source, partial, ignore=shutil.ignore_patterns(".lock", "models", "*.partial"))
            partial.rename(path)

    def _keep_engine(self, run: Run) -> None:
        """What `auto` found for the first candidate serves the others."""
        if self.engine.name == "auto":
            resolved = run.manifest["resolved"]
            self.engine = replace(self.engine, name=resolved["engine"], threads=int(resolved["threads"]))

    def _scores(self, run: Run) -> tuple[float, float]:
        record, measure = run.rounds()[-1], self.job.task.kind.primary
        if f"personal_val_{measure.name}" not in record:
            measure = LOSS
        values = (record.get(f"{who}_val_{measure.name}", np.nan) for who in ("personal", "global"))
        return tuple((measure.better or 1) * float(v) if v is not None else np.nan for v in values)  # type: ignore[return-value]


def _name(candidate: Candidate, rounds: int) -> str:
    """The folder of a training; after an interruption a number may come to stand for other settings than before."""
    name = f"{candidate.number:03d}-{candidate.method.replace(':', '-')}-{rounds}"
    text = json.dumps(candidate.settings, sort_keys=True, default=str)
    return f"{name}-{sha256(text.encode()).hexdigest()[:8]}" if candidate.settings else name


def train_elsewhere(attempt: Attempt, until: float) -> Outcome | None:
    """`Trainer.train` in a process that was given the trainer."""
    if stopped():
        raise KeyboardInterrupt
    trainer: Trainer = given()
    return trainer.train(attempt, until)


def train_on_ray(trainer: Trainer, attempt: Attempt, seconds: float) -> Outcome | None:
    """`Trainer.train` on a machine whose clock is another one."""
    return trainer.train(attempt, budget.now() + seconds)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of single runs: a candidate that diverges is no news in a search."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
