"""What is tried: methods with settings, drawn from the spaces that the algorithms declare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.algorithms.extras import needs_validation
from personafl.algorithms.search_spaces import Range, Space, spaces
from personafl.errors import ConfigError
from personafl.settings import Local
from personafl.training.arguments import algorithm_of

REFERENCES = ("separate", "fedavg", "fedavg-ft")
"""Alone, one global model, and the global model fine-tuned: always tried, and always among the finalists."""
PORTFOLIO = (
    *REFERENCES, "fedadam", "ifca", "ditto", "apfl", "fedpac", "fedadagrad", "selffl", "fedamp", "fedbabu", "fedrod",
)  # fmt: skip
"""Tried where nothing is said, in this order. The study of all methods (docs/methods-study.md) says why: the best of
these is within 0.1 points of the best of all 44 on the mean of ten federations; selffl and fedamp are there for
federations that are not like those."""
RATES = {"sgd": Range(0.003, 1.0), "adam": Range(1e-4, 0.03), "adamw": Range(1e-4, 0.03)}
"""Learning rates to try, by local optimizer."""


@dataclass(frozen=True)
class Outcome:
    """What training a candidate for so many rounds gave.

    Attributes
    ----------
    score, global_score
        Of the personalized models and of the global model on validation data; more is better. NaN where there is none.
    seconds
        That this part of the training took.
    folder
        The run folder's name; empty where it failed.
    why
        Why it failed.
    at
        Seconds of the fit at its end.
    """

    rounds: int
    score: float
    global_score: float
    seconds: float
    folder: str
    why: str = ""
    at: float = 0.0

    @cached_property
    def best(self) -> float:
        """The better of the two models."""
        return max((value for value in (self.score, self.global_score) if math.isfinite(value)), default=-math.inf)


@dataclass(frozen=True)
class Candidate:
    """A method with settings, and what came of it so far, by rounds of training."""

    number: int
    method: str
    settings: dict[str, Any]
    outcomes: dict[int, Outcome] = field(default_factory=dict, compare=False)

    @property
    def rounds(self) -> int:
        """How long it was trained."""
        return max(self.outcomes, default=0)

    @property
    def failed(self) -> bool:
        """Whether any of its trainings failed."""
        return any(outcome.why for outcome in self.outcomes.values())

    @property
    def score(self) -> float:
        """The best that it reached; a candidate that was trained further and got worse keeps its better models."""
        return max((outcome.best for outcome in self.outcomes.values()), default=-np.inf)

    def seconds_per_round(self) -> float:
        """From its longest training; NaN before the first."""
        if not self.outcomes:
            return np.nan
        before = sorted(self.outcomes)[-2] if len(self.outcomes) > 1 else 0
        last = self.outcomes[self.rounds]
        return last.seconds / max(self.rounds - before, 1)

    def described(self) -> str:
        """For people: the method and what differs from the settings that were given."""
        return " ".join([self.method, *(f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items())])


class Portfolio:
    """The methods of a fit, with what may be searched of each."""

    def __init__(self, methods: Sequence[Algorithm | str] | None, local: Local) -> None:
        if methods is not None and (isinstance(methods, str) or not isinstance(methods, Iterable)):
            raise ConfigError(f"methods = {methods!r}: give a list of algorithms or names, such as ['ditto', 'fedamp']")
        given = [algorithm_of(method) for method in (PORTFOLIO if methods is None else methods)]
        chosen = {algorithm.name: algorithm for algorithm in given}
        if len(chosen) < len(given):
            raise ConfigError("methods names one twice: a fit searches the settings of each by itself")
        for name in REFERENCES:
            chosen.setdefault(name, ALGORITHMS[name]())
        if choosing := [name for name, algorithm in chosen.items() if needs_validation(algorithm)]:
            raise ConfigError(
                f"methods names {choosing[0]!r}, which chooses on validation data itself: fit needs that to choose "
                "between methods; leave it out, or compare it with pf.compare"
            )
        order = [*REFERENCES, *(name for name in chosen if name not in REFERENCES)]
        self.algorithms: dict[str, Algorithm] = {name: chosen[name] for name in order}
        self.spaces: dict[str, dict[str, Space]] = {
            name: {"local.lr": RATES[local.optimizer], **{f"algorithm.{key}": s for key, s in spaces(type(a)).items()}}
            for name, a in self.algorithms.items()
        }

    def draw(
        self, method: str, near: Mapping[str, Any] | None, local: Local, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Settings of a method: any, or some like those that are given."""
        if near is None:
            return {key: space.draw(rng) for key, space in self.spaces[method].items()}
        now = {key: near.get(key, self._usual(method, key, local)) for key in self.spaces[method]}
        return {key: space.near(now[key], rng) for key, space in self.spaces[method].items()}

    def _usual(self, method: str, key: str, local: Local) -> Any:
        table, _, name = key.partition(".")
        return getattr(local if table == "local" else self.algorithms[method], name)

    def made(self, method: str, settings: Mapping[str, Any], local: Local) -> tuple[Algorithm, Local]:
        """The algorithm and the local training of a candidate."""
        of_algorithm = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("algorithm.")}
        of_local = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("local.")}
        algorithm = self.algorithms[method]
        known = {f.name for f in fields(algorithm)}
        return replace(algorithm, **{k: v for k, v in of_algorithm.items() if k in known}), replace(local, **of_local)
