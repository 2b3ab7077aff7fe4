"""q-FedAvg against the paper's equations in float64, against fedavg, and at the optimum of its objective."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from personafl.algorithms import QFFL, FedAvg, Uploads
from personafl.errors import ConfigError
from tests.oracles.quadratic import losses, personal, quadratics, server, train

LR, STEPS, START = 0.1, 3, np.array([1.0, -2.0, 3.0])


def descend(problem, m, w, steps=STEPS):
    for _ in range(steps):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def by_hand(problem, q, L, cohorts, weights):
    w = START.copy()
    for cohort in cohorts:
        p = problem.n if weights == "samples" else np.ones(len(problem.n))
        F, up, down = losses(problem, w), 0, 0
        for k in cohort:
            u = L * (w - descend(problem, k, w))
            up = up + p[k] * F[k] ** q * u
            down = down + p[k] * (q * F[k] ** (q - 1) * (u @ u) + L * F[k] ** q)
        w = w - up / down
    return w


@pytest.mark.parametrize(("q", "lipschitz"), [(1.0, None), (2.5, 30.0), (0.3, None)])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, weights, q, lipschitz):
    problem = quadratics(clients=6)
    runner = train(problem, QFFL(weights, q, lipschitz), tmp_path, 4, LR, STEPS, START, activity=0.5)
    cohorts = [runner.schedule.cohort(0, r, 6) for r in range(1, 5)]
    expected = by_hand(problem, q, lipschitz or 1 / LR, cohorts, weights)
    np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("local", [{}, {"optimizer": "adam"}, {"momentum": 0.5}])
def test_with_q_0_it_is_fedavg(tmp_path, weights, local):
    problem = quadratics()
    average = train(problem, FedAvg(weights), tmp_path / "a", 3, LR, STEPS, START, **local)
    ours = train(problem, QFFL(weights, q=0.0), tmp_path / "b", 3, LR, STEPS, START, **local)
    np.testing.assert_allclose(server(ours), server(average), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(personal(ours), personal(average), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q", [1.0, 3.0])
def test_with_one_local_step_it_ends_where_its_objective_is_least(tmp_path, q):
    """And there the losses of clients are more alike than at the optimum of the mean loss."""
    problem = quadratics()
    least = {
        power: minimize(lambda w, power=power: (losses(problem, w) ** (power + 1)).sum(), np.zeros(3), tol=1e-12).x
        for power in (0, q)
    }
    runner = train(problem, QFFL("equal", q, lipschitz=3.0), tmp_path, 60, LR, 1, START)
    np.testing.assert_allclose(server(runner), least[q], rtol=5e-3, atol=5e-3)
    assert np.std(losses(problem, server(runner))) < 0.9 * np.std(losses(problem, least[0]))


def test_losses_whose_powers_are_0_in_float32_leave_the_model_where_it_is():
    """0/0 is no step."""
    algorithm, theta = QFFL(q=8.0), torch.tensor([1.0, 2.0])
    nothing = {"delta": torch.zeros(4, 2), "h": torch.zeros(4)}
    uploads = Uploads(torch.arange(4), torch.ones(4), nothing, algorithm.uplink)
    assert algorithm.aggregate({"theta": theta}, uploads)["theta"].equal(theta)


def test_the_personalized_model_is_what_the_client_trained_last_or_w(tmp_path):
    problem = quadratics(clients=6)
    before = server(train(problem, QFFL(), tmp_path / "a", 2, LR, STEPS, START, activity=0.34))
    runner = train(problem, QFFL(), tmp_path / "b", 3, LR, STEPS, START, activity=0.34)
    models = personal(runner)
    for k in runner.schedule.cohort(0, 3, 6):
        np.testing.assert_allclose(models[k], descend(problem, k, before), rtol=1e-4, atol=1e-5)
    for k in np.flatnonzero(runner.active == 0):
        np.testing.assert_array_equal(models[k], server(runner))


def test_bad_settings_are_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match=r"q = -1.0: must be at least 0"):
        QFFL(q=-1.0)
    with pytest.raises(ConfigError, match=r"lipschitz = 0.0: must be above 0, or left out for 1/local.lr"):
        QFFL(lipschitz=0.0)
    with pytest.raises(ConfigError, match=r'local.optimizer = .adam.: must be "sgd" for qffl: .* or give algorithm'):
        train(quadratics(), QFFL(), tmp_path, 1, optimizer="adam")
    train(quadratics(), QFFL(lipschitz=10.0), tmp_path, 1, optimizer="adam")
