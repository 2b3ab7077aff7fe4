"""Calibration error against the definition written out, at the edges of bins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl import metrics
from personafl.errors import DataError
from personafl.metrics import inputs

# Confidences on a coarse grid meet the edges of bins and each other.
SAMPLES = st.lists(st.tuples(st.integers(0, 30).map(lambda k: k / 30) | st.floats(0, 1), st.booleans()), max_size=25)


def by_definition(samples, bins, edges):
    """Σ_b (n_b/N) |accuracy_b − confidence_b| over (edge, next edge], 0 in the first."""
    if not samples:
        return np.nan
    total = 0.0
    for b in range(bins):
        here = [(c, h) for c, h in samples if (edges[b] < c or b == 0) and c <= edges[b + 1]]
        if here:
            c, h = np.mean(here, axis=0)
            total += len(here) / len(samples) * abs(h - c)
    return total


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 20))
def test_equal_width_is_the_definition(samples, bins):
    found = metrics.expected_calibration_error([c for c, _ in samples], [h for _, h in samples], bins)
    assert found == pytest.approx(by_definition(samples, bins, np.arange(bins + 1) / bins), nan_ok=True)


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 8))
def test_equal_mass_is_the_definition(samples, bins):
    """Bin b ends with the sample of rank ⌈(b+1)N/B⌉; whoever is as confident belongs to it too."""
    rising = sorted(c for c, _ in samples)
    edges = [0.0, *(rising[-((b + 1) * len(rising) // -bins) - 1] for b in range(bins))] if samples else []
    found = metrics.expected_calibration_error([c for c, _ in samples], [h for _, h in samples], bins, "mass")
    assert found == pytest.approx(by_definition(samples, bins, edges), nan_ok=True)


@pytest.mark.parametrize("binning", ["width", "mass"])
@settings(deadline=None)
@given(clients=st.lists(SAMPLES, min_size=1, max_size=5))
def test_each_client_is_as_if_alone(binning, clients):
    confidence, correct = np.array([pair for client in clients for pair in client], float).reshape(-1, 2).T
    found = metrics.client_calibration_errors(confidence, correct, list(map(len, clients)), 4, binning)
    alone = [metrics.expected_calibration_error([c for c, _ in m], [h for _, h in m], 4, binning) for m in clients]
    assert list(found) == pytest.approx(alone, nan_ok=True)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_blocks_of_clients_change_nothing(binning, monkeypatch):
    draw = np.random.default_rng(0)
    sizes = draw.integers(0, 20, 100)
    confidence = np.round(draw.random(sizes.sum()), 1)
    correct = draw.random(sizes.sum()) < confidence
    whole = metrics.client_calibration_errors(confidence, correct, sizes, 5, binning)
    monkeypatch.setattr(inputs, "CELLS_AT_ONCE", 30)
    np.testing.assert_array_equal(whole, metrics.client_calibration_errors(confidence, correct, sizes, 5, binning))


@pytest.mark.parametrize("bins", [3, 7, 10, 15, 49])
def test_an_edge_belongs_to_the_lower_bin(bins):
    """b/B and the next larger number are in different bins, so that their errors do not cancel."""
    for b in range(1, bins):
        edge = b / bins
        together = metrics.expected_calibration_error([edge, edge], [1, 0], bins)
        apart = metrics.expected_calibration_error([edge, np.nextafter(edge, 1)], [1, 0], bins)
        assert together == pytest.approx(abs(1 - 2 * edge) / 2)
        assert apart == pytest.approx(0.5)
    assert metrics.expected_calibration_error([0.0, 1.0], [0, 1], bins) == 0


def test_a_calibrated_model_has_almost_none_and_an_overconfident_one_has_its_gap():
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.5, 1, 200_000)
    assert metrics.expected_calibration_error(confidence, draw.random(200_000) < confidence) < 0.005
    gap = metrics.expected_calibration_error(confidence, draw.random(200_000) < confidence - 0.2)
    assert gap == pytest.approx(0.2, abs=0.005)
    assert metrics.expected_calibration_error(confidence, np.ones(200_000), binning="mass") == pytest.approx(
        0.25, abs=0.01
    )


@settings(deadline=None)
@given(SAMPLES.filter(len), st.integers(1, 20))
def test_bounds(samples, bins):
    confidence, correct = np.array(samples, float).T
    for binning in ("width", "mass"):
        found = metrics.expected_calibration_error(confidence, correct, bins, binning)
        assert abs(np.mean(correct) - np.mean(confidence)) - 1e-12 <= found <= 1 + 1e-12


def test_what_is_wrong_is_named():
    for call, says in [
        (lambda: metrics.expected_calibration_error([1.5], [1]), "confidence must be between 0 and 1"),
        (lambda: metrics.expected_calibration_error([np.nan], [1]), "confidence must be between 0 and 1"),
        (lambda: metrics.expected_calibration_error([0.5], [2]), "correct must be 0 or 1"),
        (lambda: metrics.expected_calibration_error([0.5], [1], bins=0), "bins = 0"),
        (lambda: metrics.expected_calibration_error([0.5], [1], binning="size"), "no binning 'size'"),
    ]:
        with pytest.raises(DataError, match=says):
            call()
