"""FedPA's dynamic programming against dense linear algebra, exact on Gaussians; its rounds by hand; and FedAvgM."""

import numpy as np
import pytest
import torch

from personafl.algorithms import FedAvgM, FedPA
from personafl.algorithms.fedpa import posterior_delta
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, train

LR, STEPS, START = 0.1, 9, np.array([1.0, -2.0, 3.0])


def dense(w: np.ndarray, samples: np.ndarray, rho: float) -> np.ndarray:
    """Σ̂⁻¹ (w − x̄) with the shrinkage covariance as a matrix."""
    count, d = samples.shape
    shrink = 1 / (1 + (count - 1) * rho)
    S = np.cov(samples, rowvar=False).reshape(d, d) if count > 1 else np.zeros((d, d))
    return np.linalg.solve(shrink * np.eye(d) + (1 - shrink) * S, w - samples.mean(0))


def ours(w: np.ndarray, samples: np.ndarray, rho: float, padding: int = 0) -> np.ndarray:
    padded = torch.tensor(np.concatenate([samples, np.full((padding, len(w)), 7.0)]))
    known = torch.arange(len(padded)) < len(samples)
    return posterior_delta(torch.tensor(w), padded, known, rho).numpy()


@pytest.mark.parametrize("rho", [0.0, 0.01, 1.0, 50.0])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_dynamic_programming_is_the_dense_solution(count, rho):
    draw = np.random.default_rng(count)
    w, samples = draw.standard_normal(6), draw.standard_normal((count, 6)) * [1, 2, 3, 0.1, 1, 5] + 2
    np.testing.assert_allclose(ours(w, samples, rho), dense(w, samples, rho), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours(w, samples, rho, padding=3), dense(w, samples, rho), rtol=1e-9, atol=1e-9)


def test_it_is_exact_on_gaussians():
    """Samples with the mean z and covariance A⁻¹ of a quadratic's posterior: for large ρ, Δ is A (w − z)."""
    problem, draw = quadratics(), np.random.default_rng(0)
    deltas = []
    for m in range(4):
        raw = draw.standard_normal((40, 3))
        white = np.linalg.solve(np.linalg.cholesky(np.cov(raw, rowvar=False)), (raw - raw.mean(0)).T).T
        samples = white @ np.linalg.cholesky(np.linalg.inv(problem.A[m])).T + problem.z[m]
        deltas.append(ours(START, samples, rho=1e7))
        np.testing.assert_allclose(deltas[m], problem.A[m] @ (START - problem.z[m]), rtol=1e-4)
    # So the server's gradient is that of the sum of all losses, though clients solved their own problems to the end.
    exact = np.linalg.solve(problem.A.sum(0), np.einsum("mij,mj->i", problem.A, problem.z))
    np.testing.assert_allclose(START - np.linalg.solve(problem.A.sum(0), np.sum(deltas, 0)), exact, rtol=1e-3)


def iterates(problem: Quadratics, m: int, w: np.ndarray, steps: int) -> np.ndarray:
    found = []
    for _ in range(steps):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
        found.append(w)
    return np.array(found)


def by_hand(problem, cohorts, rho, burn_in_rounds, windows, steps):
    w, m = START.copy(), np.zeros(3)
    for r, cohort in enumerate(cohorts, 1):
        delta, share = np.zeros(3), problem.n[cohort] / problem.n[cohort].sum()
        for p, k in zip(share, cohort, strict=True):
            path = iterates(problem, k, w, steps)
            samples = np.array([path[list(window)].mean(0) for window in windows])
            delta += p * (w - path[-1] if r <= burn_in_rounds else dense(w, samples, rho))
        m = 0.5 * m - delta
        w = w + 0.7 * m
    return w


@pytest.mark.parametrize(
    ("samples", "steps", "windows"),
    [(2, 9, [(4, 5, 6), (7, 8)]), (3, 4, [(2,), (3,)]), (1, 4, [(2, 3)]), (3, 6, [(3,), (4,), (5,)])],
)
def test_every_round_equals_the_algorithm_by_hand(tmp_path, samples, steps, windows):
    """The windows of the second half of the steps; fewer than asked for where there are not enough steps."""
    problem = quadratics(clients=6)
    made = FedPA(momentum=0.5, server_lr=0.7, samples=samples, rho=0.4, burn_in_rounds=2)
    runner = train(problem, made, tmp_path, 4, LR, steps, START, 0.5)
    cohorts = [runner.schedule.cohort(0, r, 6) for r in range(1, 5)]
    expected = by_hand(problem, cohorts, 0.4, 2, windows, steps)
    np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-5)


def test_during_burn_in_it_is_fedavgm(tmp_path, step_by_step):
    problem = quadratics()
    momentum = train(problem, FedAvgM(), tmp_path / "a", 3, LR, STEPS, START, activity=0.5)
    burning = train(problem, FedPA(burn_in_rounds=3), tmp_path / "b", 3, LR, STEPS, START, activity=0.5)
    np.testing.assert_array_equal(server(burning), server(momentum))
    np.testing.assert_array_equal(personal(burning), personal(momentum))


def test_the_personalized_model_is_the_last_iterate_or_w(tmp_path):
    problem, made = quadratics(clients=6), FedPA(burn_in_rounds=0)
    before = server(train(problem, made, tmp_path / "a", 1, LR, STEPS, START, activity=0.34))
    runner = train(problem, made, tmp_path / "b", 2, LR, STEPS, START, activity=0.34)
    models = personal(runner)
    for k in runner.schedule.cohort(0, 2, 6):
        np.testing.assert_allclose(models[k], iterates(problem, k, before, STEPS)[-1], rtol=1e-4, atol=1e-5)
    for k in np.flatnonzero(runner.active == 0):
        np.testing.assert_array_equal(models[k], server(runner))


def test_bad_settings_are_refused_in_words(tmp_path):
    for setting, words in (
        ({"samples": 0}, "samples = 0: must be at least 1"),
        ({"rho": -1.0}, "rho = -1.0: must be at least 0"),
        ({"burn_in_rounds": -1}, "burn_in_rounds = -1: must be at least 0"),
        ({"momentum": 1.0}, r"momentum = 1.0: must be in \[0, 1\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            FedPA(**setting)
    with pytest.raises(ConfigError, match=r'local.optimizer = .adam.: must be "sgd" for fedpa: iterates of SGD'):
        train(quadratics(), FedPA(), tmp_path, 1, optimizer="adam")
