"""Every metric for a million clients: they must end, and be right, on one core and in bounded memory."""

import numpy as np
import pytest

from personafl import metrics

pytestmark = pytest.mark.slow
CLIENTS = 1_000_000


@pytest.fixture(scope="module")
def federation():
    draw = np.random.default_rng(0)
    n = draw.integers(0, 3, CLIENTS)
    skill = draw.beta(8, 2, CLIENTS)
    return {
        "draw": draw,
        "n_test": n,
        "n_train": draw.integers(1, 200, CLIENTS),
        "correct": draw.binomial(n, skill),
        "other": draw.binomial(n, skill * 0.95),
        "client": np.repeat(np.arange(CLIENTS), n),
    }


def test_over_clients(federation):
    f = federation
    found = metrics.performance_of(f["correct"], f["n_test"], f["n_train"], np.ones(CLIENTS))
    assert found.clients + found.left_out == CLIENTS
    assert found.weighted_accuracy == pytest.approx(0.8, abs=0.002)
    assert found.top_10 == pytest.approx(0.8, abs=0.005)
    mine, theirs = (metrics.accuracies(f[name], f["n_test"]) for name in ("correct", "other"))
    qoi = metrics.quantum_of_improvement(mine, theirs)
    assert metrics.improvement_of(qoi).pui > metrics.improvement_of(qoi).pud
    assert metrics.fairness_of(qoi).improved.clients > 0
    assert metrics.wilcoxon(mine, theirs).p < 1e-10
    assert metrics.best_mean_accuracy([mine, theirs]).best_evaluation == 0
    assert len(metrics.holm(f["draw"].random(CLIENTS))) == CLIENTS


def test_over_samples(federation):
    draw, n = federation["draw"], federation["n_test"]
    samples = int(n.sum())
    labels = draw.integers(0, 10, samples)
    predictions = np.where(draw.random(samples) < 0.8, labels, 0)
    scores = metrics.client_macro_scores(labels, predictions, n)
    assert np.isnan(scores.f1).sum() == (n == 0).sum()
    assert metrics.macro_scores(labels, predictions).recall == pytest.approx(0.8, abs=0.03)
    confidence = draw.random(samples)
    right = draw.random(samples) < confidence
    for binning in ("width", "mass"):
        assert metrics.expected_calibration_error(confidence, right, binning=binning) < 0.005
        assert len(metrics.client_calibration_errors(confidence, right, n, binning=binning)) == CLIENTS
    curve = metrics.det_curve(confidence, right)
    assert metrics.equal_error_rate(curve) == pytest.approx(1 / 4, abs=0.005)  # FA(t) = (1−t)², FR(t) = t²
    assert metrics.relative_false_alarm(confidence, right, 0.25, 0.25) == pytest.approx(1, abs=0.01)
