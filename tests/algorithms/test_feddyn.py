"""FedDyn against the paper's equations in float64, and at rest."""

import numpy as np
import pytest

from personafl.algorithms import FedDyn
from personafl.errors import ConfigError
from personafl.training.privacy import Privacy
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, states, train

LR, STEPS, ALPHA, START = 0.1, 5, 0.4, np.array([1.0, -2.0, 3.0])


def optimum(problem: Quadratics) -> np.ndarray:
    """Where the unweighted mean of the clients' losses is least: Σ A (w − z) = 0."""
    return np.linalg.solve(problem.A.sum(0), np.einsum("mij,mj->i", problem.A, problem.z))


def by_hand(problem, cohorts, steps):
    """w, h, all g_i and all θ_i (nan where never trained), as the paper prints it."""
    M, d = problem.z.shape
    w, h, g, thetas = START.copy(), np.zeros(d), np.zeros((M, d)), np.full((M, d), np.nan)
    for cohort in cohorts:
        for i in cohort:
            theta = w.copy()
            for _ in range(steps):
                theta = theta - LR * (problem.A[i] @ (theta - problem.z[i]) - g[i] + ALPHA * (theta - w))
            g[i], thetas[i] = g[i] - ALPHA * (theta - w), theta
        h = h - ALPHA / M * (thetas[cohort] - w).sum(0)
        w = thetas[cohort].mean(0) - h / ALPHA
    return w, h, g, thetas


@pytest.mark.parametrize("activity", [1.0, 0.5])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, engine, activity):
    problem = quadratics(clients=6)
    runner = train(problem, FedDyn(ALPHA), tmp_path, 4, LR, STEPS, START, activity, engine)
    w, h, g, thetas = by_hand(problem, [runner.schedule.cohort(0, r, 6) for r in range(1, 5)], STEPS)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server(runner, "h"), h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states(runner)["g"], g, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), np.where(np.isnan(thetas), w, thetas), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("activity", "rounds"), [(1.0, 25), (0.5, 50)])
def test_it_comes_to_rest_at_the_optimum_of_the_average_loss(tmp_path, activity, rounds):
    """Though clients take several steps and their optima are far apart; then all θ_i agree and g_i = ∇F_i(w)."""
    problem = quadratics()
    exact = optimum(problem)
    runner = train(problem, FedDyn(2.0), tmp_path, rounds, LR, STEPS, START, activity)
    np.testing.assert_allclose(server(runner), exact, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(personal(runner), np.tile(exact, (4, 1)), rtol=2e-3, atol=2e-3)
    gradients = np.einsum("mij,mj->mi", problem.A, exact - problem.z)
    np.testing.assert_allclose(states(runner)["g"], gradients, rtol=1e-2, atol=1e-2)
    assert np.abs(gradients).max() > 1 and np.abs(server(runner, "h")).max() < 1e-3


def test_a_solved_local_problem_leaves_the_gradient_in_g(tmp_path):
    """(A + α) θ = A z + g + α w, and g⁺ = A (θ − z)."""
    problem = quadratics()
    before = train(problem, FedDyn(2.0), tmp_path / "a", 1, LR, 100, START)
    runner = train(problem, FedDyn(2.0), tmp_path / "b", 2, LR, 100, START)
    w, g = server(before), states(before)["g"]
    for m in range(4):
        A, z = problem.A[m], problem.z[m]
        theta = np.linalg.solve(A + 2 * np.eye(3), A @ z + g[m] + 2 * w)
        np.testing.assert_allclose(personal(runner)[m], theta, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(states(runner)["g"][m], A @ (theta - z), rtol=1e-3, atol=1e-3)


def test_h_is_the_mean_of_all_g_whoever_was_active(tmp_path):
    runner = train(quadratics(clients=8), FedDyn(ALPHA), tmp_path, 3, LR, STEPS, START, activity=0.25)
    assert runner.active.min() == 0
    np.testing.assert_allclose(server(runner, "h"), states(runner)["g"].mean(0), rtol=1e-4, atol=1e-6)


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=8), FedDyn(ALPHA), tmp_path, 2, LR, STEPS, START, activity=0.25)
    idle = runner.active == 0
    assert idle.sum() >= 4
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(server(runner), (idle.sum(), 1)))


def test_bad_settings_are_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match=r"alpha = 0.0: must be above 0"):
        FedDyn(alpha=0.0)
    with pytest.raises(ConfigError, match=r"local\.lr = 0\.1: must be below 2/α = 0\.08 for feddyn"):
        train(quadratics(), FedDyn(alpha=25.0), tmp_path, rounds=1, lr=0.1)
    with pytest.raises(ConfigError, match=r"\[privacy\] cannot be combined with feddyn: its server adds up in h"):
        Privacy(clip=1.0).check(FedDyn())
