"""Several methods, several seeds, one config: run what is missing, reuse what exists."""

from __future__ import annotations

import itertools
import json
import logging
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import needs_validation
from personafl.config import Config, for_method, parse
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.jobs import train_config
from personafl.runs.run import Run
from personafl.storage.folder import RunFolder
from personafl.study.equal_work import TRIES, EqualWork, equalize, measured
from personafl.training.events import Listener
from personafl.version import __version__

log = logging.getLogger("personafl")

REFERENCES = ("separate", "fedavg")
"""Training alone and one global model: what the quality of improvement (QoI) is measured against."""


HELD_BACK = 0.5
"""Share of the validation data that is kept from algorithms which choose on it, where others are scored on it."""


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    config: Config
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys that are searched."""


@dataclass(frozen=True)
class PendingRun:
    """A run that is not there yet, or not to its end: what to train, where to, and on which data."""

    job: Job
    path: Path
    federation: Federation


Listeners = Callable[[Job, bool], Sequence[Listener]]
"""Asked for the listeners of a run; the second argument says that it is there already and tells them nothing."""

Way = Callable[[Iterator[PendingRun], Listeners], Generator[tuple[PendingRun, str | None]]]
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


@dataclass(frozen=True)
class Comparison:
    """The runs of each method by seed, in the order they were asked for."""

    folder: Path
    methods: dict[str, dict[int, Run]]
    searches: list[Search]
    failures: list[tuple[str, int, str]]
    added: tuple[str, ...]
    """Methods that nobody asked for but QoI needs."""
    work: EqualWork | None = None
    """What was done so that all methods compute equally many gradients, where that was asked for."""


@dataclass(frozen=True)
class Plan:
    """What a comparison will do: methods in order, seeds, and for each method the grid that is searched."""

    tables: Mapping[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    grid: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    tune_seeds: int = 1
    added: tuple[str, ...] = ()
    equal_work: bool = False

    def job(self, method: str, seed: int, settings: Mapping[str, Any] | None = None) -> Job:
        """A method at a seed, with values for the keys that are searched."""
        chosen = dict(settings or {})
        more = [f"{key}={_toml(value)}" for key, value in chosen.items()]
        values = for_method(self.tables, method, [*self.overrides, *more, f"seed={seed}"])
        return Job(method, seed, parse(values), chosen)

    def trial(self, method: str, seed: int, point: Mapping[str, Any]) -> Job:
        """A point of a search. From an algorithm that chooses on validation data itself, a part is held back."""
        job = self.job(method, seed, point)
        if not needs_validation(job.config.algorithm) or job.config.local.held_back is not None:
            return job
        return self.job(method, seed, {**point, "local.held_back": HELD_BACK})

    def points(self, method: str) -> list[dict[str, Any]]:
        """The settings to try for a method; one empty one where nothing is searched."""
        keys = self.grid.get(method, {})
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]

    def jobs(self) -> int:
        """How many runs there are at most."""
        searched = sum(len(self.points(m)) * self.tune_seeds for m in self.methods if m in self.grid)
        rest = sum(len(self.seeds) - self._reused(m) for m in self.methods)
        return searched + rest + (TRIES * len(self.methods) if self.equal_work else 0)

    def _reused(self, method: str) -> int:
        """How many runs of a search are runs of the comparison too."""
        if method not in self.grid:
            return 0
        point, seed = self.points(method)[0], self.seeds[0]
        same = self.trial(method, seed, point).config == self.job(method, seed, point).config
        return self.tune_seeds if same else 0


def plan(
    tables: Mapping[str, Any],
    methods: Sequence[str] = (),
    seeds: int = 3,
    overrides: Sequence[str] = (),
    tune: Sequence[str] = (),
    tune_seeds: int = 1,
    equal_work: bool = False,
) -> Plan:
    """Check what is asked for before anything runs.

    Parameters
    ----------
    tables
        The tables of a config, see `config.read_tables`.
    methods
        Algorithms, or names under the config's `[methods]`; "all" for every algorithm. Left out: the config's methods,
        or its algorithm. Training alone and FedAvg come along, because QoI needs them.
    seeds
        How many; they count up from the config's seed.
    overrides
        Such as `local.steps=40`, for all methods; `methods.ditto.algorithm.lam=0.5` for one.
    tune
        Such as `local.lr=[0.01,0.1]` for all methods, or `ditto.lam=[0.1,1]` for one; the values of several keys are
        combined. The best on validation data is taken.
    tune_seeds
        How many of the seeds a search uses.
    equal_work
        Whether every method gets as many gradients as the one that computes most, see `equal_work`; after a search,
        with what it has chosen.
    """
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds}: must be at least 1")
    if not 1 <= tune_seeds <= seeds:
        raise ConfigError(f"tune-seeds = {tune_seeds}: must be at least 1 and at most the {seeds} seeds")
    if wrong := next((o for o in overrides if o.startswith(("algorithm.name=", "algorithm=", "seed="))), None):
        raise ConfigError(
            f"-s {wrong!r} has no place in a comparison: name methods with -a, and the first seed in the config"
        )
    names = list(methods) or list(tables.get("methods", {})) or [_algorithm(tables)]
    if "all" in names:
        names = [*(n for n in names if n != "all"), *(n for n in ALGORITHMS if n not in names)]
    names = list(dict.fromkeys(names))
    added = tuple(reference for reference in REFERENCES if reference not in names)
    first = parse(for_method(tables, names[0], overrides)).seed
    made = Plan(
        tables, (*names, *added), tuple(range(first, first + seeds)), tuple(overrides),
        _grids(tune, names, added), tune_seeds, added, equal_work,
    )  # fmt: skip
    for m in made.methods:
        for point in made.points(m):
            made.job(m, first, point)  # raises what is wrong with its settings
    return made


def here(due: Iterator[PendingRun], listeners: Listeners) -> Generator[tuple[PendingRun, str | None]]:
    """Make runs in this process, one after another."""
    for one in due:
        why = None
        try:
            train_config(one.job.config, one.path, True, listeners(one.job, False), one.federation)
        except RunError:
            raise  # the disk, or a folder in use: the next run would fail too
        except PersonaflError as error:
            why = str(error)
        yield one, why


def run_plan(planned: Plan, folder: Path, listeners: Listeners = lambda job, reused: (), way: Way = here) -> Comparison:
    """Run what is missing of a comparison. Started again after an interruption, it goes on where it was.

    `listeners(job, reused)` is asked for each run; a reused run is not trained, and tells its listeners nothing. `way`
    is how runs are made: `here`, or `sweep.on_ray`.
    """
    workshop = RunCache(folder, listeners, way)
    methods: dict[str, dict[int, Run]] = {m: {} for m in planned.methods}
    # Seed after seed, so that a federation is made once and then shared.
    first = planned.seeds[: planned.tune_seeds]
    points = [(m, seed, point) for seed in first for m in planned.grid for point in planned.points(m)]
    trials: dict[tuple[str, int], list[Run | None]] = {}
    for (m, seed, _), run in zip(points, workshop.runs([planned.trial(*point) for point in points]), strict=True):
        trials.setdefault((m, seed), []).append(run)
    searches = [_search(planned, m, [trials[m, seed] for seed in first]) for m in planned.grid]
    settings = {search.method: search.chosen for search in searches}
    work = None
    if planned.equal_work:
        work, settings = equalize(planned, settings, workshop.runs)
    jobs = [planned.job(m, seed, settings.get(m)) for seed in planned.seeds for m in planned.methods]
    for job, run in zip(jobs, workshop.runs(jobs), strict=True):
        if run is not None:
            methods[job.method][job.seed] = run
    work = measured(work, methods) if work is not None else None
    return Comparison(folder, methods, searches, workshop.failures, planned.added, work)


class RunCache:
    """Finds runs made, or has them made."""

    def __init__(self, folder: Path, listeners: Listeners, way: Way) -> None:
        self.folder, self.listeners, self.way = folder, listeners, way
        self.failures: list[tuple[str, int, str]] = []
        self._federation: tuple[str, Federation] | None = None
        self._done: dict[Path, Run | None] = {}

    def runs(self, jobs: Sequence[Job]) -> list[Run | None]:
        """The finished runs of jobs; None for those that failed, which is remembered."""
        paths: list[Path] = []
        failed: dict[Path, tuple[str, int, str]] = {}
        with closing(self.way(self._due(jobs, paths), self.listeners)) as ended:
            for one, why in ended:
                self._done[one.path] = Run(one.path) if why is None else None
                if why is not None:
                    log.warning("%s with seed %d failed: %s", one.job.method, one.job.seed, why)
                    failed[one.path] = (one.job.method, one.job.seed, why)
        # In the order they were asked for: the one in which runs end says nothing.
        self.failures += [failed[path] for path in dict.fromkeys(paths) if path in failed]
        return [self._done[path] for path in paths]

    def _due(self, jobs: Sequence[Job], paths: list[Path]) -> Iterator[PendingRun]:
        """The runs that are not there yet, each once; `paths` gets the folder of every job."""
        for job in jobs:
            federation = self._federation_of(job.config)
            path = self.folder / f"{job.method}-{job.seed}-{identity(job.config, federation)}"
            new = path not in self._done and path not in paths
            paths.append(path)
            if new and RunFolder(path).exists and (found := Run(path)).complete:
                self.listeners(job, True)
                self._done[path] = found
            elif new:
                yield PendingRun(job, path, federation)

    def _federation_of(self, config: Config) -> Federation:
        key = json.dumps({k: v for k, v in config.tables().items() if k in ("seed", "data", "partition", "splits")})
        if self._federation is None or self._federation[0] != key:
            federation = config.federation()
            for note in federation.notes if self._federation is None else ():
                log.warning("%s", note)
            self._federation = (key, federation)
        return self._federation[1]


def identity(config: Config, federation: Federation) -> str:
    """Eight characters that stand for a config, its data and the version: equal for runs that can be reused."""
    tables = {key: value for key, value in config.tables().items() if key not in ("engine", "ray", "checkpoint_every")}
    weights = Path(config.weights).read_bytes() if config.weights and Path(config.weights).is_file() else b""
    everything = [tables, federation.fingerprint, __version__, sha256(weights).hexdigest()]
    return sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _search(planned: Plan, method: str, trials: Sequence[Sequence[Run | None]]) -> Search:
    """Choose the point with the best validation score, the mean over seeds; of equal ones the first.

    Where the method chooses on validation data itself, the score is that on what was held back from it.
    """
    found: list[Trial] = []
    held = planned.trial(method, planned.seeds[0], planned.points(method)[0]).config.local.held_back is not None
    split = "held" if held else "val"
    measure = f"personal_{split}_accuracy"
    for p, point in enumerate(planned.points(method)):
        runs = [of_seed[p] for of_seed in trials]
        done = [run for run in runs if run is not None]
        if any("personal_val_loss" not in run.score for run in done):
            raise ConfigError(
                "--tune chooses on validation data and nobody has any: give `splits` a second share, as in "
                "splits = [0.7, 0.1, 0.2]"
            )
        if any(f"personal_{split}_loss" not in run.score for run in done):
            raise ConfigError(
                f"--tune scores {method} on validation data that it has not chosen on itself, and there is too little "
                "to divide: give `splits` a larger second share"
            )
        if any(measure not in run.score for run in done):
            measure = f"personal_{split}_loss"
        sign = 1.0 if measure.endswith("_accuracy") else -1.0
        good = bool(done) and len(done) == len(runs)
        score = float(np.mean([sign * run.score[measure] for run in done])) if good else -np.inf
        found.append(Trial(point, score, sum(run.seconds for run in done), [run.path.name for run in done]))
    best = max(found, key=lambda trial: trial.score)
    if best.score == -np.inf:
        raise RunError(f"--tune: every setting of {method} failed; the warnings above say why")
    return Search(method, measure, found, best.settings)


def _grids(tune: Sequence[str], methods: Sequence[str], added: Sequence[str]) -> dict[str, dict[str, list[Any]]]:
    """The keys and values to search for each method; a key for all is searched for the added ones as well."""
    grids: dict[str, dict[str, list[Any]]] = {}
    for text in tune:
        key, equals, values = text.partition("=")
        try:
            listed = tomllib.loads(f"v = {values}")["v"]
        except tomllib.TOMLDecodeError:
            listed = None
        if not equals or not isinstance(listed, list) or not listed:
            raise ConfigError(
                f"--tune {text!r}: must be key=[value, …], such as local.lr=[0.01,0.1] or ditto.lam=[0.1,1]"
            )
        method, _, own = key.strip().partition(".")
        if method in methods and own:
            grids.setdefault(method, {})[f"algorithm.{own}"] = listed
        elif method in ("local", "model"):
            for m in (*methods, *added):
                grids.setdefault(m, {})[key.strip()] = listed
        else:
            raise ConfigError(
                f"--tune {text!r}: {method!r} is not local or model, nor one of the methods that are compared "
                f"({', '.join(methods)})"
            )
    return grids


def _algorithm(tables: Mapping[str, Any]) -> str:
    table = tables.get("algorithm", "fedavg")
    return str(table.get("name", "fedavg") if isinstance(table, dict) else table)


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, strings, booleans and lists are written alike in TOML
