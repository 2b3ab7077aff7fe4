"""MOCHA: Ω in closed form, and on quadratics the solution of a linear system for fixed Ω."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from personafl.algorithms import MOCHA, Separate
from personafl.algorithms.mocha import relationships
from personafl.errors import ConfigError
from tests.oracles.quadratic import clustered, personal, quadratics, server, train

LR, STEPS = 0.1, 5


def optimum(problem, omega, lam1, lam2, origin):
    """A_i (w_i − z_i) + λ1/m Σ_j (Ω⁻¹)_ij (w_j − θ0) + λ2 (w_i − θ0) = 0 for all clients: m·d equations."""
    m, d = problem.z.shape
    pull = np.linalg.inv(omega) * lam1 / m + lam2 * np.eye(m)
    system = np.kron(pull, np.eye(d))
    right = system @ np.tile(origin, m)
    for i in range(m):
        rows = slice(i * d, (i + 1) * d)
        system[rows, rows] += problem.A[i]
        right[rows] += problem.A[i] @ problem.z[i]
    return np.linalg.solve(system, right).reshape(m, d)


def related(m=4):
    """Some Ω: symmetric, positive, of trace 1, with pairs that are related by more and by less than nothing."""
    half = np.random.default_rng(5).standard_normal((m, m))
    omega = half @ half.T + 0.5 * np.eye(m)
    return omega / np.trace(omega)


@pytest.mark.parametrize("lam1, lam2", [(0.5, 0.0), (0.3, 0.2)])
def test_for_a_fixed_omega_it_ends_at_the_solution_of_the_linear_system(tmp_path, lam1, lam2):
    problem, origin, omega = quadratics(), np.array([1.0, -2.0, 3.0]), related()
    runner = train(problem, MOCHA(lam1, lam2, 10**9), tmp_path, 0, LR, STEPS, origin)
    runner.server["omega"] = torch.from_numpy(omega)
    for _ in range(60):
        runner.step()
    exact = optimum(problem, omega, lam1, lam2, origin)
    np.testing.assert_allclose(personal(runner), exact, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(server(runner, "omega"), omega)
    assert np.abs(exact - problem.z).max() > 0.1
    # Others count, and not only a client's distance from θ0.
    assert np.abs(exact - optimum(problem, np.diag(np.diag(omega)), lam1, lam2, origin)).max() > 0.1


def test_omega_is_the_closed_form():
    w = np.random.default_rng(0).standard_normal((4, 7))
    root = np.real(sqrtm(w @ w.T))
    exact = root / np.trace(root)
    omega = relationships(torch.from_numpy(w), 1e-12).numpy()
    np.testing.assert_allclose(omega, exact, atol=1e-9)
    # And so it is the smallest of tr(Wᵀ Ω⁻¹ W) among matrices of trace 1: no small change of it is better.
    draw, smallest = np.random.default_rng(1), np.trace(w.T @ np.linalg.inv(omega) @ w)
    for _ in range(50):
        change = draw.standard_normal((4, 4)) * 0.005
        other = omega + change + change.T
        assert np.trace(w.T @ np.linalg.inv(other / np.trace(other)) @ w) >= smallest
    assert relationships(torch.zeros(3, 2), 0.1).numpy() == pytest.approx(np.eye(3) / 3)


def test_both_end_where_neither_can_do_better(tmp_path):
    """W solves the system of Ω, and Ω is the closed form of W."""
    problem = clustered(np.array([[2.0, 1.0, -1.0], [-2.0, 0.5, 1.0]]), np.array([0, 1, 0, 1, 1]), 0.3)
    runner = train(problem, MOCHA(lam1=0.3, smoothing=0.05), tmp_path, 80, LR, STEPS)
    w, omega = personal(runner), server(runner, "omega")
    np.testing.assert_allclose(w, optimum(problem, omega, 0.3, 0.0, np.zeros(3)), rtol=1e-2, atol=2e-3)
    values, vectors = np.linalg.eigh(w @ w.T)
    roots = np.sqrt(values + 0.05 * values.mean())
    np.testing.assert_allclose(omega, vectors * (roots / roots.sum()) @ vectors.T, atol=1e-4)
    same = omega[0, 2] / np.sqrt(omega[0, 0] * omega[2, 2])
    assert same > 0.3 > 0 > omega[0, 1]


def test_without_lambda_it_is_training_alone_bit_for_bit(tmp_path, step_by_step):
    problem = quadratics()
    ours = personal(train(problem, MOCHA(lam1=0.0), tmp_path / "a", 3, LR, STEPS))
    np.testing.assert_array_equal(ours, personal(train(problem, Separate(), tmp_path / "b", 3, LR, STEPS)))


def test_the_pull_is_never_more_than_the_bound_that_the_learning_rate_is_checked_by():
    algorithm = MOCHA(lam1=0.7, lam2=0.1, smoothing=0.02)
    for seed, scale in enumerate((1e-3, 1.0, 1e3)):
        state = algorithm.new_server(torch.zeros(2), 9)
        state["omega"] = relationships(scale * torch.randn(9, 2, generator=torch.Generator().manual_seed(seed)), 0.02)
        pull = float(algorithm.send(state, torch.arange(9)).shared["pull"])
        assert 0.8 <= pull <= 0.7 * np.sqrt(1.02 / 0.02) + 0.1 + 1e-5


def test_who_was_never_active_has_the_mean_of_those_that_were(tmp_path):
    runner = train(quadratics(clients=8), MOCHA(), tmp_path, 3, LR, STEPS, activity=0.25)
    idle, models = runner.active == 0, server(runner, "models")
    assert 0 < idle.sum() < 8
    np.testing.assert_allclose(personal(runner)[idle], np.tile(models[~idle].mean(0), (idle.sum(), 1)), rtol=1e-4)


@pytest.mark.parametrize("bad", [{"lam1": -1.0}, {"lam2": -1.0}, {"omega_every": 0}, {"smoothing": 0.0}])
def test_bad_settings_are_one_line(bad):
    (key,) = bad
    with pytest.raises(ConfigError, match=rf"algorithm\.{key} = .*: must be ") as error:
        MOCHA(**bad)
    assert "\n" not in str(error.value)


def test_a_learning_rate_that_makes_the_pull_overshoot_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"local\.lr = 0\.1: must be below 2/ρ = 0\.0199\d* for mocha"):
        train(quadratics(), MOCHA(lam1=10.0), tmp_path, rounds=1, lr=0.1)
