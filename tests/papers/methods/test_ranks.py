"""Friedman's test and what follows it, against the worked example of Demšar (JMLR 7, 2006), Table 6 and its text."""

import numpy as np
import pytest

from personafl.errors import DataError
from personafl_papers.methods import ranks
from personafl_papers.methods.ranks import against, critical_difference, groups, ranked

# Ranks of C4.5, with m, with cf, with both, on 14 data sets.
TABLE_6 = np.array([
    [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
    [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2],
])  # fmt: skip
TIES = 1 - (6 + 6 + 60 + 6) / (14 * 4 * 15)
"""By what Friedman's statistic is divided because of equal results, which Demšar's is not: Σ (t³ − t) / N(k³ − k)."""


def test_mean_ranks_and_friedmans_statistic_are_the_published_ones():
    found = ranked(-TABLE_6)
    assert np.array_equal(found.ranks, TABLE_6)
    assert found.means.round(3).tolist() == [3.143, 2.0, 2.893, 1.964]
    assert found.chi2 * TIES == pytest.approx(9.28, abs=0.005)
    assert found.p < 0.05 and found.p_f < found.p


@pytest.mark.parametrize(
    ("methods", "quantile"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031), (9, 3.102), (10, 3.164)],
)
def test_the_critical_values_are_those_of_demsars_table_5(methods, quantile):
    error = np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) / error == pytest.approx(quantile, abs=0.0015)


def test_the_critical_differences_of_the_example():
    assert critical_difference(4, 14, 0.05) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)


def test_comparisons_with_a_control_are_the_published_p_after_holm():
    """Published: p = .016, .019 and .607 for C4.5 against both, m and cf; Holm: times 3, 2 and 1, never falling."""
    found = against(0, ranked(-TABLE_6).means, 14)
    assert np.isnan(found[0])
    assert found[1:].round(2).tolist() == [0.05, 0.61, 0.05]
    assert found[3] == pytest.approx(3 * 0.0157, abs=0.0005) and found[1] == found[3]


def test_equal_results_share_their_mean_rank_and_who_failed_is_last():
    found = ranked([[0.9, 0.9, -np.inf], [0.8, 0.7, 0.9]])
    assert found.ranks.tolist() == [[1.5, 1.5, 3.0], [2.0, 3.0, 1.0]]


def test_federations_that_agree_leave_no_doubt():
    found = ranked([[3, 2, 1]] * 10)
    assert found.chi2 == pytest.approx(20) and found.f == np.inf and found.p_f == 0


def test_methods_that_are_alike_are_seldom_told_apart(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(ranks, "critical_difference", lambda *sizes: 0.0)  # an integral that takes its time
    wrong = [ranked(rng.normal(size=(10, 12))).p_f <= 0.05 for _ in range(300)]
    assert 0.02 < np.mean(wrong) < 0.09


@pytest.mark.parametrize("scores", [[[1, 2, 3]], [[1, 2], [2, 1]], [[1, 2, np.nan], [1, 2, 3]]])
def test_what_cannot_be_ranked_is_refused(scores):
    with pytest.raises(DataError):
        ranked(scores)


def test_bars_join_what_is_not_told_apart_and_only_the_longest_are_drawn():
    assert groups([1, 2, 3, 10], 2.5) == [(1, 3)]
    assert groups([1, 2, 3, 10], 2.0) == [(1, 2), (2, 3)]
    assert groups([1, 5, 9], 1) == []
