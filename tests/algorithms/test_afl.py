"""AFL against its equations in float64, against fedavg, and at the minimax solution that scipy finds."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from personafl.algorithms import AFL, FedAvg
from personafl.algorithms.afl import onto_simplex
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, losses, personal, quadratics, server, train

LR, STEPS, START = 0.1, 3, np.array([1.0, -2.0, 3.0])


def nearest(v: np.ndarray) -> np.ndarray:
    """The projection onto the simplex by bisection for τ in Σ max(v − τ, 0) = 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(v - tau, 0).sum() > 1 else (low, tau)
    return np.maximum(v - low, 0)


def descend(problem: Quadratics, m: int, w: np.ndarray, steps: int = STEPS) -> np.ndarray:
    for _ in range(steps):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def by_hand(problem, gamma, cohorts):
    M, w = len(problem.n), START.copy()
    lam, told = np.full(M, 1 / M), np.full(M, np.nan)
    for cohort in cohorts:
        told[cohort] = losses(problem, w)[cohort]
        share = lam[cohort] * M / len(cohort)
        share = share / max(share.sum(), 1)
        w = w + sum(p * (descend(problem, k, w) - w) for p, k in zip(share, cohort, strict=True))
        lam = nearest(lam + gamma * np.where(np.isnan(told), np.nanmean(told), told))
    return w, lam


@pytest.mark.parametrize("activity", [1.0, 0.5])
@pytest.mark.parametrize("gamma", [0.004, 0.05])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, gamma, activity):
    problem = quadratics(clients=6)
    runner = train(problem, AFL(gamma), tmp_path, 5, LR, STEPS, START, activity)
    w, lam = by_hand(problem, gamma, [runner.schedule.cohort(0, r, 6) for r in range(1, 6)])
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server(runner, "lam"), lam, rtol=1e-4, atol=1e-5)
    assert lam.max() > 0.25 and abs(lam.sum() - 1) < 1e-9


@pytest.mark.parametrize("activity", [1.0, 0.5])
def test_without_steps_of_lambda_it_is_fedavg_with_equal_weights(tmp_path, activity):
    problem = quadratics()
    average = train(problem, FedAvg("equal"), tmp_path / "a", 4, LR, STEPS, START, activity)
    ours = train(problem, AFL(0.0), tmp_path / "b", 4, LR, STEPS, START, activity)
    np.testing.assert_allclose(server(ours), server(average), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(personal(ours), personal(average), rtol=1e-5, atol=1e-6)


def test_it_ends_at_the_minimax_solution(tmp_path):
    """min t with F_k(w) ≤ t for all k; λ are its multipliers, 0 for the clients whose loss is below the largest."""
    problem = quadratics()
    bounds = {"type": "ineq", "fun": lambda v: v[3] - losses(problem, v[:3])}
    exact = minimize(lambda v: v[3], np.array([0, 0, 0, 10.0]), constraints=bounds, tol=1e-12, method="SLSQP")
    assert exact.success
    runner = train(problem, AFL(0.005), tmp_path, 50, 0.3, 1, START)
    found = losses(problem, server(runner))
    np.testing.assert_allclose(server(runner), exact.x[:3], rtol=5e-3, atol=5e-3)
    assert found.max() == pytest.approx(exact.x[3], rel=5e-3)
    lam = server(runner, "lam")
    assert (lam[found < 0.95 * found.max()] < 1e-3).all() and lam @ found == pytest.approx(exact.x[3], rel=5e-3)
    gradient = np.einsum("m,mij,mj->i", lam, problem.A, server(runner) - problem.z)
    assert np.abs(gradient).max() < 0.05


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_the_projection_is_that_found_by_bisection(size):
    draw = np.random.default_rng(size)
    for scale in (0.01, 1.0, 30.0):
        v = draw.standard_normal(size) * scale
        found = onto_simplex(torch.tensor(v)).numpy()
        np.testing.assert_allclose(found, nearest(v), atol=1e-9)
        assert found.min() >= 0 and found.sum() == pytest.approx(1)
    inside = draw.dirichlet(np.ones(size))
    np.testing.assert_allclose(onto_simplex(torch.tensor(inside)).numpy(), inside, atol=1e-12)


def test_who_is_absent_moves_nothing_however_large_its_weight(tmp_path):
    """λ on one client alone: rounds without it leave w, and a round with it moves w to its model, not beyond."""
    problem = quadratics()
    runner = train(problem, AFL(0.0), tmp_path, 0, LR, STEPS, START, activity=0.5)
    runner.server["lam"] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    for r in range(1, 5):
        before = server(runner)
        runner.step()
        active = 1 in runner.schedule.cohort(0, r, 4)
        expected = descend(problem, 1, before) if active else before
        np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-5)
    assert 0 < runner.active[1] < 4


def test_a_client_that_was_never_active_has_the_global_model_and_lambda_is_reported(tmp_path):
    runner = train(quadratics(clients=6), AFL(), tmp_path, 2, LR, STEPS, START, activity=0.17)
    idle = runner.active == 0
    assert idle.sum() >= 4
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(server(runner), (idle.sum(), 1)))
    assert runner.algorithm.report_server(runner.server)["lam"].shape == (6,)


def test_a_negative_rate_is_refused():
    with pytest.raises(ConfigError, match=r"lambda_lr = -1.0: must be at least 0"):
        AFL(lambda_lr=-1.0)
