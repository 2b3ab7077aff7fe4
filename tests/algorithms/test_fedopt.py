"""The server's optimizers against the papers' equations in float64, and against fedavg where they are the same."""

import numpy as np
import pytest

from personafl.algorithms import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, train

LR, STEPS, START = 0.1, 3, np.array([1.0, -2.0, 3.0])
ADAPTIVE = {"server_lr": 0.3, "beta1": 0.6, "tau": 0.05}
ALL = [
    FedAvgM(momentum=0.7, server_lr=0.4),
    FedAdagrad(**ADAPTIVE),
    FedAdam(**ADAPTIVE, beta2=0.8),
    FedYogi(**ADAPTIVE, beta2=0.8),
]
pytestmark = pytest.mark.filterwarnings("error")


def descend(problem: Quadratics, m: int, w: np.ndarray) -> np.ndarray:
    for _ in range(STEPS):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def by_hand(problem, name, cohorts, weights):
    """w after some rounds, in the papers' letters and with ALL's values."""
    x, m, v = START.copy(), np.zeros(3), np.full(3, 0.05**2)
    for cohort in cohorts:
        p = problem.n[cohort] if weights == "samples" else np.ones(len(cohort))
        delta = sum(p_i * (descend(problem, i, x) - x) for p_i, i in zip(p / p.sum(), cohort, strict=True))
        if name == "fedavgm":
            m = 0.7 * m + delta
            x = x + 0.4 * m
            continue
        m = 0.6 * m + 0.4 * delta
        if name == "fedadagrad":
            v = v + delta**2
        if name == "fedadam":
            v = 0.8 * v + 0.2 * delta**2
        if name == "fedyogi":
            v = v - 0.2 * delta**2 * np.sign(v - delta**2)
        x = x + 0.3 * m / (np.sqrt(v) + 0.05)
    return x


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_every_round_equals_the_equations_by_hand(tmp_path, algorithm, weights):
    """With partial participation: m and v go on whoever answers."""
    problem = quadratics(clients=6)
    made = type(algorithm)(**{**vars(algorithm), "weights": weights})
    runner = train(problem, made, tmp_path, 6, LR, STEPS, START, activity=0.5)
    cohorts = [runner.schedule.cohort(0, r, 6) for r in range(1, 7)]
    np.testing.assert_allclose(server(runner), by_hand(problem, made.name, cohorts, weights), rtol=1e-4, atol=1e-5)


def test_without_momentum_and_at_rate_1_fedavgm_is_fedavg(tmp_path):
    problem = quadratics()
    average = server(train(problem, FedAvg(), tmp_path / "a", 4, LR, STEPS, START))
    ours = server(train(problem, FedAvgM(momentum=0.0), tmp_path / "b", 4, LR, STEPS, START))
    np.testing.assert_allclose(ours, average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_with_a_second_moment_that_stays_they_are_fedavg_scaled(tmp_path, kind, scale):
    """β1 = 0 and β2 → 1: v stays τ², so that w moves by η Δ / 2τ, which is Δ where η = 2τ."""
    problem, tau = quadratics(), 0.5
    constant = kind(server_lr=2 * tau * scale, beta1=0.0, beta2=1 - 1e-12, tau=tau)
    ours = server(train(problem, constant, tmp_path / "a", 4, LR, STEPS, START))
    scaled = server(train(problem, FedAvgM(momentum=0.0, server_lr=scale), tmp_path / "b", 4, LR, STEPS, START))
    np.testing.assert_allclose(ours, scaled, rtol=1e-5, atol=1e-6)
    if scale == 1:
        average = server(train(problem, FedAvg(), tmp_path / "c", 4, LR, STEPS, START))
        np.testing.assert_allclose(ours, average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvgM(momentum=0.5),
        FedAdagrad(server_lr=2.0, tau=0.1),
        FedAdam(server_lr=0.2, beta1=0.5, tau=0.1),
        FedYogi(server_lr=0.2, beta1=0.5, tau=0.1),
    ],
    ids=lambda a: a.name,
)
def test_with_one_local_step_they_end_at_the_optimum_of_the_weighted_loss(tmp_path, algorithm):
    """Δ is then −η_l times the gradient of Σ p_i F_i, which is 0 where Σ p_i A_i (w − z_i) = 0."""
    problem = quadratics()
    p = problem.weights
    optimum = np.linalg.solve(np.einsum("m,mij->ij", p, problem.A), np.einsum("m,mij,mj->i", p, problem.A, problem.z))
    runner = train(problem, algorithm, tmp_path, 80, 0.2, 1, START)
    np.testing.assert_allclose(server(runner), optimum, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_the_personalized_model_is_what_the_client_trained_last_or_w(tmp_path, algorithm):
    problem = quadratics(clients=6)
    before = server(train(problem, algorithm, tmp_path / "a", 2, LR, STEPS, START, activity=0.5))
    runner = train(problem, algorithm, tmp_path / "b", 3, LR, STEPS, START, activity=0.5)
    models, last = personal(runner), runner.schedule.cohort(0, 3, 6)
    for i in last:
        np.testing.assert_allclose(models[i], descend(problem, i, before), rtol=1e-4, atol=1e-5)
    for i in np.flatnonzero(runner.active == 0):
        np.testing.assert_array_equal(models[i], server(runner))


@pytest.mark.parametrize(
    ("kind", "setting", "words"),
    [
        (FedAvgM, {"momentum": 1.0}, r"momentum = 1.0: must be in \[0, 1\)"),
        (FedAvgM, {"server_lr": 0.0}, "server_lr = 0.0: must be above 0"),
        (FedAdagrad, {"server_lr": -1.0}, "server_lr = -1.0: must be above 0"),
        (FedAdam, {"beta1": 1.0}, r"beta1 = 1.0: must be in \[0, 1\)"),
        (FedYogi, {"beta2": 1.0}, r"beta2 = 1.0: must be in \[0, 1\)"),
        (FedAdagrad, {"tau": 0.0}, "tau = 0.0: must be above 0"),
    ],
)
def test_bad_settings_are_refused_in_words(kind, setting, words):
    with pytest.raises(ConfigError, match=words) as error:
        kind(**setting)
    assert "\n" not in str(error.value)
