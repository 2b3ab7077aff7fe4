"""Who is better off, and how evenly: by hand, and what must hold for any improvements."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from personafl import metrics
from personafl.errors import DataError

VALUES = st.lists(st.floats(0, 100) | st.just(0.0), min_size=1, max_size=30)
SIGNED = st.lists(st.floats(-100, 100) | st.just(0.0) | st.just(math.nan), max_size=30)


def test_improvement_by_hand():
    personal = [0.9, 0.6, 0.5, 0.7, np.nan, 0.8]
    qoi = metrics.quantum_of_improvement(personal, [0.8, 0.4, 0.5, 0.9, 0.5, np.nan], [0.5, 0.3, 0.2, 0.4, 0.5, 0.1])
    np.testing.assert_allclose(qoi, [0.1, 0.2, 0.0, -0.2, np.nan, np.nan], atol=1e-15)
    found = metrics.improvement_of(qoi)
    assert (found.clients, found.left_out) == (4, 2)
    assert (found.pui, found.pud) == (50, 25)  # who has 0 counts, and is in neither
    assert (found.mpi, found.api) == (pytest.approx(0.15), pytest.approx(0.15))
    assert (found.mpd, found.apd) == (pytest.approx(-0.2), pytest.approx(-0.2))


def test_nobody():
    found = metrics.improvement_of([np.nan, np.nan])
    assert (found.clients, found.left_out) == (0, 2)
    assert np.isnan([found.pui, found.pud, found.mpi, found.api, found.mpd, found.apd]).all()
    fair = metrics.fairness_of([])
    assert np.isnan(fair.everybody[1:] + fair.improved[1:] + fair.worsened[1:]).all()


@settings(deadline=None)
@given(SIGNED)
def test_improvement_bounds(qoi):
    found = metrics.improvement_of(qoi)
    assert found.clients + found.left_out == len(qoi)
    if found.clients:
        assert 0 <= found.pui + found.pud <= 100 + 1e-9
    for middle, mean, sign in ((found.mpi, found.api, 1), (found.mpd, found.apd, -1)):
        part = [v for v in qoi if v * sign > 0]
        assert math.isnan(mean) == math.isnan(middle) == (not part)
        if part:
            assert min(part) <= middle <= max(part)
            assert min(part) - 1e-9 <= mean <= max(part) + 1e-9


def test_fairness_by_hand():
    values = [1.0, 2.0, 3.0]
    assert metrics.average_variance(values) == pytest.approx(2 / 3)
    assert metrics.cosine_similarity(values) == pytest.approx(6 / math.sqrt(3 * 14))
    assert metrics.jain_index(values) == pytest.approx(36 / (3 * 14))
    assert metrics.entropy(values) == pytest.approx(-sum(p * math.log(p) for p in (1 / 6, 2 / 6, 3 / 6)))


@settings(deadline=None)
@given(VALUES)
def test_entropy_is_scipys_and_cs_is_the_cosine_with_ones(values):
    assume(max(values) > 1e-6)
    assert metrics.entropy(values) == pytest.approx(stats.entropy(values), abs=1e-9)
    cosine = np.dot(values, np.ones(len(values))) / np.linalg.norm(values) / math.sqrt(len(values))
    assert metrics.cosine_similarity(values) == pytest.approx(cosine)


@settings(deadline=None)
@given(VALUES)
def test_fairness_bounds(values):
    assume(any(values))
    K = len(values)
    cs, ji, entropy = metrics.cosine_similarity(values), metrics.jain_index(values), metrics.entropy(values)
    assert ji == pytest.approx(cs**2)
    assert 1 / K - 1e-9 <= ji <= 1 + 1e-9
    assert -1e-9 <= entropy <= math.log(K) + 1e-9
    assert metrics.average_variance(values) >= 0


@settings(deadline=None)
@given(VALUES, st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_scale_and_order_do_not_matter(values, factor, random):
    assume(max(values) > 1e-6)
    scaled = [factor * v for v in random.sample(values, len(values))]
    for metric in (metrics.cosine_similarity, metrics.entropy, metrics.jain_index):
        assert metric(scaled) == pytest.approx(metric(values), rel=1e-6, abs=1e-6)
    expected = factor**2 * metrics.average_variance(values)
    assert metrics.average_variance(scaled) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_very_small_and_very_large_values():
    for scale in (1e-300, 1e300):
        assert metrics.jain_index([scale, 3 * scale]) == pytest.approx(16 / 20)
    assert metrics.entropy([1.0, 1.0, 5e-324]) == pytest.approx(math.log(2))


def test_equal_values_are_perfectly_fair_and_one_who_has_all_is_not():
    equal, one = np.full(8, 2.5), np.eye(8)[0]
    found, worst = metrics.fairness_of(equal).everybody, metrics.fairness_of(one).everybody
    assert found == pytest.approx((8, 0, 1, math.log(8), 1))
    assert worst == pytest.approx((8, 7 / 64, 1 / math.sqrt(8), 0, 1 / 8))


@settings(deadline=None)
@given(SIGNED)
def test_improved_and_worsened_apart(qoi):
    found = metrics.fairness_of(qoi)
    values = np.array([v for v in qoi if not math.isnan(v)])
    assert found.left_out == len(qoi) - len(values)
    assert found.everybody.clients == len(values)
    mirrored = metrics.fairness_of(-np.array(qoi))
    assert found.improved == pytest.approx(mirrored.worsened, nan_ok=True)
    assert found.everybody.av == pytest.approx(mirrored.everybody.av, nan_ok=True)
    if (values < 0).any():
        assert np.isnan(found.everybody[2:]).all()
    elif (values > 0).any():
        assert found.everybody.ji == pytest.approx(metrics.jain_index(values))
    for part, those in ((found.improved, values[values > 0]), (found.worsened, -values[values < 0])):
        assert part.clients == len(those)
        assert np.isnan(part.ji) if not len(those) else part.ji == pytest.approx(metrics.jain_index(those))


def test_nobody_has_anything():
    """0/0: nothing to share is neither fair nor unfair."""
    assert np.isnan(metrics.fairness_of([0.0, 0.0]).everybody[2:]).all()
    assert metrics.fairness_of([0.0, 0.0]).everybody.av == 0


def test_what_is_wrong_is_named():
    with pytest.raises(DataError, match="fairness_of divides improved and worsened"):
        metrics.jain_index([1.0, -1.0])
    with pytest.raises(DataError, match="finite"):
        metrics.entropy([1.0, np.inf])
    with pytest.raises(DataError, match="something to compare with"):
        metrics.quantum_of_improvement([0.5])
    with pytest.raises(DataError, match="baseline 2 has 2 entries and personal has 1"):
        metrics.quantum_of_improvement([0.5], [0.4], [0.1, 0.2])
