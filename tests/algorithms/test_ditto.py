import numpy as np
import pytest

from personafl.algorithms import Ditto, FedAvg, Separate
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, fixed_point, personal, quadratics, server, states, train

LR, STEPS, LAM = 0.1, 5, 1.5


def gradient(problem: Quadratics, m: int, w: np.ndarray) -> np.ndarray:
    return problem.A[m] @ (w - problem.z[m])


def descend(problem: Quadratics, m: int, w: np.ndarray, steps: int = STEPS) -> np.ndarray:
    for _ in range(steps):
        w = w - LR * gradient(problem, m, w)
    return w


def tied_optimum(problem: Quadratics, m: int, w: np.ndarray, lam: float) -> np.ndarray:
    """argmin F(v) + λ/2 ‖v − w‖², that is (A + λI) v = A z + λ w."""
    return np.linalg.solve(problem.A[m] + lam * np.eye(len(w)), problem.A[m] @ problem.z[m] + lam * w)


def by_hand(problem, cohorts, weights, start):
    """w and v after some rounds; v is nan for clients that never took part."""
    w, v = start.astype(float), np.full(problem.z.shape, np.nan)
    for cohort in cohorts:
        total, share = np.zeros_like(w), 0.0
        for i in cohort:
            personal = w if np.isnan(v[i]).any() else v[i]
            for _ in range(STEPS):
                personal = personal - LR * (gradient(problem, i, personal) + LAM * (personal - w))
            v[i] = personal
            p = problem.n[i] if weights == "samples" else 1.0
            total, share = total + p * descend(problem, i, w), share + p
        w = total / share
    return w, v


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, weights, engine):
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    runner = train(problem, Ditto(LAM, weights), tmp_path, 3, LR, STEPS, start, engine=engine)
    w, v = by_hand(problem, [range(4)] * 3, weights, start)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), v, rtol=1e-4, atol=1e-5)


def test_with_partial_participation_v_starts_from_the_first_w_received(tmp_path):
    problem, start = quadratics(clients=10), np.array([1.0, -2.0, 3.0])
    runner = train(problem, Ditto(LAM), tmp_path, 4, LR, STEPS, start, activity=0.2)
    w, v = by_hand(problem, [runner.schedule.cohort(0, r, 10) for r in range(1, 5)], "samples", start)
    late = [i for i in range(10) if runner.active[i] and i not in runner.schedule.cohort(0, 1, 10)]
    assert late and runner.active.max() >= 2 and runner.active.min() == 0
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), np.where(np.isnan(v), w, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activity", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_the_global_model_is_that_of_fedavg_bit_for_bit(tmp_path, weights, activity, step_by_step):
    problem = quadratics()
    one = server(train(problem, Ditto(LAM, weights), tmp_path, 3, LR, STEPS, activity=activity))
    other = server(train(problem, FedAvg(weights), tmp_path, 3, LR, STEPS, activity=activity))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_v_solves_the_regularized_problem_at_the_fixed_point(tmp_path, weights):
    """(A + λI) v = A z + λ w, with w the fixed point of fedavg."""
    problem = quadratics()
    p = problem.weights if weights == "samples" else np.full(4, 0.25)
    w = fixed_point(lambda w: sum(p[m] * descend(problem, m, w) for m in range(4)), 3)
    runner = train(problem, Ditto(LAM, weights), tmp_path, 50, LR, STEPS)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    exact = np.array([tied_optimum(problem, m, w, LAM) for m in range(4)])
    np.testing.assert_allclose(personal(runner), exact, rtol=1e-4, atol=1e-4)
    assert np.abs(exact - w).max() > 0.1 and np.abs(exact - problem.z).max() > 0.1


def test_without_lambda_it_is_separate_bit_for_bit(tmp_path, step_by_step):
    problem = quadratics()
    alone = personal(train(problem, Separate(), tmp_path, 3, LR, STEPS))
    np.testing.assert_array_equal(personal(train(problem, Ditto(0.0), tmp_path, 3, LR, STEPS)), alone)


def test_without_lambda_v_is_the_clients_own_optimum(tmp_path):
    problem = quadratics()
    np.testing.assert_allclose(
        personal(train(problem, Ditto(0.0), tmp_path, 20, 0.3, 5)), problem.z, rtol=1e-4, atol=1e-4
    )


def test_a_huge_lambda_gives_the_global_model(tmp_path):
    """v − w = (A + λI)⁻¹ A (z − w), of the order of 1/λ."""
    problem, lam = quadratics(), 2000.0
    runner = train(problem, Ditto(lam), tmp_path, 4, 0.5 / lam, 30)
    sent = server(train(problem, Ditto(lam), tmp_path, 3, 0.5 / lam, 30))
    exact = np.array([tied_optimum(problem, m, sent, lam) for m in range(4)])
    np.testing.assert_allclose(personal(runner), exact, rtol=1e-4, atol=1e-5)
    assert np.abs(personal(runner) - sent).max() < 0.01 < np.abs(problem.z - sent).max() / 100


def test_identical_clients_have_the_regularized_optimum_of_all(tmp_path):
    """Both w and v end at the common optimum, whatever λ."""
    problem = quadratics(alike=True)
    runner = train(problem, Ditto(LAM), tmp_path, 60, 0.2, STEPS)
    np.testing.assert_allclose(server(runner), problem.z[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(personal(runner), problem.z, rtol=1e-4, atol=1e-4)


def test_the_personalized_model_is_v_and_not_w(tmp_path):
    runner = train(quadratics(), Ditto(LAM), tmp_path, 2, LR, STEPS)
    np.testing.assert_array_equal(personal(runner), states(runner)["v"])
    assert np.abs(personal(runner) - server(runner)).max() > 0.1


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=10), Ditto(LAM), tmp_path, 2, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() >= 8
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(server(runner), (idle.sum(), 1)))


def test_traffic_is_one_model_up_and_one_down(tmp_path):
    runner = train(quadratics(), Ditto(), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * 3 * 4}
    assert Ditto.about.traffic == ("1", "1")


def test_a_negative_lambda_is_refused():
    with pytest.raises(ConfigError, match=r"lam = -1.0: must be at least 0"):
        Ditto(lam=-1.0)


def test_a_learning_rate_that_makes_the_pull_overshoot_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"local\.lr = 0\.1: must be below 2/λ = 0\.08"):
        train(quadratics(), Ditto(lam=25.0), tmp_path, rounds=1, lr=0.1)
