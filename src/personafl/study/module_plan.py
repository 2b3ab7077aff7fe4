"""The plan of a comparison that is made in Python: somebody's data and module, and algorithms as objects or names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.jobs import module_task
from personafl.kernels.task import Objective, Task
from personafl.models import initial_weights
from personafl.settings import EngineSettings, Local, Schedule
from personafl.study.plan import REFERENCES, Plan, grids, missing_references
from personafl.study.recipes import JobRecipe
from personafl.tasks import LearningTask, Metric
from personafl.training.arguments import algorithm_of
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust

Algorithms = Sequence[Algorithm | str] | Mapping[str, Algorithm | str]


@dataclass(frozen=True, eq=False)
class Subject:
    """What all methods of a comparison have in common; see `personafl.compare`."""

    federation: Federation | Callable[[int], Federation]
    module: nn.Module | Callable[[int], nn.Module]
    task: str | LearningTask | None
    loss: str | Objective | None
    metrics: Mapping[str, Any] | Sequence[Metric] | None
    schedule: Schedule
    local: Local
    engine: EngineSettings
    privacy: Privacy | None
    temporary: TemporaryDirectory[str] | None
    robust: Robust | None = None


def module_plan(
    subject: Subject,
    algorithms: Algorithms,
    seeds: int | Sequence[int],
    search: Mapping[str, Sequence[Any]],
    search_seeds: int,
    equal_work: bool,
) -> Plan:
    """Check what is asked for before anything runs; the parameters are those of `personafl.compare`."""
    named, chosen = labelled(algorithms), _seeds(seeds)
    if not 1 <= search_seeds <= len(chosen):
        raise ConfigError(f"search_seeds = {search_seeds}: must be at least 1 and at most the {len(chosen)} seeds")
    added = missing_references(named)
    grid = grids({key: _values(key, tried) for key, tried in search.items()}, list(named), added, ("local",))
    named |= {reference: ALGORITHMS[reference]() for reference in added}
    federations = _of_seed(subject.federation, Federation, "federation", remembered=1)  # runs come seed after seed
    modules = _of_seed(subject.module, nn.Module, "module", remembered=None)
    tasks: dict[nn.Module, Task] = {}

    def task(seed: int, federation: Federation) -> Task:
        module = modules(seed)
        if module not in tasks:
            tasks[module] = module_task(federation, module, subject.task, subject.loss, subject.metrics)
        return tasks[module]

    def recipe(method: str, seed: int, settings: Mapping[str, Any]) -> JobRecipe:
        usual = (subject.schedule, subject.local, subject.engine, subject.privacy)
        made = JobRecipe(seed, named[method], *usual, federations, task, subject.temporary, subject.robust)
        return made.with_settings(settings)

    return Plan(recipe, tuple(named), chosen, grid, search_seeds, added, equal_work).checked()


def labelled(algorithms: Algorithms | Algorithm) -> dict[str, Algorithm]:
    """Algorithms by the labels that tables show.

    >>> labelled(["fedavg"])
    {'fedavg': FedAvg(weights='samples')}
    """
    if isinstance(algorithms, str | Algorithm | type):
        algorithms = [algorithms]
    if not algorithms:
        raise ConfigError("algorithms is empty: name at least one, such as pf.Ditto() or 'ditto'")
    if isinstance(algorithms, Mapping):
        named = {label: algorithm_of(given) for label, given in algorithms.items()}
    else:
        made = [algorithm_of(given) for given in algorithms]
        named = {algorithm.name: algorithm for algorithm in made}
        if len(named) < len(made):
            twice = next(a.name for i, a in enumerate(made) if a.name in [b.name for b in made[:i]])
            raise ConfigError(
                f"there are several methods called {twice!r}: give each a label of its own, as in "
                f"{{'{twice} a': …, '{twice} b': …}}"
            )
    for label, algorithm in named.items():
        if not isinstance(label, str) or not label.strip():
            raise ConfigError(f"{label!r} is no label of a method: it must be a text that is not empty")
        if label in REFERENCES and type(algorithm) is not ALGORITHMS[label]:
            raise ConfigError(
                f"{label!r} is what others are measured against, and not {type(algorithm).__name__}: take another label"
            )
    return named


def _seeds(seeds: Any) -> tuple[int, ...]:
    chosen = list(range(seeds) if isinstance(seeds, int | np.integer) else seeds if hasattr(seeds, "__iter__") else ())
    whole = all(isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0 for seed in chosen)
    if not chosen or not whole or len(set(chosen)) < len(chosen):
        raise ConfigError(f"seeds = {seeds!r}: must be how many, at least 1, or a list of different whole numbers")
    return tuple(map(int, chosen))


def _values(key: str, tried: Any) -> list[Any]:
    if isinstance(tried, str | Mapping) or not hasattr(tried, "__iter__") or not len(tried):
        raise ConfigError(f"search[{key!r}] = {tried!r}: must be a list of values, such as [0.01, 0.1]")
    return [value.item() if isinstance(value, np.generic) else value for value in tried]


def _of_seed(given: Any, kind: type, name: str, remembered: int | None) -> Callable[[int], Any]:
    """What is given, for every seed; or what a function makes of a seed, of which so many are remembered."""
    if isinstance(given, kind):
        return lambda seed: given
    if not callable(given) or isinstance(given, type):
        raise ConfigError(f"{name} = {given!r}: must be a {kind.__name__}, or a function that makes one of a seed")

    @lru_cache(maxsize=remembered)
    def make(seed: int) -> Any:
        with initial_weights(seed):
            made = given(seed)
        if not isinstance(made, kind):
            raise ConfigError(f"{name}({seed}) gives {type(made).__name__}: must be a {kind.__name__}")
        return made

    return make
