"""Whether a difference between two methods is more than chance: Wilcoxon's test over clients, Holm's correction, seeds.

Clients are paired: each has a result with both methods. One federation is one draw of clients, so a small p says that
the difference would be seen on other clients like these, not that it would be seen with another seed; for that, see
`mean_over_seeds`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, known, numbers

Alternative = Literal["two-sided", "greater", "less"]

LARGEST_EXACT = 50
"""Up to so many pairs p is exact; above, the normal approximation is near enough."""


class SeedMean(NamedTuple):
    """Mean of a metric over seeds, its standard error, Student's 95% interval, and how many seeds there were."""

    mean: float
    standard_error: float
    low: float
    high: float
    seeds: int


class PairedTest(NamedTuple):
    """Result of `wilcoxon`.

    Attributes
    ----------
    p
        How likely a difference at least as large is if the methods are equally good.
    statistic
        W⁺, the sum of the ranks of the pairs in which the first method is better.
    pairs, zeros, left_out
        Pairs that differ (the test's n), pairs that do not, and clients for whom one of the two is missing.
    """

    p: float
    statistic: float
    pairs: int
    zeros: int
    left_out: int


def wilcoxon(first: ArrayLike, second: ArrayLike, alternative: Alternative = "two-sided") -> PairedTest:
    """Wilcoxon's signed-rank test over paired clients: do the differences lie symmetrically around 0?

    The |differences| are ranked, W⁺ is the sum of the ranks of the positive ones. Pairs without a difference are
    dropped, as Wilcoxon did; equal |differences| get their mean rank. Differences that only rounding tells apart count
    as equal. For up to 50 pairs p is exact, given the ranks: a share of all 2ⁿ ways to put signs to them. Above, it
    is scipy's, from the normal distribution with the variance corrected for ties, without continuity correction.

    If no pair differs, p = 1; if there is no pair at all, NaN. Few pairs cannot say much: with n pairs the smallest
    two-sided p is 2^(1−n), so with fewer than 6 it is never below .05.

    Parameters
    ----------
    first, second : array (M,)
        Results of the same clients with two methods, for example accuracies; NaN without test data.
    alternative : {"two-sided", "greater", "less"}
        "greater": the first is better than the second.

    Examples
    --------
    >>> wilcoxon([0.8, 0.7, 0.9, 0.6, 0.8, 0.5], [0.7, 0.5, 0.6, 0.2, 0.3, np.nan])
    PairedTest(p=0.0625, statistic=15.0, pairs=5, zeros=0, left_out=1)
    """
    from scipy import stats  # half a second, which training does not need

    if alternative not in get_args(Alternative):
        raise DataError(f"there is no alternative {alternative!r}, only two-sided, greater and less")
    a, b = aligned(first=first, second=second)
    if np.isinf(a).any() or np.isinf(b).any():
        raise DataError("first and second must be finite: infinite results cannot be subtracted")
    paired = ~(np.isnan(a) | np.isnan(b))
    a, b = a[paired], b[paired]
    left_out, count = int((~paired).sum()), len(a)
    if not count:
        return PairedTest(np.nan, np.nan, 0, 0, left_out)
    scale = max(np.abs(a).max(), np.abs(b).max(), np.finfo(float).tiny)
    difference = np.round(a / scale - b / scale, 12)  # .3 − .1 and .4 − .2 are the same difference
    difference = difference[difference != 0]
    pairs = len(difference)
    if not pairs:
        return PairedTest(1.0, 0.0, 0, count, left_out)
    ranks = stats.rankdata(np.abs(difference))
    statistic = float(ranks[difference > 0].sum())
    if pairs <= LARGEST_EXACT:
        p = _exact(ranks, statistic, alternative)
    else:
        p = float(stats.wilcoxon(difference, alternative=alternative, method="asymptotic", correction=False).pvalue)
    return PairedTest(p, statistic, pairs, count - pairs, left_out)


def mean_over_seeds(values: ArrayLike) -> SeedMean:
    """Mean of a metric over seeds, with its standard error s/√S, s with S − 1, and Student's 95% interval.

    NaN are left out. With one seed, the error is not known: NaN.

    Examples
    --------
    >>> found = mean_over_seeds([0.80, 0.82, 0.84])
    >>> print(f"{found.mean:.3f} ± {found.standard_error:.4f}, {found.low:.3f} … {found.high:.3f}")
    0.820 ± 0.0115, 0.770 … 0.870
    """
    measured = known(numbers(values, "values"))
    seeds = len(measured)
    if seeds < 2:
        return SeedMean(float(measured[0]) if seeds else np.nan, np.nan, np.nan, np.nan, seeds)
    mean, error = float(measured.mean()), float(measured.std(ddof=1) / np.sqrt(seeds))
    from scipy import stats

    reach = float(stats.t.ppf(0.975, seeds - 1)) * error
    return SeedMean(mean, error, mean - reach, mean + reach, seeds)


def holm(p: ArrayLike) -> Floats:
    """Holm's correction: adjusted p-values, for when several methods are compared at once.

    With p_(1) ≤ … ≤ p_(m), adjusted p_(k) = max_{j ≤ k} min(1, (m − j + 1) p_(j)). Rejecting where it is at most α,
    the chance of rejecting any true hypothesis is at most α, however they depend on each other. A NaN stays NaN and
    does not count among the m.

    (Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics, 1979.)

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    raw = numbers(p, "p")
    tested = np.flatnonzero(~np.isnan(raw))
    if not np.all((raw[tested] >= 0) & (raw[tested] <= 1)):
        raise DataError("p must be between 0 and 1: these are probabilities")
    rising = tested[np.argsort(raw[tested], kind="stable")]
    adjusted = np.full(len(raw), np.nan)
    adjusted[rising] = np.minimum(1.0, np.maximum.accumulate(raw[rising] * np.arange(len(rising), 0, -1)))
    return adjusted


def _exact(ranks: Floats, statistic: float, alternative: Alternative) -> float:
    """p of W⁺ when each rank is positive or negative with equal chance. scipy's exact p does not allow for ties."""
    chance = np.ones(1)  # of each sum of twice the ranks, which are whole numbers
    for rank in np.rint(2 * ranks).astype(np.int64):
        chance = (np.pad(chance, (0, rank)) + np.pad(chance, (rank, 0))) / 2
    observed = round(2 * statistic)
    greater, less = float(chance[observed:].sum()), float(chance[: observed + 1].sum())
    return min(1.0, {"greater": greater, "less": less, "two-sided": 2 * min(greater, less)}[alternative])
