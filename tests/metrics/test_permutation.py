"""Swapping two methods' results: against all ways to do so, and against the level that is promised."""

import itertools

import numpy as np
import pytest
from scipy import stats

from personafl import metrics
from personafl.errors import DataError
from personafl.metrics import permutation


def by_hand(difference):
    flipped = [np.dot(signs, difference) for signs in itertools.product((1, -1), repeat=len(difference))]
    return np.mean(np.array(flipped) >= np.sum(difference) - 1e-9)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_few_clients_are_counted_in_all_ways(count):
    draw = np.random.default_rng(count)
    for _ in range(5):
        difference = draw.integers(-5, 6, count).astype(float)
        difference[0] = difference[0] or 1.0
        assert metrics.sign_flip(difference) == pytest.approx(by_hand(difference))


def test_large_clients_count_as_much_as_they_weigh():
    """96 clients prefer the second method by little, four the first by much: that is not the first being better."""
    difference = np.array([-1.0] * 96 + [50.0] * 4)
    assert metrics.sign_flip(difference) > 0.05
    assert metrics.sign_flip(np.sign(difference)) > 0.999  # counted by heads it is the other way round


def test_many_clients_are_drawn_and_agree_with_all_ways(monkeypatch):
    difference = np.random.default_rng(0).normal(0.5, 1, 13)
    exact = metrics.sign_flip(difference)
    monkeypatch.setattr(permutation, "LARGEST_EXACT", 5)
    assert metrics.sign_flip(difference) == pytest.approx(exact, rel=0.1)
    assert metrics.sign_flip(difference) == metrics.sign_flip(difference)


def test_it_agrees_with_students_test_where_that_holds():
    difference = np.random.default_rng(1).normal(0.2, 1, 3000)  # in groups
    expected = stats.ttest_1samp(difference[:200], 0, alternative="greater").pvalue
    assert metrics.sign_flip(difference[:200]) == pytest.approx(expected, rel=0.2)
    assert metrics.sign_flip(difference) == 1 / (1 + permutation.DRAWS)
    assert metrics.sign_flip(-difference) > 0.999


def test_groups_of_many_clients_keep_the_level(monkeypatch):
    """With any number of draws; with fewer it is found out sooner."""
    monkeypatch.setattr(permutation, "DRAWS", 1_999)
    draw = np.random.default_rng(2)
    sizes = draw.pareto(1.5, 4000)
    found = [metrics.sign_flip(sizes * draw.choice((-1.0, 1.0), 4000)) for _ in range(40)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_edges():
    assert np.isnan(metrics.sign_flip([np.nan, np.nan])) and np.isnan(metrics.sign_flip([]))
    assert metrics.sign_flip([0.0, 0.0, np.nan]) == 1.0
    with pytest.raises(DataError, match="infinite"):
        metrics.sign_flip([1.0, np.inf])
    assert np.isnan(metrics.swap_test(3, lambda swapped: np.full(len(swapped), np.nan)))
