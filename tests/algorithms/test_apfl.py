import numpy as np
import pytest
import torch

from personafl.algorithms import APFL, Context, FedAvg, Separate
from personafl.errors import ConfigError
from personafl.settings import Local
from tests.oracles.quadratic import Quadratics, fixed_point, personal, quadratics, server, states, train

LR, STEPS, ALPHA = 0.1, 4, 0.3


def gradient(problem: Quadratics, m: int, w: np.ndarray) -> np.ndarray:
    return problem.A[m] @ (w - problem.z[m])


def local_round(problem, m, w, v, alpha, adaptive=False, lr=LR, steps=STEPS):
    """A client's round: every update of a step uses the values from its start. Returns w_i, v, α."""
    for _ in range(steps):
        at_mixture = gradient(problem, m, alpha * v + (1 - alpha) * w)
        change = lr * float((v - w) @ at_mixture)
        w, v = w - lr * gradient(problem, m, w), v - lr * alpha * at_mixture
        if adaptive:
            alpha = min(max(alpha - change, 0.0), 1.0)
    return w, v, alpha


def by_hand(problem, cohorts, start, alpha, adaptive, lr=LR):
    """w, v (nan for a client that never took part) and α after some rounds."""
    w, v, alphas = start.astype(float), np.full(problem.z.shape, np.nan), np.full(len(problem.n), alpha)
    for cohort in cohorts:
        ends = []
        for i in cohort:
            begin = w if np.isnan(v[i]).any() else v[i]
            w_i, v[i], alphas[i] = local_round(problem, i, w, begin, alphas[i], adaptive, lr)
            ends.append(w_i)
        w = np.mean(ends, axis=0)
    return w, v, alphas


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, adaptive, engine):
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    runner = train(problem, APFL(ALPHA, adaptive), tmp_path, 3, LR, STEPS, start, engine=engine)
    w, v, alpha = by_hand(problem, [range(4)] * 3, start, ALPHA, adaptive)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states(runner)["v"], v, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states(runner)["alpha"], alpha, rtol=1e-4, atol=1e-5)
    mixture = alpha[:, None] * v + (1 - alpha[:, None]) * w
    np.testing.assert_allclose(personal(runner), mixture, rtol=1e-4, atol=1e-5)
    assert np.abs(mixture - v).max(1).min() > 0.1 and (np.abs(alpha - ALPHA).max() > 0.1) == adaptive


def test_with_partial_participation_v_starts_from_the_first_w_received(tmp_path):
    problem, start = quadratics(clients=10), np.array([1.0, -2.0, 3.0])
    runner = train(problem, APFL(ALPHA, adaptive=True), tmp_path, 4, 0.05, STEPS, start, activity=0.2)
    assert runner.active.min() == 0 and runner.active.max() >= 2
    cohorts = [runner.schedule.cohort(0, r, 10) for r in range(1, 5)]
    w, v, alpha = by_hand(problem, cohorts, start, ALPHA, True, lr=0.05)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    mixture = alpha[:, None] * np.where(np.isnan(v), w, v) + (1 - alpha[:, None]) * w
    np.testing.assert_allclose(personal(runner), mixture, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.4, 0.8])
def test_at_a_fixed_alpha_the_mixture_is_the_clients_optimum(tmp_path, alpha):
    """One step a round: w rests at its fixed point, and α ∇f(αv + (1−α)w) = 0 leaves the mixture at z. v is not z."""
    problem = quadratics()
    runner = train(problem, APFL(alpha), tmp_path, 300 if alpha < 0.5 else 120, 0.35, 1)
    np.testing.assert_allclose(personal(runner), problem.z, rtol=1e-3, atol=1e-3)
    assert np.abs(states(runner)["v"] - problem.z).max(1).min() > 0.1


def test_with_more_steps_it_reaches_the_fixed_point_of_its_linear_map(tmp_path):
    """w_i moves within a round, so the mixture rests a little away from z; (w, v_1, …, v_4) is an affine map."""
    problem, alpha = quadratics(), 0.7

    def one_round(joint: np.ndarray) -> np.ndarray:
        w, *v = joint.reshape(5, 3)
        ends = [local_round(problem, m, w, v[m], alpha) for m in range(4)]
        return np.concatenate([np.mean([end[0] for end in ends], axis=0), *(end[1] for end in ends)])

    w, *v = fixed_point(one_round, 15).reshape(5, 3)
    runner = train(problem, APFL(alpha), tmp_path, 80, LR, STEPS)
    np.testing.assert_allclose(server(runner), w, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(states(runner)["v"], v, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(personal(runner), alpha * np.array(v) + (1 - alpha) * w, rtol=1e-3, atol=1e-3)


class Slope:
    """The gradient of a quadratic loss, as a step is given it."""

    def __init__(self, A: torch.Tensor, z: torch.Tensor) -> None:
        self.A, self.z = A, z

    def __call__(self, theta: torch.Tensor) -> torch.Tensor:
        return self.A @ (theta - self.z)

    def descend(self, theta: torch.Tensor, lr: float, proximal: None) -> None:
        theta -= lr * self(theta)


def one_step(alpha: float, lr: float, seed: int = 0):
    """A step in float64 with w and v apart: the new α, and f(αv + (1−α)w) as a function of α."""
    problem, draw = quadratics(), np.random.default_rng(seed)
    w, v = draw.standard_normal(3), draw.standard_normal(3)
    A, z = torch.tensor(problem.A[0]), torch.tensor(problem.z[0])
    one = torch.ones((), dtype=torch.int64)
    ctx = Context(1, lr, Local(lr=lr), steps=one, samples=one, batch_size=one, copy=0 * one)
    carry = {"w": torch.tensor(w), "v": torch.tensor(v), "alpha": torch.tensor(alpha, dtype=torch.float64)}
    after = APFL(alpha, adaptive=True).step(carry, {}, Slope(A, z), ctx)

    def loss(share: float) -> float:
        offset = share * v + (1 - share) * w - problem.z[0]
        return offset @ problem.A[0] @ offset / 2

    return float(after["alpha"]), loss


@pytest.mark.parametrize("seed", range(6))
def test_alpha_moves_against_the_derivative_of_the_loss_of_the_mixture(seed):
    lr, h = 0.002, 1e-4
    moved, loss = one_step(0.5, lr, seed)
    derivative = (loss(0.5 + h) - loss(0.5 - h)) / (2 * h)
    assert abs(derivative) > 0.01
    np.testing.assert_allclose(moved - 0.5, -lr * derivative, rtol=1e-6)
    assert loss(moved) < loss(0.5)


def test_alpha_stays_between_zero_and_one(tmp_path):
    reached = {one_step(0.5, 100.0, seed)[0] for seed in range(6)}
    assert reached == {0.0, 1.0}
    problem, start = quadratics(), np.array([6.0, -6.0, 6.0])
    for rounds in (1, 2, 4):
        alpha = states(train(problem, APFL(ALPHA, adaptive=True), tmp_path, rounds, 0.2, STEPS, start))["alpha"]
        assert alpha.min() >= 0 and alpha.max() <= 1
    assert set(alpha) & {0.0, 1.0}, "a bound should be reached here"


def test_alpha_zero_is_the_global_model_of_fedavg_with_equal_weights(tmp_path):
    problem = quadratics()
    runner = train(problem, APFL(0.0), tmp_path, 3, LR, STEPS)
    w = server(train(problem, FedAvg("equal"), tmp_path, 3, LR, STEPS))
    np.testing.assert_array_equal(server(runner), w)
    np.testing.assert_array_equal(personal(runner), np.tile(w, (4, 1)))


def test_alpha_one_is_separate(tmp_path, step_by_step):
    problem = quadratics()
    for rounds in (1, 3):
        alone = personal(train(problem, Separate(), tmp_path, rounds, LR, STEPS))
        np.testing.assert_array_equal(personal(train(problem, APFL(1.0), tmp_path, rounds, LR, STEPS)), alone)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_global_model_is_that_of_fedavg_with_equal_weights_whatever_alpha(tmp_path, alpha, step_by_step):
    problem = quadratics()
    w = server(train(problem, FedAvg("equal"), tmp_path, 3, LR, STEPS, activity=0.5))
    runner = train(problem, APFL(alpha, adaptive=True), tmp_path, 3, LR, STEPS, activity=0.5)
    np.testing.assert_array_equal(server(runner), w)


def test_identical_clients_share_one_mixture_at_the_common_optimum(tmp_path):
    problem = quadratics(alike=True)
    runner = train(problem, APFL(0.5), tmp_path, 60, 0.3, 5)
    np.testing.assert_allclose(server(runner), problem.z[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(personal(runner), problem.z, rtol=1e-3, atol=1e-3)


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=10), APFL(ALPHA), tmp_path, 2, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() >= 8
    np.testing.assert_allclose(personal(runner)[idle], np.tile(server(runner), (idle.sum(), 1)), rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
def test_traffic_is_one_model_up_and_one_down(tmp_path, adaptive):
    runner = train(quadratics(), APFL(adaptive=adaptive), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * 3 * 4}
    assert APFL.about.traffic == ("1", "1")


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_an_alpha_outside_zero_and_one_is_refused(alpha):
    with pytest.raises(ConfigError, match=rf"alpha = {alpha}: must be in \[0, 1\]"):
        APFL(alpha=alpha)
