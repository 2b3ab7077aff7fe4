"""Runs of a plan: what exists is reused, what is missing is made by a launcher."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from personafl.config import Config
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.jobs import run_job
from personafl.metrics.measures import LOSS, ranking
from personafl.runs.run import Run
from personafl.storage.folder import RunFolder
from personafl.study.equal_work import EqualWork, equalize, measured
from personafl.study.plan import Plan, PlannedRun
from personafl.study.recipes import Recipe, identity, job_of, run_of
from personafl.study.values import common_measures
from personafl.training.events import Listener

log = logging.getLogger("personafl")


@dataclass(frozen=True)
class PendingRun:
    """A run that is not there yet, or not to its end: what to train, where to, and on which data."""

    job: PlannedRun
    path: Path
    federation: Federation


Listeners = Callable[[PlannedRun, bool], Sequence[Listener]]
"""Asked for the listeners of a run; the second argument says that it is there already and tells them nothing."""


Launcher = Callable[[Iterator[PendingRun], Listeners], Generator[tuple[PendingRun, str | None]]]
"""How runs are made: takes the ones that are due, gives each when it has ended, with the reason if it failed."""


@dataclass(frozen=True)
class Trial:
    """A point of a search, and how good it was on validation data."""

    settings: dict[str, Any]
    score: float
    seconds: float
    runs: list[str]


@dataclass(frozen=True)
class Search:
    """What was searched for a method, and what was chosen."""

    method: str
    measure: str
    trials: list[Trial]
    chosen: dict[str, Any]

    def sentence(self) -> str:
        """What was chosen, in words."""
        chosen = ", ".join(f"{key} = {value}" for key, value in self.chosen.items())
        seconds = sum(trial.seconds for trial in self.trials)
        _, split, what = self.measure.split("_", 2)
        what = what.replace("_", " ")
        data = "held-back validation" if split == "held" else "validation"
        return (
            f"{self.method}: {chosen} is the best of {len(self.trials)} on {data} {what} ({seconds:.0f} s of training)."
        )


@dataclass(frozen=True)
class StudyRuns:
    """The runs of each method by seed, in the order they were asked for."""

    folder: Path
    methods: dict[str, dict[int, Run]]
    searches: list[Search]
    failures: list[tuple[str, int, str]]
    added: tuple[str, ...]
    """Methods that nobody asked for but QoI needs."""
    work: EqualWork | None = None
    """What was done so that all methods compute equally many gradients, where that was asked for."""


def in_process(due: Iterator[PendingRun], listeners: Listeners) -> Generator[tuple[PendingRun, str | None]]:
    """Make runs in this process, one after another."""
    for one in due:
        why = None
        try:
            run_job(job_of(one.job.recipe, one.federation), one.path, True, listeners(one.job, False))
        except RunError:
            raise  # the disk, or a folder in use: the next run would fail too
        except PersonaflError as error:
            why = str(error)
        yield one, why


def run_plan(
    planned: Plan, folder: Path, listeners: Listeners = lambda job, reused: (), launcher: Launcher = in_process
) -> StudyRuns:
    """Run what is missing of a comparison. Started again after an interruption, it goes on where it was.

    `listeners(job, reused)` is asked for each run; a reused run is not trained, and tells its listeners nothing.
    `launcher` is how runs are made: `in_process`, `Processes` or `on_ray`.
    """
    cache = RunCache(folder, listeners, launcher)
    methods: dict[str, dict[int, Run]] = {m: {} for m in planned.methods}
    # Seed after seed, so that a federation is made once and then shared.
    first = planned.seeds[: planned.tune_seeds]
    points = [(m, seed, point) for seed in first for m in planned.grid for point in planned.points(m)]
    trials: dict[tuple[str, int], list[Run | None]] = {}
    for (m, seed, _), run in zip(points, cache.runs([planned.trial(*point) for point in points]), strict=True):
        trials.setdefault((m, seed), []).append(run)
    searches = [_search(planned, m, [trials[m, seed] for seed in first]) for m in planned.grid]
    settings = {search.method: search.chosen for search in searches}
    work = None
    if planned.equal_work:
        work, settings = equalize(planned, settings, cache.runs)
    jobs = [planned.job(m, seed, settings.get(m)) for seed in planned.seeds for m in planned.methods]
    for job, run in zip(jobs, cache.runs(jobs), strict=True):
        if run is not None:
            methods[job.method][job.seed] = run
    work = measured(work, methods) if work is not None else None
    return StudyRuns(folder, methods, searches, cache.failures, planned.added, work)


class RunCache:
    """Finds runs made, or has them made."""

    def __init__(self, folder: Path, listeners: Listeners, launcher: Launcher) -> None:
        self.folder, self.listeners, self.launcher = folder, listeners, launcher
        self.failures: list[tuple[str, int, str]] = []
        self._federation: tuple[str, Federation] | None = None
        self._done: dict[Path, Run | None] = {}

    def runs(self, jobs: Sequence[PlannedRun]) -> list[Run | None]:
        """The finished runs of jobs; None for those that failed, which is remembered."""
        paths: list[Path] = []
        failed: dict[Path, tuple[str, int, str]] = {}
        with closing(self.launcher(self._due(jobs, paths), self.listeners)) as ended:
            for one, why in ended:
                if why is None:
                    self._done[one.path] = run_of(one.job.recipe, one.federation, one.path)
                else:
                    self._done[one.path] = None
                    log.warning("%s with seed %d failed: %s", one.job.method, one.job.seed, why)
                    failed[one.path] = (one.job.method, one.job.seed, why)
        # In the order they were asked for: the one in which runs end says nothing.
        self.failures += [failed[path] for path in dict.fromkeys(paths) if path in failed]
        return [self._done[path] for path in paths]

    def _due(self, jobs: Sequence[PlannedRun], paths: list[Path]) -> Iterator[PendingRun]:
        """The runs that are not there yet, each once; `paths` gets the folder of every job."""
        for job in jobs:
            federation = self._federation_of(job.recipe)
            path = self.folder / f"{_legal(job.method)}-{job.seed}-{identity(job.recipe, federation)}"
            new = path not in self._done and path not in paths
            paths.append(path)
            if new and RunFolder(path).exists and Run(path).complete:
                self.listeners(job, True)
                self._done[path] = run_of(job.recipe, federation, path)
            elif new:
                yield PendingRun(job, path, federation)

    def _federation_of(self, recipe: Recipe) -> Federation:
        if not isinstance(recipe, Config):
            return recipe.federation()
        config = recipe
        of_data = ("seed", "data", "partition", "splits", "splitting")
        key = json.dumps({k: v for k, v in config.tables().items() if k in of_data})
        if self._federation is None or self._federation[0] != key:
            federation = config.federation()
            for note in federation.notes if self._federation is None else ():
                log.warning("%s", note)
            self._federation = (key, federation)
        return self._federation[1]


def _legal(method: str) -> str:
    """A method's name as part of a folder's name, on any system; a label from Python may hold anything.

    >>> _legal("mypackage.mine:Mine"), _legal("../elsewhere")
    ('mypackage.mine-Mine', '..-elsewhere')
    """
    return re.sub(r"[^\w.=+-]+", "-", method)


def _search(planned: Plan, method: str, trials: Sequence[Sequence[Run | None]]) -> Search:
    """Choose the point with the best validation score, the mean over seeds; of equal ones the first."""
    measure, found = scored(planned, method, planned.points(method), trials)
    best = max(found, key=lambda trial: trial.score)
    if best.score == -np.inf:
        raise RunError(f"every setting of {method} failed; the warnings above say why")
    return Search(method, measure, found, best.settings)


def scored(
    planned: Plan, method: str, points: Sequence[dict[str, Any]], trials: Sequence[Sequence[Run | None]]
) -> tuple[str, list[Trial]]:
    """How good each point of a search is on validation data, and by which measure: higher is better, −∞ has failed.

    Where the method chooses on validation data itself, the score is that on what was held back from it.

    Parameters
    ----------
    trials
        For each seed the runs of the points; None for one that failed.
    """
    found: list[Trial] = []
    held = planned.trial(method, planned.seeds[0], points[0]).recipe.local.held_back is not None
    split = "held" if held else "val"
    ranks = ranking(common_measures(known)) if (known := [run for runs in trials for run in runs if run]) else LOSS
    measure = f"personal_{split}_{ranks.name}"
    for p, point in enumerate(points):
        runs = [of_seed[p] for of_seed in trials]
        done = [run for run in runs if run is not None]
        if any("personal_val_loss" not in run.score for run in done):
            raise ConfigError(
                "a search chooses on validation data and nobody has any: give `splits` a second share, as in "
                "splits = [0.7, 0.1, 0.2]"
            )
        if any(f"personal_{split}_loss" not in run.score for run in done):
            raise ConfigError(
                f"a search scores {method} on validation data that it has not chosen on itself, and there is too "
                "little to divide: give `splits` a larger second share"
            )
        if any(measure not in run.score for run in done):
            measure, ranks = f"personal_{split}_loss", LOSS
        good = bool(done) and len(done) == len(runs)
        score = float(np.mean([ranks.better * run.score[measure] for run in done])) if good else -np.inf
        found.append(Trial(point, score, sum(run.seconds for run in done), [run.path.name for run in done]))
    return measure, found
