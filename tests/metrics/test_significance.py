"""Wilcoxon against all signs gone through and scipy, Holm against published figures, intervals against formulas."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from personafl import metrics
from personafl.errors import DataError
from tests.metrics import thesis_tables as thesis

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


# --- Wilcoxon


def over_all_signs(differences):
    """Two-sided p of W⁺ by going through all 2ⁿ signs."""
    d = np.array([v for v in differences if v])
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[d > 0].sum()
    sums = np.array([np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=len(d))])
    return min(1.0, 2 * min((sums >= observed).mean(), (sums <= observed).mean()))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=8).filter(any))
def test_p_with_ties_and_zeros_is_exact_for_few_pairs(differences):
    found = metrics.wilcoxon(np.array(differences) / 10 + 0.3, np.full(len(differences), 0.3))
    assert found.p == pytest.approx(over_all_signs(differences))
    assert found.pairs + found.zeros == len(differences)
    assert found.zeros == differences.count(0)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_without_ties_it_is_scipys_exact_test(alternative):
    draw = np.random.default_rng(0)
    for pairs in (1, 5, 20, 50):
        d = draw.normal(0.2, 1, pairs)
        expected = stats.wilcoxon(d, alternative=alternative, method="exact").pvalue
        assert metrics.wilcoxon(d, np.zeros(pairs), alternative).p == pytest.approx(expected)


def test_the_textbook_example():
    """Heights of cross- and self-fertilized corn (Darwin 1876), as in scipy's documentation: p = .041, W⁺ = 96."""
    difference = [6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75]
    found = metrics.wilcoxon(difference, np.zeros(15))
    assert found.statistic == 96
    assert found.p == pytest.approx(0.041259765625)
    assert metrics.wilcoxon(difference, np.zeros(15), "greater").p == pytest.approx(0.0206298828125)
    assert metrics.wilcoxon(difference, np.zeros(15), "less").p > 0.97


def test_many_pairs_are_the_normal_approximation_corrected_for_ties():
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 21, (2, 400)) / 20
    found = metrics.wilcoxon(a, b)
    d = np.round((a - b) * 20)
    d = d[d != 0]
    ranks = stats.rankdata(np.abs(d))
    n, plus = len(d), ranks[d > 0].sum()
    _, counts = np.unique(np.abs(d), return_counts=True)
    variance = n * (n + 1) * (2 * n + 1) / 24 - (counts**3 - counts).sum() / 48
    z = (plus - n * (n + 1) / 4) / np.sqrt(variance)
    assert (found.pairs, found.statistic) == (n, plus)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)))


def test_rounding_makes_no_ranks():
    """.3 − .1, .4 − .2 and .9 − .7 differ in the last bit only."""
    found = metrics.wilcoxon([0.3, 0.4, 0.9, 0.1], [0.1, 0.2, 0.7, 0.3])
    assert len({0.3 - 0.1, 0.4 - 0.2, 0.9 - 0.7}) > 1
    assert found.statistic == 7.5  # four equal differences: 2.5 each
    assert metrics.wilcoxon([0.1 + 0.2], [0.3]).zeros == 1


def test_no_difference_is_p_1_and_no_pair_is_nothing():
    assert metrics.wilcoxon([0.5, 0.6, np.nan], [0.5, 0.6, 0.7]) == (1.0, 0.0, 0, 2, 1)
    assert metrics.wilcoxon([0.0], [0.0]).p == 1
    found = metrics.wilcoxon([np.nan], [0.7])
    assert np.isnan(found.p)
    assert (found.pairs, found.left_out) == (0, 1)


@pytest.mark.parametrize("pairs", range(1, 9))
def test_the_smallest_p_that_few_pairs_can_have(pairs):
    better = metrics.wilcoxon(np.arange(1, pairs + 1), np.zeros(pairs))
    assert better.p == pytest.approx(2.0 ** (1 - pairs))
    assert (better.p < 0.05) == (pairs >= 6)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_swapping_the_methods_keeps_p(pairs):
    a, b = np.array(pairs).T / 20
    one, other = metrics.wilcoxon(a, b), metrics.wilcoxon(b, a)
    assert one.p == pytest.approx(other.p)
    assert one.statistic + other.statistic == pytest.approx(one.pairs * (one.pairs + 1) / 2)
    assert metrics.wilcoxon(100 * a, 100 * b).p == pytest.approx(one.p)


def test_persfl_against_fedper_in_the_thesis():
    """All ten users of CIFAR-10, DS-1 are better off: the smallest p ten pairs can have."""
    persfl, fedper = thesis.CIFAR10[:10, 3], thesis.CIFAR10[:10, 6]
    assert metrics.wilcoxon(persfl, fedper).p == pytest.approx(2 / 1024)


# --- Holm


def test_holm_by_hand():
    # sorted .005 .011 .02 .04 .13; times 5 4 3 2 1: .025 .044 .06 .08 .13
    np.testing.assert_allclose(metrics.holm([0.011, 0.02, 0.04, 0.13, 0.005]), [0.044, 0.06, 0.08, 0.13, 0.025])
    # .01·4 = .04, .02·3 = .06, .022·2 = .044 is raised to .06, .09
    np.testing.assert_allclose(metrics.holm([0.01, 0.02, 0.022, 0.09]), [0.04, 0.06, 0.06, 0.09])
    np.testing.assert_allclose(metrics.holm([0.5, 0.6]), [1, 1])
    np.testing.assert_array_equal(metrics.holm([0.03, np.nan, 0.01]), [0.03, np.nan, 0.02])
    assert len(metrics.holm([])) == 0


@settings(deadline=None)
@given(PROBABILITIES)
def test_holm_is_between_raw_and_bonferroni_and_keeps_the_order(p):
    raw, adjusted = np.array(p), metrics.holm(p)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * len(raw)) + 1e-12).all()
    order = np.argsort(raw, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


@settings(deadline=None)
@given(PROBABILITIES, st.floats(0.001, 0.5))
def test_holm_rejects_as_the_sequential_procedure_does(p, alpha):
    rejected = 0
    for k, value in enumerate(sorted(p)):
        if value * (len(p) - k) > alpha:
            break
        rejected += 1
    assert (metrics.holm(p) <= alpha).sum() == rejected


def test_what_is_wrong_is_named():
    for call, says in [
        (lambda: metrics.holm([1.2]), "p must be between 0 and 1"),
        (lambda: metrics.wilcoxon([1.0], [1.0, 2.0]), "second has 2 entries"),
        (lambda: metrics.wilcoxon([1.0], [2.0], "bigger"), "no alternative 'bigger'"),
        (lambda: metrics.wilcoxon([np.inf], [2.0]), "must be finite"),
    ]:
        with pytest.raises(DataError, match=says):
            call()


# --- seeds


def test_mean_over_seeds_is_students():
    values = [0.81, 0.84, 0.80, 0.83]
    found = metrics.mean_over_seeds([*values, np.nan])
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.standard_error == pytest.approx(stats.sem(values))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.seeds == 4
    one = metrics.mean_over_seeds([0.5])
    assert (one.mean, one.seeds) == (0.5, 1)
    assert np.isnan([one.standard_error, one.low, one.high]).all()
    assert np.isnan(metrics.mean_over_seeds([]).mean)
