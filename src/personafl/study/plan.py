"""What a comparison does: several methods, several seeds, one config, and the values that are searched."""

from __future__ import annotations

import itertools
import json
import logging
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import ForSomeModels, needs_validation
from personafl.config import Config, for_method, parse
from personafl.errors import ConfigError, DataError, ModelError
from personafl.federation import Federation
from personafl.jobs import config_job
from personafl.study.recipes import Recipe
from personafl.training.job_info import job_info

log = logging.getLogger("personafl")

REFERENCES = ("separate", "fedavg")
"""Training alone and one global model: what the quality of improvement (QoI) is measured against."""


TRIES = 3
"""How often a method is run with the first seed to come near equal work."""

HELD_BACK = 0.5
"""Share of the validation data that is kept from algorithms which choose on it, where others are scored on it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    method: str
    seed: int
    recipe: Recipe
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of the keys that are searched."""

    @property
    def config(self) -> Config:
        """The config of a run that was planned from one."""
        if not isinstance(self.recipe, Config):
            raise ConfigError(f"{self.method} was planned in Python: runs on Ray are made from a config only")
        return self.recipe


@dataclass(frozen=True)
class Plan:
    """What a comparison will do: methods in order, seeds, and for each method the grid that is searched.

    `recipe(method, seed, settings)` is what is run, with values for dotted keys such as `local.lr`; it raises what is
    wrong with them.
    """

    recipe: Callable[[str, int, Mapping[str, Any]], Recipe]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    tune_seeds: int = 1
    added: tuple[str, ...] = ()
    equal_work: bool = False

    def checked(self) -> Plan:
        """This plan; raises what is wrong with the settings of any method before anything runs."""
        for method in self.methods:
            for point in self.points(method):
                self.job(method, self.seeds[0], point)
        return self

    def job(self, method: str, seed: int, settings: Mapping[str, Any] | None = None) -> PlannedRun:
        """A method at a seed, with values for the keys that are searched."""
        chosen = dict(settings or {})
        return PlannedRun(method, seed, self.recipe(method, seed, chosen), chosen)

    def trial(self, method: str, seed: int, point: Mapping[str, Any]) -> PlannedRun:
        """A point of a search. From an algorithm that chooses on validation data itself, a part is held back."""
        job = self.job(method, seed, point)
        if not needs_validation(job.recipe.algorithm) or job.recipe.local.held_back is not None:
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
        return self.tune_seeds if self.trial(method, seed, point).settings == point else 0


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
        Algorithms, or names under the config's `[methods]`; "all" for every algorithm that fits the config's model.
        Left out: the config's methods, or its algorithm. Training alone and FedAvg come along, because QoI needs them.
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
        names = [*(n for n in names if n != "all"), *(n for n in fitting(tables, overrides) if n not in names)]
    names = list(dict.fromkeys(names))
    added = missing_references(names)
    first = parse(for_method(tables, names[0], overrides)).seed
    recipe, grid = config_recipes(tables, overrides), grids(_listed(tune), names, added, ("local", "model"))
    numbers = tuple(range(first, first + seeds))
    return Plan(recipe, (*names, *added), numbers, grid, tune_seeds, added, equal_work).checked()


def fitting(tables: Mapping[str, Any], overrides: Sequence[str] = ()) -> list[str]:
    """Every algorithm that fits the model of a config; a line of the log names those that do not, and says why.

    Most fit any model. Those for some models are tried on the config's, which takes its data.
    """
    known = ALGORITHMS.usable()[0]
    some = [name for name in known if issubclass(ALGORITHMS[name], ForSomeModels)]
    reasons: dict[str, str] = {}
    federation: Federation | None = None
    for name in some:
        config = parse(for_method(tables, name, overrides))
        try:
            federation = federation or config.federation()
        except DataError as error:  # it may be on other machines only
            reasons = dict.fromkeys(some, f"whether the model fits cannot be seen without the data: {error}")
            break
        try:
            job = config_job(config, federation)
            job.algorithm.prepare(job_info(job.task, len(federation), job.local, federation.groups))
        except (ConfigError, ModelError) as error:
            reasons[name] = str(error)
    for reason in dict.fromkeys(reasons.values()):
        log.warning("left out: %s (%s)", ", ".join(name for name in some if reasons.get(name) == reason), reason)
    return [name for name in known if name not in reasons]


def config_recipes(
    tables: Mapping[str, Any], overrides: Sequence[str] = ()
) -> Callable[[str, int, Mapping[str, Any]], Config]:
    """What `Plan.recipe` is for the tables of a config."""

    def recipe(method: str, seed: int, settings: Mapping[str, Any]) -> Config:
        # Numbers, strings, booleans and lists are written alike in JSON and TOML.
        more = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        return parse(for_method(tables, method, [*overrides, *more, f"seed={seed}"]))

    return recipe


def missing_references(methods: Collection[str]) -> tuple[str, ...]:
    """What comes along because QoI needs it."""
    return tuple(reference for reference in REFERENCES if reference not in methods)


def grids(
    search: Mapping[str, Sequence[Any]], methods: Sequence[str], added: Sequence[str], tables: Sequence[str]
) -> dict[str, dict[str, list[Any]]]:
    """The keys and values to search for each method.

    Parameters
    ----------
    search
        Values by key: `local.lr`, or `ditto.lam` for a field of a method's algorithm.
    added
        Methods that nobody named; keys for all methods are searched for them as well.
    tables
        What counts for all methods: `local`.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for key, values in search.items():
        method = max((m for m in methods if key.startswith(f"{m}.")), key=len, default=None)
        if method is not None:
            found.setdefault(method, {})[f"algorithm.{key.removeprefix(f'{method}.')}"] = list(values)
        elif key.startswith(tuple(f"{table}." for table in tables)):
            for m in (*methods, *added):
                found.setdefault(m, {})[key] = list(values)
        else:
            raise ConfigError(
                f"{key!r} cannot be searched: {key.partition('.')[0]!r} is not {' or '.join(tables)}, nor one of the "
                f"methods that are compared ({', '.join(methods)})"
            )
    return found


def _listed(tune: Sequence[str]) -> dict[str, list[Any]]:
    """Keys and values as they stand on the command line."""
    found = {}
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
        found[key.strip()] = listed
    return found


def _algorithm(tables: Mapping[str, Any]) -> str:
    table = tables.get("algorithm", "fedavg")
    return str(table.get("name", "fedavg") if isinstance(table, dict) else table)
