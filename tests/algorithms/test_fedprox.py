import numpy as np
import pytest

from personafl.algorithms import FedAvg, FedProx, FedProxFT
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, fixed_point, personal, quadratics, server, train

LR, STEPS, MU = 0.05, 20, 3.0


def local_result(problem: Quadratics, m: int, w: np.ndarray, mu: float = MU) -> np.ndarray:
    y = w
    for _ in range(STEPS):
        y = y - LR * (problem.A[m] @ (y - problem.z[m]) + mu * (y - w))
    return y


def test_reaches_the_fixed_point_of_its_linear_map(tmp_path):
    problem = quadratics()
    p = problem.weights
    expected = fixed_point(lambda w: sum(p[m] * local_result(problem, m, w) for m in range(4)), 3)
    without = fixed_point(lambda w: sum(p[m] * local_result(problem, m, w, mu=0) for m in range(4)), 3)
    runner = train(problem, FedProx(mu=MU), tmp_path, rounds=60, lr=LR, steps=STEPS)
    np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected - without).max() > 1e-3, "the proximal term should make a difference here"
    np.testing.assert_allclose(
        personal(runner), [local_result(problem, m, expected) for m in range(4)], rtol=1e-3, atol=1e-4
    )


def test_many_steps_solve_the_proximal_problem(tmp_path):
    """(A + μI) y = A z + μ w."""
    problem = quadratics()
    start = np.array([1.0, 2.0, 3.0])
    runner = train(problem, FedProx(mu=MU), tmp_path, rounds=1, lr=LR, steps=400, start=start)
    exact = [np.linalg.solve(problem.A[m] + MU * np.eye(3), problem.A[m] @ problem.z[m] + MU * start) for m in range(4)]
    np.testing.assert_allclose(personal(runner), exact, rtol=1e-4, atol=1e-4)


def test_without_the_proximal_term_it_is_fedavg(tmp_path, step_by_step):
    problem = quadratics()
    one = server(train(problem, FedProx(mu=0.0), tmp_path, rounds=3))
    np.testing.assert_array_equal(one, server(train(problem, FedAvg(), tmp_path, rounds=3)))


def test_fine_tuning_has_no_proximal_term(tmp_path):
    problem = quadratics()
    runner = train(problem, FedProxFT(mu=MU, fine_tune_steps=STEPS), tmp_path, rounds=3, lr=LR, steps=STEPS)
    w = server(runner)
    expected = [local_result(problem, m, w, mu=0) for m in range(4)]
    np.testing.assert_allclose(personal(runner), expected, rtol=1e-4, atol=1e-5)


def test_a_negative_mu_is_refused():
    with pytest.raises(ConfigError, match=r"mu = -1"):
        FedProx(mu=-1)
    with pytest.raises(ConfigError, match=r"mu = -1"):
        FedProxFT(mu=-1)


def test_a_learning_rate_that_makes_the_pull_overshoot_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"local\.lr = 0\.1: must be below 2/μ = 0\.08"):
        train(quadratics(), FedProx(mu=25.0), tmp_path, rounds=1, lr=0.1)
