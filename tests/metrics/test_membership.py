"""Measures of an attack, against distributions whose answer is known."""

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from personafl.metrics.membership import auc, clopper_pearson, proven_epsilon, rate_at, told_right


def scores(shift, members=4000, others=4000, seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(shift, 1, members), draw.normal(0, 1, others)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_two_normal_distributions(shift):
    """AUC Φ(d/√2), TPR Φ(d − z) at the false alarms 1 − Φ(z), sorted rightly Φ(d/2): all within their intervals."""
    members, others = scores(shift)
    found = auc(members, others)
    assert found.low < norm.cdf(shift / 2**0.5) < found.high and found.high - found.low < 0.03
    for rate in (0.01, 0.001):
        expected = norm.cdf(shift - norm.isf(rate))
        assert rate_at(members, others, rate).value == pytest.approx(expected, abs=0.03)
    assert told_right(members, others) == pytest.approx(norm.cdf(shift / 2), abs=0.015)


def test_auc_is_that_of_scikit_learn_with_ties():
    draw = np.random.default_rng(0)
    members, others = draw.integers(0, 6, 50).astype(float), draw.integers(0, 5, 70).astype(float)
    truth = np.repeat([1, 0], [50, 70])
    assert auc(members, others).value == pytest.approx(roc_auc_score(truth, np.concatenate([members, others])))


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 300 draws of 60 and 40 scores, 95 % intervals of the AUC; a binomial test of the count."""
    truth = norm.cdf(1 / 2**0.5)
    held = sum(found.low <= truth <= found.high for found in (auc(*scores(1.0, 60, 40, seed)) for seed in range(300)))
    assert binom.cdf(held, 300, 0.95) > 0.001 and held / 300 > 0.9


def test_the_interval_of_a_share_is_exact():
    found = clopper_pearson(7, 20)
    assert binom.sf(6, 20, found.low) == pytest.approx(0.025) and binom.cdf(7, 20, found.high) == pytest.approx(0.025)
    assert clopper_pearson(0, 5).low == 0 and clopper_pearson(5, 5).high == 1


def test_small_shares_need_many_others():
    members, others = scores(1.0, 500, 99)
    assert rate_at(members, others, 0.01) is None and rate_at(members, others, 0.02) is not None


def test_a_perfect_attack_has_an_interval():
    found = auc(np.arange(50.0) + 100, np.arange(30.0))
    assert (found.value, found.high) == (1.0, 1.0) and 0.8 < found.low < 1


def test_who_knows_nothing_gets_half():
    found = [told_right(*scores(0.0, 60, 60, seed)) for seed in range(60)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.02)


def test_proven_epsilon_is_below_the_true_one_and_near_it():
    """Randomized response with e^ε : 1, which is ε-private and no better; and Laplace noise."""
    draw, n = np.random.default_rng(1), 20_000
    for true in (0.5, 1.5, 3.0):
        keep = np.exp(true) / (1 + np.exp(true))
        members = (draw.random(n) < keep).astype(float)
        others = (draw.random(n) >= keep).astype(float)
        assert 0.75 * true < proven_epsilon(members, others) <= true
    never = [proven_epsilon(*scores(0.0, 2000, 2000, seed)) for seed in range(40)]
    assert np.mean(np.array(never) > 0) <= 0.15, "nothing is proven of nothing"


def test_delta_is_taken_off():
    members, others = scores(3.0)
    assert proven_epsilon(members, others, 0.1) < proven_epsilon(members, others)
    assert proven_epsilon(np.array([1.0]), np.array([0.0])) == 0
