"""The DET curve against counting, scikit-learn, and a hand-computed example; what must hold for any scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from personafl import metrics
from personafl.errors import DataError

# Few distinct scores, so that ties within and between the classes are the rule.
SAMPLES = st.lists(st.tuples(st.integers(-4, 4).map(float) | st.floats(-4, 4), st.booleans()), min_size=2, max_size=40)
BOTH = SAMPLES.filter(lambda samples: len({positive for _, positive in samples}) == 2)


def columns(samples):
    return np.array([s for s, _ in samples]), np.array([p for _, p in samples])


@settings(deadline=None)
@given(SAMPLES, st.lists(st.integers(-5, 5).map(float), max_size=5))
def test_rates_are_counts(samples, thresholds):
    scores, positive = columns(samples)
    alarm, rejection = metrics.error_rates(scores, positive, thresholds)
    for t, fa, fr in zip(thresholds, alarm, rejection, strict=True):
        expected = [np.mean(scores[~positive] >= t) if (~positive).any() else np.nan]
        expected += [np.mean(scores[positive] < t) if positive.any() else np.nan]
        assert [fa, fr] == pytest.approx(expected, nan_ok=True)


@settings(deadline=None)
@given(BOTH)
def test_the_curve_is_monotone_and_complete(samples):
    scores, positive = columns(samples)
    curve = metrics.det_curve(scores, positive)
    assert (np.diff(curve.thresholds) > 0).all()
    assert (np.diff(curve.false_alarm) <= 0).all()
    assert (np.diff(curve.false_rejection) >= 0).all()
    assert (curve.false_alarm[0], curve.false_rejection[0]) == (1, 0)
    assert (curve.false_alarm[-1], curve.false_rejection[-1]) == (0, 1)
    assert len(curve.thresholds) == len(set(scores.tolist())) + 1
    assert (np.diff(curve.false_alarm) + -np.diff(curve.false_rejection) < 0).all()  # every score is somebody's


@settings(max_examples=40, deadline=None)
@given(BOTH)
def test_the_curve_is_scikit_learns(samples):
    """scikit-learn leaves out some points at the ends; those it has are ours."""
    scores, positive = columns(samples)
    curve = metrics.det_curve(scores, positive)
    fa, fr, thresholds = sklearn.det_curve(positive, scores)
    alarm, rejection = metrics.error_rates(scores, positive, thresholds)
    np.testing.assert_allclose(alarm, fa)
    np.testing.assert_allclose(rejection, fr)
    area = -np.trapezoid(1 - curve.false_rejection, curve.false_alarm)
    assert area == pytest.approx(sklearn.roc_auc_score(positive, scores))


@settings(deadline=None)
@given(BOTH, st.floats(-10, 10), st.floats(0.5, 3))
def test_only_the_order_of_scores_matters(samples, shift, factor):
    scores, positive = columns(samples)
    scores = np.round(scores, 3)
    one, other = metrics.det_curve(scores, positive), metrics.det_curve(np.round(scores, 3) * factor + shift, positive)
    if len(one.thresholds) == len(other.thresholds):  # no two scores fell together
        np.testing.assert_array_equal(one[1:], other[1:])
        assert metrics.equal_error_rate(one) == metrics.equal_error_rate(other)


@settings(deadline=None)
@given(BOTH)
def test_the_baseline_itself_has_relative_false_alarm_1_or_less(samples):
    """Less only where another threshold has the same misses and fewer false alarms."""
    scores, positive = columns(samples)
    curve = metrics.det_curve(scores, positive)
    for k in range(len(curve.thresholds)):
        fa, fr = float(curve.false_alarm[k]), float(curve.false_rejection[k])
        found = metrics.relative_false_alarm(scores, positive, fa, fr)
        if fa == 0:
            assert np.isnan(found)
        else:
            lowest = curve.false_alarm[curve.false_rejection == fr].min()
            assert found == pytest.approx(lowest / fa)
            assert found <= 1


@settings(deadline=None)
@given(BOTH, st.floats(0, 1), st.floats(0, 1))
def test_false_alarms_fall_as_rejections_rise(samples, one, other):
    curve = metrics.det_curve(*columns(samples))
    low, high = sorted((one, other))
    assert metrics.false_alarm_at(curve, low) >= metrics.false_alarm_at(curve, high) - 1e-12
    assert metrics.false_alarm_at(curve, 1.0) == 0


@settings(deadline=None)
@given(BOTH)
def test_at_the_equal_error_rate_both_errors_are_equal(samples):
    scores, positive = columns(samples)
    curve = metrics.det_curve(scores, positive)
    rate = metrics.equal_error_rate(curve)
    # The line through the corners of the unit square meets the curve there.
    distance = np.hypot(curve.false_alarm - rate, curve.false_rejection - rate)
    ends = np.stack([curve.false_rejection, curve.false_alarm], 1)
    a, b = ends[:-1], ends[1:]
    along = np.clip(((rate - a) * (b - a)).sum(1) / ((b - a) ** 2).sum(1), 0, 1)
    nearest = np.abs(a + along[:, None] * (b - a) - rate).max(1).min()
    assert min(nearest, distance.min()) == pytest.approx(0, abs=1e-9)


def test_by_hand():
    #                     1    2    3    4    5    6    7    8
    scores = np.arange(1.0, 9.0)
    positive = np.array([0, 0, 1, 0, 0, 1, 1, 1])
    curve = metrics.det_curve(scores, positive)
    np.testing.assert_array_equal(curve.false_alarm, [1, 0.75, 0.5, 0.5, 0.25, 0, 0, 0, 0])
    np.testing.assert_array_equal(curve.false_rejection, [0, 0, 0, 0.25, 0.25, 0.25, 0.5, 0.75, 1])
    assert metrics.false_alarm_at(curve, 0.0) == 0.5
    assert metrics.false_alarm_at(curve, 0.1) == 0.5  # between two thresholds with the same false alarms
    assert metrics.false_alarm_at(curve, 0.25) == 0.0
    assert metrics.equal_error_rate(curve) == 0.25
    # A baseline that misses nothing at 3 of 4 false alarms; the model needs 2 of 4.
    assert metrics.relative_false_alarm(scores, positive, 0.75, 0.0) == pytest.approx(2 / 3)


def test_equal_scores_are_interpolated():
    """With one score for everybody there are two thresholds, and a line between (0, 1) and (1, 0)."""
    curve = metrics.det_curve(np.zeros(10), np.arange(10) % 2)
    assert metrics.false_alarm_at(curve, 0.3) == pytest.approx(0.7)
    assert metrics.equal_error_rate(curve) == 0.5


def test_perfect_and_useless_scores():
    positive = np.array([0, 0, 1, 1])
    assert metrics.equal_error_rate(metrics.det_curve([1, 2, 3, 4], positive)) == 0
    assert metrics.equal_error_rate(metrics.det_curve([4, 3, 2, 1], positive)) == 1


def test_a_missing_class_is_not_a_number():
    curve = metrics.det_curve([0.1, 0.2], [1, 1])
    assert np.isnan(curve.false_alarm).all()
    assert not np.isnan(curve.false_rejection).any()
    assert np.isnan(metrics.equal_error_rate(curve))
    assert np.isnan(metrics.relative_false_alarm([0.1, 0.2], [0, 0], 0.5, 0.5))
    assert np.isnan(metrics.equal_error_rate(metrics.det_curve([], [])))


def test_what_is_wrong_is_named():
    with pytest.raises(DataError, match="scores has 1 entries that are NaN or infinite"):
        metrics.det_curve([np.nan, 1.0], [0, 1])
    with pytest.raises(DataError, match="positive must be 0 or 1"):
        metrics.det_curve([0.0, 1.0], [-1, 1])
    with pytest.raises(DataError, match=r"false_rejection = 1\.5"):
        metrics.false_alarm_at(metrics.det_curve([0.0, 1.0], [0, 1]), 1.5)
    with pytest.raises(DataError, match="base_false_alarm = 50"):
        metrics.relative_false_alarm([0.0, 1.0], [0, 1], 50, 0.1)
