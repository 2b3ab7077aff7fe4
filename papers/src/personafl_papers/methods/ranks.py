"""Are methods that were run on the same federations different, and which? Tests on ranks, after Demšar.

J. Demšar: Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006. Federations are the blocks:
each counts once, however many seeds and clients it has, because these are not independent draws of federations.

    r_ij              rank of method j on federation i, 1 for the best, equal results share the mean of their ranks
    R_j               its mean over the N federations, of k methods
    Friedman          χ² = 12N / (k(k+1)) · [Σ R_j² − k(k+1)²/4], corrected for ties (as scipy has it)
    Iman, Davenport   F = (N−1)χ² / (N(k−1) − χ²), with k − 1 and (k−1)(N−1) degrees of freedom
    Nemenyi           methods differ where their mean ranks are CD = q_α √(k(k+1) / 6N) apart or more
    with a control    z = (R_i − R_j) / √(k(k+1) / 6N), two-sided p, corrected by Holm for k − 1 comparisons

The test of Friedman asks whether any methods differ; Nemenyi's compares all pairs, and so must take a large step; where
only the differences from one method matter, the last test sees more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from personafl.errors import DataError
from personafl.metrics import holm

Floats = NDArray[np.float64]


class Ranking(NamedTuple):
    """Ranks of k methods on N federations, and what is shown.

    Attributes
    ----------
    ranks, means
        (N, k), 1 for the best; (k,).
    chi2, p
        Friedman's test.
    f, p_f
        Its less conservative form by Iman and Davenport.
    critical_difference
        Nemenyi's, at 5%.
    """

    ranks: Floats
    means: Floats
    chi2: float
    p: float
    f: float
    p_f: float
    critical_difference: float


def ranked(scores: ArrayLike) -> Ranking:
    """Rank methods on each federation, and test whether they differ.

    Parameters
    ----------
    scores : array (N, k)
        What k methods reached on N federations, the more the better; −∞ for one that failed, which is ranked last.

    Examples
    --------
    >>> found = ranked([[0.9, 0.8, 0.7], [0.8, 0.8, 0.6], [0.9, 0.7, 0.8], [0.7, 0.6, 0.5]])
    >>> found.means.tolist(), round(found.critical_difference, 2)
    ([1.125, 2.125, 2.75], 1.66)
    """
    from scipy import stats

    values = np.asarray(scores, np.float64)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 3:
        raise DataError("ranks are compared for three methods or more on two federations or more")
    if np.isnan(values).any():
        raise DataError("every method needs a score on every federation: −inf where it failed")
    federations, methods = values.shape
    ranks = stats.rankdata(-values, axis=1)
    tested = stats.friedmanchisquare(*ranks.T)
    chi2, p = float(tested.statistic), float(tested.pvalue)
    f = iman_davenport(chi2, methods, federations)
    p_f = float(stats.f.sf(f, methods - 1, (methods - 1) * (federations - 1)))
    return Ranking(ranks, ranks.mean(0), chi2, p, f, p_f, critical_difference(methods, federations))


def iman_davenport(chi2: float, methods: int, federations: int) -> float:
    """F of Friedman's χ²; infinite where all federations rank the methods alike.

    >>> round(iman_davenport(9.28, 4, 14), 2)
    3.69
    """
    rest = federations * (methods - 1) - chi2
    return (federations - 1) * chi2 / rest if rest > 1e-9 else np.inf


def critical_difference(methods: int, federations: int, level: float = 0.05) -> float:
    """How far apart mean ranks must be for Nemenyi's test to tell two methods apart.

    >>> round(critical_difference(4, 14, 0.10), 2)
    1.12
    """
    from scipy import stats

    quantile = stats.studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(quantile * rank_error(methods, federations))


def rank_error(methods: int, federations: int) -> float:
    """The standard error of a difference of two mean ranks."""
    return float(np.sqrt(methods * (methods + 1) / (6 * federations)))


def against(control: int, means: ArrayLike, federations: int) -> Floats:
    """p of each method's difference from one of them, after Holm; NaN for that one itself.

    >>> against(0, [3.0, 2.0, 1.0], 14).round(4).tolist()
    [nan, 0.0082, 0.0]
    """
    from scipy import stats

    found = np.asarray(means, np.float64)
    z = (found - found[control]) / rank_error(len(found), federations)
    p = 2 * stats.norm.sf(np.abs(z))
    p[control] = np.nan
    return holm(p)


def groups(means: Sequence[float], difference: float) -> list[tuple[float, float]]:
    """The bars of the picture: runs of mean ranks, as long as can be, within which no two are told apart.

    >>> groups([1.0, 2.0, 2.5, 4.0], 1.6)
    [(1.0, 2.5), (2.5, 4.0)]
    """
    ordered = np.sort(np.asarray(means, np.float64))
    found: list[tuple[float, float]] = []
    for first in ordered:
        last = ordered[ordered < first + difference].max()
        if last > first and (not found or last > found[-1][1]):
            found.append((float(first), float(last)))
    return found
