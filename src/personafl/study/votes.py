"""The PersFL thesis's two questions, who performs best and who is fairest, each decided by a vote of metrics.

A vote alone would always name somebody. Here the one ahead is called the winner only where a test shows that it is
ahead by more than chance. The bar for candidates is ours as well, not the thesis's: more clients improved than harmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from personafl import metrics
from personafl.metrics.measures import ACCURACY, Measure
from personafl.metrics.permutation import MOST_UNITS
from personafl.study.columns import BY_KEY, Column
from personafl.study.differences import LEVEL, Floats, Outcome, Outcomes, Row, Values, listed, mean, shared_seeds

LOCAL = "separate"
PERFORMANCE = ("pui", "mpi", "api")
FAIRNESS = ("av", "cs", "entropy")
"""What the votes are over, and for performance the mean too. Jain's index is CS², so it has no vote of its own."""

_Shown = Callable[[str, Sequence[str], Sequence[str]], bool]
"""Whether the one ahead, on these metrics, is shown to be ahead of the other candidates."""


@dataclass(frozen=True)
class Verdict:
    """A vote: who wins (nobody, unless it is shown), who is ahead on which metrics, and why not more can be said."""

    winners: tuple[str, ...]
    wins: dict[str, list[str]] = field(default_factory=dict)
    why: str = ""


def performance_vote(rows: Sequence[Row], values: Values, winner: str | None, measure: Measure = ACCURACY) -> Verdict:
    """Who is ahead on most of the mean accuracy (or other measure), PUI, MPI and API: the PersFL thesis decides so.

    The bar is ours: a candidate improves more clients than it harms. And the one ahead is only called the winner if it
    is shown to be better than every other model.
    """
    mean = Column(f"mean_{measure.name}", f"mean {measure.label}", "", measure.better)
    ballots = (mean, *(BY_KEY[key] for key in PERFORMANCE))
    return _vote(rows, values, ballots, lambda leader, won, candidates: leader == winner)


def fairness_vote(rows: Sequence[Row], values: Values, outcomes: Outcomes, told_apart: bool) -> Verdict:
    """Who is ahead on most of AV, CS and entropy of the improvements, with the same bar.

    Entropy grows with the number of improved clients, so it votes only where all candidates improve the same ones. The
    one ahead is called the winner if that is shown on each metric that it leads, against each other candidate; and
    nobody is where the models could not be told apart at all (`told_apart`).
    """

    def shown(leader: str, won: Sequence[str], candidates: Sequence[str]) -> bool:
        others = [c for c in candidates if c != leader]
        if not told_apart or not others:
            return False
        p = [max(_evenness_p(outcomes[leader], outcomes[c], key) for key in won) for c in others]
        return bool((len(candidates) * metrics.holm(p) <= LEVEL).all())

    candidates = [row.key for row in rows if _improves(row, values)]
    if len(candidates) == 1:
        return Verdict(
            (), {}, f"only {candidates[0]} improves more clients than it harms: there is nobody to compare it with"
        )
    keys = FAIRNESS if _same_improved([outcomes[c] for c in candidates]) else FAIRNESS[:2]
    return _vote(rows, values, [BY_KEY[key] for key in keys], shown)


def _improves(row: Row, values: Values) -> bool:
    """Whether a row stands in the votes: personalized, not training alone, and more clients improved than harmed."""
    up, down = (mean(values[row.key].get(key, ())) for key in ("pui", "pud"))
    return row.model == "personal" and row.method != LOCAL and not up <= down


def _vote(rows: Sequence[Row], values: Values, ballots: Sequence[Column], shown: _Shown) -> Verdict:
    stands = [row for row in rows if row.model == "personal" and row.method != LOCAL]
    candidates = [row.key for row in stands if _improves(row, values)]
    name = {row.key: row.name for row in rows}
    wins: dict[str, list[str]] = {}
    titles = {column.key: column.title.removesuffix(" %") for column in ballots}
    for key, better in ((column.key, column.better) for column in ballots):
        scores = {m: better * mean(values[m].get(key, ())) for m in candidates}
        scores = {m: v for m, v in scores.items() if np.isfinite(v)}
        for m in (m for m, v in scores.items() if v >= max(scores.values()) - 1e-12):
            wins.setdefault(m, []).append(key)
    left_out = [row.name for row in stands if row.key not in candidates]
    bar = f"; left out, as they do not improve more clients than they harm: {listed(left_out)}" if left_out else ""
    if not wins:
        nobody = (
            "no method improves more clients than it harms" if left_out else "there is nothing to tell them apart by"
        )
        return Verdict((), {}, nobody)
    ahead = "; ".join(f"{name[m]} is ahead on {listed([titles[k] for k in won])}" for m, won in wins.items())
    most = max(map(len, wins.values()))
    leaders = [m for m, won in wins.items() if len(won) == most]
    if len(leaders) > 1:
        return Verdict((), wins, f"{ahead}; nobody on most{bar}")
    if not shown(leaders[0], wins[leaders[0]], candidates):
        return Verdict((), wins, f"{ahead}, which is not shown to be more than chance{bar}")
    return Verdict((leaders[0],), wins, f"{ahead}{bar}")


def _same_improved(candidates: Sequence[Mapping[int, Outcome]]) -> bool:
    """Whether all improve the same clients, in every seed that they share."""
    for one in candidates[1:]:
        for seed in shared_seeds(candidates[0], one):
            mine, theirs = candidates[0][seed].qoi, one[seed].qoi
            if mine is None or theirs is None or not np.array_equal(mine > 0, theirs > 0):
                return False
    return len(candidates) > 1


def _evenness_p(first: Mapping[int, Outcome], second: Mapping[int, Outcome], key: str) -> float:
    """One-sided p that the improvements of the first are more even, by swapping clients with all their seeds."""
    seeds = [s for s in shared_seeds(first, second) if first[s].qoi is not None and second[s].qoi is not None]
    if not seeds:
        return 1.0
    ids, who = np.unique(np.concatenate([np.asarray(first[s].clients) for s in seeds]), return_inverse=True)
    units = min(len(ids), MOST_UNITS)
    places = np.split(who % units, np.cumsum([len(first[s].clients) for s in seeds])[:-1])
    sums = [
        [_power_sums(side[seed].qoi, place, units) for side in (first, second)]
        for seed, place in zip(seeds, places, strict=True)
    ]

    def statistic(swapped: Floats) -> Floats:
        total = np.zeros(len(swapped))
        for mine, theirs in sums:
            moved = swapped @ (theirs - mine)
            total += _evenness(mine.sum(0) + moved, key) - _evenness(theirs.sum(0) - moved, key)
        return BY_KEY[key].better * total

    return float(np.nan_to_num(metrics.swap_test(units, statistic), nan=1.0))


def _power_sums(qoi: Floats | None, place: NDArray[np.int64], units: int) -> Floats:
    """Of the improved clients in each unit: how many, ΣF, ΣF² and ΣF ln F."""
    f = np.maximum(np.nan_to_num(np.asarray(qoi, np.float64)), 0.0)
    parts = ((f > 0).astype(np.float64), f, f * f, f * np.log(np.where(f > 0, f, 1.0)))
    return np.stack([np.bincount(place, part, units) for part in parts], 1)


def _evenness(sums: Floats, key: str) -> Floats:
    """AV, CS or entropy from the power sums of the improved clients, as `metrics.fairness` has them."""
    n, first, second, logs = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        if key == "av":
            return np.asarray(second / n - (first / n) ** 2)
        return np.asarray(first / np.sqrt(n * second) if key == "cs" else np.log(first) - logs / first)
