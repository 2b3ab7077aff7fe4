"""A search that ends inside its grid, with the same number of tries for every method.

The values of a parameter that may be tried are an axis: a list in order, whose ends are the stated limits. A search
begins at a stated point; it then always tries the untried point that is nearest to the best so far, counted in places
along the axes. So it walks as long as it improves, also beyond where it began, and it ends inside: with worse values on
both sides, or at a limit. Of equally near points the smaller are tried first, along the first axis first; of equally
good ones the first that was tried is the best.

Every method has the same number of tries, the budget, which is fixed before anything runs. A method with one parameter
spends it along a finer axis, one with two on their plane; tries that remain when a search has come inside are spent
around the best. Where the budget ends before one of the searches has come inside, all methods go on, a try of each at a
time, until all have or `most` tries are made, which is fixed before, too; who has tried all of its points has no more.
Scores come from validation data only, and trials are as long as the runs that they serve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from personafl.errors import ConfigError, RunError
from personafl.study.launch import RunCache, Trial, scored
from personafl.study.plan import Plan

Place = tuple[int, ...]
"""A point of the grid: a place on each axis."""

End = Literal["inside", "at the limit", "out of tries"]
"""How a search ended along an axis: worse (or equal) on both sides, best at an end, or a neighbour was not tried."""


@dataclass(frozen=True)
class Axis:
    """The values of a parameter that may be tried.

    Attributes
    ----------
    key
        Such as `local.lr`.
    values
        In order; the first and the last are the limits.
    start
        One of them, where a search begins.
    """

    key: str
    values: tuple[float, ...]
    start: float

    def __post_init__(self) -> None:
        if list(self.values) != sorted(set(self.values)) or self.start not in self.values:
            raise ConfigError(f"search of {self.key}: values must rise, and start = {self.start:g} must be one of them")


Axes = tuple[Axis, ...]


def geometric(key: str, lowest: float, highest: float, start: float, per_decade: int = 2) -> Axis:
    """An axis of values 1, 3 (or 1, 2, 5) times powers of ten, from limit to limit.

    >>> geometric("local.lr", 0.003, 0.3, 0.03).values
    (0.003, 0.01, 0.03, 0.1, 0.3)
    >>> geometric("local.lr", 0.01, 0.2, 0.05, per_decade=3).values
    (0.01, 0.02, 0.05, 0.1, 0.2)
    """
    digits = {1: (1,), 2: (1, 3), 3: (1, 2, 5)}[per_decade]
    every = [float(f"{digit}e{power}") for power in range(-9, 10) for digit in digits]
    return Axis(key, tuple(value for value in every if lowest <= value <= highest), start)


def next_place(axes: Axes, scores: Mapping[Place, float]) -> Place | None:
    """The point to try next, given the scores of those that were tried; None when there is no other."""
    if not scores:
        return tuple(axis.values.index(axis.start) for axis in axes)
    best = best_place(scores)
    every = itertools.product(*(range(len(axis.values)) for axis in axes))
    left = [place for place in every if place not in scores]
    return min(left, key=lambda place: (*_distance(place, best), place), default=None)


def _distance(place: Place, best: Place) -> tuple[int, int, tuple[int, ...]]:
    """In all; the farthest along one axis; and by axis, so that steps along the first come first."""
    each = tuple(abs(a - b) for a, b in zip(place, best, strict=True))
    return sum(each), max(each), tuple(-steps for steps in each)


def best_place(scores: Mapping[Place, float]) -> Place:
    """The best; of equal ones the first that was tried."""
    return max(scores, key=lambda place: scores[place])


def ends(axes: Axes, scores: Mapping[Place, float]) -> dict[str, End]:
    """By key, how the search ended."""
    best = best_place(scores)
    out: dict[str, End] = {}
    for a, axis in enumerate(axes):
        sides = [(*best[:a], best[a] + step, *best[a + 1 :]) for step in (-1, 1)]
        there = [side for side in sides if 0 <= side[a] < len(axis.values)]
        if any(side not in scores for side in there):
            out[axis.key] = "out of tries"
        else:
            out[axis.key] = "inside" if len(there) == 2 else "at the limit"
    return out


def search(axes: Axes, budget: int, score: Callable[[Place], float]) -> dict[Place, float]:
    """Try points one after the other, at most so many; scores in the order in which they were tried."""
    return search_together({"": axes}, budget, 0, lambda wave: {"": score(wave[""])})[""]


def search_together(
    axes: Mapping[str, Axes], budget: int, most: int, score: Callable[[Mapping[str, Place]], Mapping[str, float]]
) -> dict[str, dict[Place, float]]:
    """The same for several methods, each of which is told its next point at a time: as many tries for all of them.

    While the best of one of them has a neighbour that was not tried, all go on beyond the budget, up to `most` tries.
    """
    scores: dict[str, dict[Place, float]] = {method: {} for method in axes}
    while wave := _wave(axes, scores, budget):
        for method, value in score(wave).items():
            scores[method][wave[method]] = value
        if budget < most and not _wave(axes, scores, budget) and _unfinished(axes, scores):
            budget += 1
    return scores


def _wave(axes: Mapping[str, Axes], scores: Mapping[str, Mapping[Place, float]], budget: int) -> dict[str, Place]:
    due = {method: next_place(own, scores[method]) for method, own in axes.items() if len(scores[method]) < budget}
    return {method: place for method, place in due.items() if place is not None}


def _unfinished(axes: Mapping[str, Axes], scores: Mapping[str, Mapping[Place, float]]) -> bool:
    return any("out of tries" in ends(own, scores[method]).values() for method, own in axes.items())


@dataclass(frozen=True)
class SearchPlan:
    """What a stage of a table searches: axes by method, and as many tries for each.

    Attributes
    ----------
    plan
        Without methods to run and without a grid; its seeds are those of the search, a score is their mean.
    budget
        Tries for each method, on each seed.
    most
        So many at most for each, where a search has not come inside with the budget; 0 is the budget.
    """

    plan: Plan
    axes: Mapping[str, Axes]
    budget: int
    most: int = 0

    def __post_init__(self) -> None:
        for method, axes in self.axes.items():
            if (size := prod(len(axis.values) for axis in axes)) < self.budget:
                raise ConfigError(
                    f"search of {method}: {size} points for {self.budget} tries: longer axes, so that all have as many"
                )

    def jobs(self) -> int:
        """How many runs there are at most."""
        return max(self.budget, self.most) * len(self.axes) * len(self.plan.seeds)


@dataclass(frozen=True)
class Searched:
    """What was searched for a method, what was chosen, and how the search ended along each axis."""

    method: str
    measure: str
    trials: list[Trial]
    chosen: dict[str, Any]
    ends: dict[str, End] = field(default_factory=dict)
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    budget: int = 0


def run_search(planned: SearchPlan, cache: RunCache) -> list[Searched]:
    """Run a search of all its methods at once: a try of each, then the next of each."""
    trials: dict[str, list[Trial]] = {method: [] for method in planned.axes}
    measures: dict[str, str] = {}

    def score(wave: Mapping[str, Place]) -> dict[str, float]:
        points = {method: _settings(planned.axes[method], place) for method, place in wave.items()}
        jobs = [planned.plan.trial(m, seed, point) for seed in planned.plan.seeds for m, point in points.items()]
        runs = iter(cache.runs(jobs))
        made = [{method: next(runs) for method in points} for _ in planned.plan.seeds]
        for method in wave:
            measures[method], [trial] = scored(
                planned.plan, method, [points[method]], [[of_seed[method]] for of_seed in made]
            )
            trials[method].append(trial)
        return {method: trials[method][-1].score for method in wave}

    scores = search_together(planned.axes, planned.budget, planned.most, score)
    for method, found in scores.items():
        if found[best_place(found)] == -np.inf:
            raise RunError(f"every setting of {method} failed; the warnings above say why")
    tries = max(map(len, scores.values()))
    return [
        Searched(
            method, measures[method], trials[method], _settings(axes, best_place(scores[method])),
            ends(axes, scores[method]), {axis.key: (axis.values[0], axis.values[-1]) for axis in axes}, tries,
        )
        for method, axes in planned.axes.items()
    ]  # fmt: skip


def _settings(axes: Sequence[Axis], place: Place) -> dict[str, Any]:
    return {axis.key: axis.values[at] for axis, at in zip(axes, place, strict=True)}
