"""How well scores order samples: AUC, average precision, the concordance index. NaN where there is nothing to order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, numbers

AT_ONCE = 4_000_000
"""Pairs of samples that are compared at once."""


def area_under_curve(scores: ArrayLike, positive: ArrayLike) -> float:
    """The area under the ROC curve: how often a positive sample scores higher than a negative one, ties half.

    Examples
    --------
    >>> area_under_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), area_under_curve([0.1, 0.4], [1, 1])
    (0.75, nan)
    """
    values, truth = aligned(scores=scores, positive=positive)
    yes = truth > 0
    many, few = int(yes.sum()), int((~yes).sum())
    if not many or not few or np.isnan(values).any():
        return np.nan
    from scipy.stats import rankdata  # half a second, which training need not wait for

    return float((rankdata(values)[yes].sum() - many * (many + 1) / 2) / (many * few))


def average_precision(scores: ArrayLike, positive: ArrayLike) -> float:
    """Σ (R_k − R_{k−1}) P_k over the thresholds: the precision, averaged over the positive samples.

    Examples
    --------
    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    values, truth = aligned(scores=scores, positive=positive)
    yes = truth > 0
    if not yes.any() or np.isnan(values).any():
        return np.nan
    order = np.argsort(-values, kind="stable")
    hits, ranked = np.cumsum(yes[order]), values[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # of those with the same score
    found, looked_at = hits[last], np.flatnonzero(last) + 1
    return float((np.diff(found, prepend=0) * found / looked_at).sum() / yes.sum())


def concordance_index(risk: ArrayLike, time: ArrayLike, event: ArrayLike) -> float:
    """Harrell's C: of pairs whose order in time is known, how often the earlier event has the higher risk, ties half.

    A pair is known where the earlier of the two had its event; one who was censored at the time of the other's event
    outlived it.

    Examples
    --------
    >>> concordance_index([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [1, 1, 0])
    0.6666666666666666
    """
    risks, times, events = aligned(risk=risk, time=time, event=event)
    if np.isnan(risks).any():
        return np.nan
    had = np.flatnonzero(events > 0)
    better = pairs = 0.0
    for some in np.array_split(had, max(1, len(had) * len(times) // AT_ONCE)):
        later = (times > times[some, None]) | ((times == times[some, None]) & (events == 0))
        pairs += later.sum()
        above, same = risks < risks[some, None], risks == risks[some, None]
        better += (above & later).sum() + 0.5 * (same & later).sum()
    return float(better / pairs) if pairs else np.nan


def by_label(score: Callable[[Floats, Floats], float], scores: ArrayLike, positive: ArrayLike) -> Floats:
    """A value for each label, from scores and labels (N, d).

    Examples
    --------
    >>> by_label(area_under_curve, [[0.1, 3.0], [0.9, 2.0]], [[0, 1], [1, 1]])
    array([ 1., nan])
    """
    values, truth = (numbers(each, what, axes=(2,)) for each, what in ((scores, "scores"), (positive, "positive")))
    if values.shape != truth.shape:
        raise DataError(f"scores have shape {values.shape} and labels {truth.shape}: they must be the same")
    return np.array([score(values[:, j], truth[:, j]) for j in range(values.shape[1])])


def mean_over_labels(values: Floats) -> float:
    """The mean over the labels that have a value; NaN where none has."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
