"""False alarms against misses: how well scores tell wake words, or anything else, from the rest.

A sample is accepted if its score is at least the threshold t:

    FA(t) = share of the negative samples with score ≥ t        false alarms (false accepts)
    FR(t) = share of the positive samples with score < t        false rejections (misses)

The detection error trade-off (DET) curve is (FR, FA) over all thresholds. It is exact: one point for each score that
occurs, equal scores together. Without positive samples FR is NaN, without negative ones FA is. For several clients,
call these with each client's samples; for all together, with everybody's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, numbers


class DetCurve(NamedTuple):
    """Points of the DET curve by rising threshold: false alarms fall from 1 to 0, false rejections rise from 0 to 1."""

    thresholds: Floats
    false_alarm: Floats
    false_rejection: Floats


def error_rates(scores: ArrayLike, positive: ArrayLike, thresholds: ArrayLike) -> tuple[Floats, Floats]:
    """False-alarm and false-rejection rates at given thresholds.

    Parameters
    ----------
    scores : array (N,)
        Higher means more likely positive.
    positive : array (N,)
        1 or True for the samples that should be accepted.
    thresholds : array (T,)
        A score at least as high is accepted.

    Examples
    --------
    >>> false_alarm, false_rejection = error_rates([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1], [0.4, 0.5])
    >>> print(false_alarm, false_rejection)
    [0.5 0. ] [0.  0.5]
    """
    negatives, positives = _sorted_by_class(scores, positive)
    return _rates(negatives, positives, numbers(thresholds, "thresholds"))


def det_curve(scores: ArrayLike, positive: ArrayLike) -> DetCurve:
    """The exact detection error trade-off curve: a point for each distinct score, and one where nothing is accepted.

    Examples
    --------
    >>> curve = det_curve([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1])
    >>> print(curve.thresholds, curve.false_alarm, curve.false_rejection)
    [0.1 0.4 0.9 inf] [1.  0.5 0.  0. ] [0.  0.  0.5 1. ]
    """
    negatives, positives = _sorted_by_class(scores, positive)
    thresholds = np.append(np.unique(np.concatenate([negatives, positives])), np.inf)
    return DetCurve(thresholds, *_rates(negatives, positives, thresholds))


def false_alarm_at(curve: DetCurve, false_rejection: float) -> float:
    """The false-alarm rate where the false-rejection rate is as given; the curve's points are joined by straight lines.

    Where several thresholds have that false-rejection rate, the lowest false-alarm rate: there is no reason to use
    another. Between points a line stands for choosing at random between two thresholds.

    Examples
    --------
    >>> curve = det_curve([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1])
    >>> false_alarm_at(curve, 0.0), false_alarm_at(curve, 0.25), false_alarm_at(curve, 0.5)
    (0.5, 0.25, 0.0)
    """
    if not 0 <= false_rejection <= 1:
        raise DataError(f"false_rejection = {false_rejection} must be between 0 and 1")
    fr, fa = curve.false_rejection, curve.false_alarm
    if np.isnan(fr[0]) or np.isnan(fa[0]):
        return np.nan
    below = int(np.searchsorted(fr, false_rejection, side="right")) - 1
    if fr[below] == false_rejection:
        return float(fa[below])
    step = (false_rejection - fr[below]) / (fr[below + 1] - fr[below])
    return float(fa[below] + step * (fa[below + 1] - fa[below]))


def relative_false_alarm(
    scores: ArrayLike, positive: ArrayLike, base_false_alarm: float, base_false_rejection: float
) -> float:
    """Self-FL's relative FA: FA/FA_base at the threshold where FR = FR_base. Below 1 is better than the baseline.

    The baseline's two rates are those of the model that training started from, at its operating threshold
    (`error_rates` gives them). NaN if the baseline has no false alarms, or a class is missing.

    Examples
    --------
    >>> relative_false_alarm([0.1, 0.2, 0.6, 0.4, 0.9], [0, 0, 0, 1, 1], 0.5, base_false_rejection=0.5)
    0.0
    >>> relative_false_alarm([0.1, 0.2, 0.6, 0.4, 0.9], [0, 0, 0, 1, 1], 0.5, base_false_rejection=0.0)
    0.6666666666666666
    """
    if not 0 <= base_false_alarm <= 1:
        raise DataError(f"base_false_alarm = {base_false_alarm} must be between 0 and 1")
    found = false_alarm_at(det_curve(scores, positive), base_false_rejection)
    return found / base_false_alarm if base_false_alarm > 0 else np.nan


def equal_error_rate(curve: DetCurve) -> float:
    """The rate at which false alarms and false rejections are equally frequent, on the curve of straight lines.

    Examples
    --------
    >>> equal_error_rate(det_curve([0.1, 0.3, 0.6, 0.4, 0.8, 0.9], [0, 0, 0, 1, 1, 1]))
    0.3333333333333333
    """
    difference = curve.false_alarm - curve.false_rejection  # falls from 1 to −1
    if np.isnan(difference[0]):
        return np.nan
    above = int(np.flatnonzero(difference >= 0)[-1])
    step = difference[above] / (difference[above] - difference[above + 1])
    fa = curve.false_alarm
    return float(fa[above] + step * (fa[above + 1] - fa[above]))


def _sorted_by_class(scores: ArrayLike, positive: ArrayLike) -> tuple[Floats, Floats]:
    """The negative and the positive samples' scores, each in rising order."""
    values, is_positive = aligned(scores=scores, positive=positive)
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise DataError(f"scores has {count} entries that are NaN or infinite: no threshold tells these apart")
    if not np.isin(is_positive, (0.0, 1.0)).all():
        raise DataError("positive must be 0 or 1 for each sample")
    return np.sort(values[is_positive == 0]), np.sort(values[is_positive == 1])


def _rates(negatives: Floats, positives: Floats, at: Floats) -> tuple[Floats, Floats]:
    accepted = len(negatives) - np.searchsorted(negatives, at, side="left")
    rejected = np.searchsorted(positives, at, side="left")
    nothing = np.full(len(at), np.nan)
    return (
        accepted / len(negatives) if len(negatives) else nothing,
        rejected / len(positives) if len(positives) else nothing.copy(),
    )
