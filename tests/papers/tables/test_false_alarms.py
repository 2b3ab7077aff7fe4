"""Relative false alarms by device type and state, on scores whose answer is known."""

import numpy as np
import pytest

from personafl_papers.tables.false_alarms import operating_point, relative

LABELS = np.array([0, 0, 0, 0, 1, 1])


def places(normal, alarm):
    return {("B", "normal"): (np.array(normal), LABELS), ("B", "alarm"): (np.array(alarm), LABELS)}


BASELINE = places([1, 2, 3, 6, 5, 9], [1, 5.5, 6, 7, 4, 8])


def test_one_threshold_for_all_states_where_the_normal_state_has_as_many_misses_as_false_alarms():
    # Normal: at 6, 1 of 4 and 1 of 2; at 5, 1 of 4 and none of 2 is nearest. At 5 the alarm state misses 4, and its
    # false alarms at that share of misses are fewest just below 8.
    assert operating_point(BASELINE) == {("B", "normal"): (0.25, 0.0), ("B", "alarm"): (0.0, 0.5)}


def test_a_model_that_did_not_change_has_a_relative_false_alarm_of_one():
    rng = np.random.default_rng(0)
    labels = rng.random(400) < 0.2
    same = {("A", s): (rng.normal(size=400) + labels, labels.astype(int)) for s in ("normal", "playback")}
    assert list(relative(same, operating_point(same)).values()) == [1.0, 1.0]


def test_fewer_false_alarms_at_the_same_misses_are_below_one_and_nothing_can_be_said_without_a_baseline():
    better = places([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 9])
    found = relative(better, operating_point(BASELINE))
    assert found["B", "normal"] == 0.0
    assert np.isnan(found["B", "alarm"]), "the baseline has no false alarms there"


def test_any_increasing_function_of_the_scores_is_the_same_detector():
    stretched = {place: (np.exp(scores) * 7 - 3, labels) for place, (scores, labels) in BASELINE.items()}
    assert relative(stretched, operating_point(BASELINE))["B", "normal"] == pytest.approx(1.0)
