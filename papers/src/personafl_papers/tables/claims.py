"""Claims of papers: sentences, and functions of the measured numbers that say whether they hold.

A difference counts where it lies beyond Student's one-sided 95% limit over seeds (paired by seed where both numbers
have values by seed); closer ones are "not decided". Nothing is corrected for the number of claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["holds", "does not hold", "not decided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not decided", "not measured")


@dataclass(frozen=True)
class Number:
    """A measured number: mean, standard error and how many values it is of; the values by seed, where kept."""

    mean: float
    error: float
    count: int
    values: tuple[float, ...] = ()


Numbers = Mapping[str, Mapping[str, Mapping[str, Number]]]
"""Part → row → column → number."""


@dataclass(frozen=True)
class Finding:
    """What the numbers say of a claim, and the figures that decide it."""

    verdict: Verdict
    figures: str


Check = Callable[[Numbers], Finding]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes
    ----------
    text, place
        What is claimed, in the paper's words or near them, and where.
    parts
        Parts without which nothing can be said.
    check
        Decides it.
    should_hold
        Whether a paper says it. Others are variations of ours: they are shown as such, and not counted.
    """

    text: str
    place: str
    parts: tuple[str, ...]
    check: Check
    should_hold: bool = True

    def decide(self, numbers: Numbers) -> Finding:
        if lacking := [part for part in self.parts if part not in numbers]:
            return Finding("not measured", f"not run here: {', '.join(lacking)}")
        try:
            return self.check(numbers)
        except KeyError as lacking:  # a method of which no run came to an end has no row
            return Finding("not measured", f"there is no number for {lacking}")


def above(part: str, column: str, row: str, others: Sequence[str], by: float = 0.0) -> Check:
    """Check that a row is above each of the others by more than `by`."""

    def check(numbers: Numbers) -> Finding:
        found = numbers[part]
        gaps = {other: difference(found[row][column], found[other][column]) for other in others}
        verdict = together([beyond(gap, by) for gap in gaps.values()])
        most = found[row][column].count
        listed = ", ".join(f"{o} {found[o][column].mean:.2f} ({_signed(g, most)})" for o, g in gaps.items())
        return Finding(verdict, f"{column}: {row} {_written(found[row][column])}; {listed}")

    return check


def below(part: str, column: str, row: str, others: Sequence[str], by: float = 0.0) -> Check:
    """Check that a row is below each of the others by more than `by`: for errors, losses, false alarms."""

    def check(numbers: Numbers) -> Finding:
        found = numbers[part]
        gaps = {other: difference(found[row][column], found[other][column]) for other in others}
        verdict = together([beyond(_negative(gap), by) for gap in gaps.values()])
        most = found[row][column].count
        listed = ", ".join(f"{o} {found[o][column].mean:.4g} ({_signed(g, most)})" for o, g in gaps.items())
        return Finding(verdict, f"{column}: {row} {_written(found[row][column])}; {listed}")

    return check


def near(part: str, column: str, row: str, other: str, within: float) -> Check:
    """Check that two rows differ by less than `within`."""

    def check(numbers: Numbers) -> Finding:
        a, b = numbers[part][row][column], numbers[part][other][column]
        gap = difference(a, b)
        verdict = together([beyond(gap, -within), beyond(_negative(gap), -within)])
        figures = f"{column}: {row} {_written(a)}, {other} {_written(b)} ({_signed(gap, a.count)}; limit {within:.3g})"
        return Finding(verdict, figures)

    return check


def at_least(part: str, column: str, row: str, value: float) -> Check:
    """Check that a number is above a given value."""

    def check(numbers: Numbers) -> Finding:
        found = numbers[part][row][column]
        return Finding(beyond(found, value), f"{column}: {row} {_written(found)}; limit {value:g}")

    return check


def at_most(part: str, column: str, row: str, value: float) -> Check:
    """Check that a number is below a given value."""

    def check(numbers: Numbers) -> Finding:
        found = numbers[part][row][column]
        return Finding(beyond(_negative(found), -value), f"{column}: {row} {_written(found)}; limit {value:g}")

    return check


def every(*checks: Check) -> Check:
    """All of several checks hold; it does not hold if one of them does not. The figures are those that decide it."""

    def check(numbers: Numbers) -> Finding:
        found = [one(numbers) for one in checks]
        verdict = together([one.verdict for one in found])
        return Finding(verdict, "; ".join(one.figures for one in found if one.verdict == verdict))

    return check


def difference(a: Number, b: Number) -> Number:
    """a − b; by seed where both have values, so that what seeds share falls out. Who has fewer has the first seeds.

    >>> difference(Number(2.0, 1.0, 2, (1.0, 3.0)), Number(1.5, 0.8, 3, (0.0, 2.0, 2.5)))
    Number(mean=1.0, error=0.0, count=2, values=(1.0, 1.0))
    """
    if both := min(len(a.values), len(b.values)):
        gaps = np.subtract(a.values[:both], b.values[:both])
        error = float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else np.nan
        return Number(float(gaps.mean()), error, len(gaps), tuple(gaps.tolist()))
    return Number(a.mean - b.mean, float(np.hypot(a.error, b.error)), min(a.count, b.count))


def beyond(found: Number, value: float) -> Verdict:
    """Whether a number is above a value, below it, or too near to tell.

    >>> beyond(Number(1.0, 0.1, 5), 0.0), beyond(Number(1.0, 0.1, 5), 2.0), beyond(Number(1.0, 0.9, 5), 0.0)
    ('holds', 'does not hold', 'not decided')
    """
    if found.count < 2 or not np.isfinite(found.mean + found.error):
        return "not decided"
    reach = float(stats.t.ppf(0.95, found.count - 1)) * found.error
    if found.mean - reach > value:
        return "holds"
    return "does not hold" if found.mean + reach < value else "not decided"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on "all of these": the worst of them."""
    order: tuple[Verdict, ...] = ("does not hold", "not measured", "not decided", "holds")
    return next((worst for worst in order if worst in verdicts), "holds")


def _negative(number: Number) -> Number:
    return Number(-number.mean, number.error, number.count, tuple(-v for v in number.values))


def _written(number: Number) -> str:
    return f"{number.mean:.4g} ± {number.error:.2g}" if np.isfinite(number.error) else f"{number.mean:.4g}"


def _signed(gap: Number, most: int) -> str:
    """A difference; of how many seeds, where the first number has more (`most`)."""
    written = f"{gap.mean:+.3g} ± {gap.error:.2g}" if np.isfinite(gap.error) else f"{gap.mean:+.3g}"
    return f"{written}, {gap.count} seed{'s' * (gap.count > 1)}" if gap.count < most else written
