"""Several methods, several seeds, one config: run what is missing, reuse what exists."""

from __future__ import annotations

import itertools
import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from personafl.algorithms import ALGORITHMS
from personafl.config import Config, for_method, parse
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.events import Listener
from personafl.federation import Federation
from personafl.folder import RunFolder
from personafl.run import Run
from personafl.train import train_config
from personafl.version import __version__

log = logging.getLogger("personafl")

REFERENCES = ("separate", "fedavg")
"""Training alone and one global model: what the quality of improvement (QoI) is measured against."""


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    method: str
    seed: int
    config: Config
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys that are searched."""


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

    def job(self, method: str, seed: int, settings: Mapping[str, Any] | None = None) -> Job:
        """A method at a seed, with values for the keys that are searched."""
        chosen = dict(settings or {})
        more = [f"{key}={_toml(value)}" for key, value in chosen.items()]
        values = for_method(self.tables, method, [*self.overrides, *more, f"seed={seed}"])
        return Job(method, seed, parse(values), chosen)

    def points(self, method: str) -> list[dict[str, Any]]:
        """The settings to try for a method; one empty one where nothing is searched."""
        keys = self.grid.get(method, {})
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]

    def jobs(self) -> int:
        """How many runs there are at most."""
        searched = sum(len(self.points(m)) * self.tune_seeds for m in self.methods if m in self.grid)
        rest = sum(len(self.seeds) - (self.tune_seeds if m in self.grid else 0) for m in self.methods)
        return searched + rest


def plan(
    tables: Mapping[str, Any],
    methods: Sequence[str] = (),
    seeds: int = 3,
    overrides: Sequence[str] = (),
    tune: Sequence[str] = (),
    tune_seeds: int = 1,
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
        _grids(tune, names, added), tune_seeds, added,
    )  # fmt: skip
    for m in made.methods:
        for point in made.points(m):
            made.job(m, first, point)  # raises what is wrong with its settings
    return made


def run_plan(
    planned: Plan, folder: Path, listeners: Callable[[Job, bool], Sequence[Listener]] = lambda job, reused: ()
) -> Comparison:
    """Run what is missing of a comparison. Started again after an interruption, it goes on where it was.

    `listeners(job, reused)` is asked for each run; a reused run is not trained, and tells its listeners nothing.
    """
    workshop = _Workshop(folder, listeners)
    methods: dict[str, dict[int, Run]] = {m: {} for m in planned.methods}
    searches: list[Search] = []
    # Seed after seed, so that a federation is made once and then shared.
    first = planned.seeds[: planned.tune_seeds]
    trials: dict[tuple[str, int], list[Run | None]] = {}
    for seed in first:
        for m in planned.grid:
            trials[m, seed] = [workshop.run(planned.job(m, seed, point)) for point in planned.points(m)]
    for m in planned.grid:
        searches.append(_search(planned, m, [trials[m, seed] for seed in first]))
    chosen = {search.method: search.chosen for search in searches}
    for seed in planned.seeds:
        for m in planned.methods:
            done = workshop.run(planned.job(m, seed, chosen.get(m)))
            if done is not None:
                methods[m][seed] = done
    return Comparison(folder, methods, searches, workshop.failures, planned.added)


class _Workshop:
    """Makes runs, or finds them made."""

    def __init__(self, folder: Path, listeners: Callable[[Job, bool], Sequence[Listener]]) -> None:
        self.folder, self.listeners = folder, listeners
        self.failures: list[tuple[str, int, str]] = []
        self._federation: tuple[str, Federation] | None = None
        self._done: dict[Path, Run | None] = {}

    def run(self, job: Job) -> Run | None:
        """The finished run of a job; None if it failed, which is remembered."""
        federation = self._federation_of(job.config)
        path = self.folder / f"{job.method}-{job.seed}-{identity(job.config, federation)}"
        if path not in self._done:
            self._done[path] = self._run(job, path, federation)
        return self._done[path]

    def _run(self, job: Job, path: Path, federation: Federation) -> Run | None:
        existing = RunFolder(path)
        if existing.exists and (found := Run(path)).complete:
            self.listeners(job, True)
            return found
        try:
            return train_config(job.config, path, True, self.listeners(job, False), federation)
        except RunError:
            raise  # the disk, or a folder in use: the next run would fail too
        except PersonaflError as error:
            log.warning("%s with seed %d failed: %s", job.method, job.seed, error)
            self.failures.append((job.method, job.seed, str(error)))
            return None

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
    tables = {key: value for key, value in config.tables().items() if key not in ("engine", "checkpoint_every")}
    weights = Path(config.weights).read_bytes() if config.weights and Path(config.weights).is_file() else b""
    everything = [tables, federation.fingerprint, __version__, sha256(weights).hexdigest()]
    return sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _search(planned: Plan, method: str, trials: Sequence[Sequence[Run | None]]) -> Search:
    """Choose the point with the best validation score, the mean over seeds; of equal ones the first."""
    found: list[Trial] = []
    measure = "personal_val_accuracy"
    for p, point in enumerate(planned.points(method)):
        runs = [of_seed[p] for of_seed in trials]
        done = [run for run in runs if run is not None]
        if any("personal_val_loss" not in run.score for run in done):
            raise ConfigError(
                "--tune chooses on validation data and nobody has any: give `splits` a second share, as in "
                "splits = [0.7, 0.1, 0.2]"
            )
        if any(measure not in run.score for run in done):
            measure = "personal_val_loss"
        sign = 1.0 if measure == "personal_val_accuracy" else -1.0
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
