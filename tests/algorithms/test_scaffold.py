import numpy as np
import pytest

from personafl.algorithms import SCAFFOLD, FedAvg
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, states, train

LR, STEPS = 0.1, 10


def gradient(problem: Quadratics, m: int, w: np.ndarray) -> np.ndarray:
    return problem.A[m] @ (w - problem.z[m])


def descend(problem: Quadratics, m: int, w: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        w = w - LR * gradient(problem, m, w)
    return w


def optimum(problem: Quadratics) -> np.ndarray:
    """Where the unweighted mean of the clients' losses is least: Σ A (w − z) = 0."""
    return np.linalg.solve(problem.A.sum(0), np.einsum("mij,mj->i", problem.A, problem.z))


def by_hand(problem, cohorts, rates, steps, global_lr):
    """Option II as the paper prints it, one client at a time: w, c, all c_i, all y_i (nan where never trained)."""
    clients, d = problem.z.shape
    w, c, c_i, y_i = np.zeros(d), np.zeros(d), np.zeros((clients, d)), np.full((clients, d), np.nan)
    for cohort, lr in zip(cohorts, rates, strict=True):
        moved, changed = np.zeros(d), np.zeros(d)
        for i in cohort:
            y = w.copy()
            for _ in range(steps):
                y = y - lr * (gradient(problem, i, y) - c_i[i] + c)
            new = c_i[i] - c + (w - y) / (steps * lr)
            moved += (y - w) / len(cohort)
            changed += (new - c_i[i]) / clients
            c_i[i], y_i[i] = new, y
        w, c = w + global_lr * moved, c + changed
    return w, c, c_i, y_i


def check_against_hand(runner, problem, rates, global_lr):
    clients = len(problem.n)
    cohorts = [runner.schedule.cohort(0, r + 1, clients) for r in range(len(rates))]
    w, c, c_i, y_i = by_hand(problem, cohorts, rates, STEPS, global_lr)
    close = {"rtol": 1e-4, "atol": 2e-5}
    np.testing.assert_allclose(server(runner), w, **close)
    np.testing.assert_allclose(server(runner, "c"), c, **close)
    np.testing.assert_allclose(states(runner)["c"], c_i, **close)
    np.testing.assert_allclose(personal(runner), np.where(np.isnan(y_i), w, y_i), **close)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, engine):
    problem = quadratics()
    for rounds in (1, 3):
        runner = train(problem, SCAFFOLD(global_lr=0.7), tmp_path, rounds, LR, STEPS, engine=engine)
        check_against_hand(runner, problem, [LR] * rounds, 0.7)


def test_with_partial_participation_it_equals_the_algorithm_by_hand(tmp_path):
    """c moves by (1/N) Σ with N all clients, w by the mean over those who answered; η is the round's."""
    problem = quadratics(clients=10)
    decay = {"lr_decay": 0.5, "lr_decay_every": 2}
    runner = train(problem, SCAFFOLD(global_lr=1.3), tmp_path, 4, LR, STEPS, activity=0.2, **decay)
    assert runner.active.min() == 0 and runner.active.max() >= 2
    check_against_hand(runner, problem, [LR, LR, LR / 2, LR / 2], 1.3)


def test_reaches_the_optimum_of_the_average_objective_and_fedavg_does_not(tmp_path):
    problem = quadratics()
    best = optimum(problem)
    runner = train(problem, SCAFFOLD(), tmp_path, 60, LR, STEPS)
    np.testing.assert_allclose(server(runner), best, rtol=1e-4, atol=1e-4)
    drifted = server(train(problem, FedAvg(weights="equal"), tmp_path, 60, LR, STEPS))
    assert np.linalg.norm(drifted - best) > 0.1
    assert np.linalg.norm(drifted - best) > 1000 * np.linalg.norm(server(runner) - best)


def test_c_i_becomes_the_clients_gradient_at_the_optimum(tmp_path):
    problem = quadratics()
    runner = train(problem, SCAFFOLD(), tmp_path, 60, LR, STEPS)
    at_best = np.array([gradient(problem, m, optimum(problem)) for m in range(4)])
    assert np.abs(at_best).max() > 1, "clients should pull in different directions here"
    np.testing.assert_allclose(states(runner)["c"], at_best, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(server(runner, "c"), np.zeros(3), atol=1e-3)


@pytest.mark.parametrize("activity", [1.0, 0.5])
def test_c_is_the_mean_of_all_c_i(tmp_path, activity):
    runner = train(quadratics(), SCAFFOLD(), tmp_path, 2, LR, STEPS, activity=activity)
    mean = states(runner)["c"].mean(0)
    assert np.abs(mean).max() > 0.01
    np.testing.assert_allclose(server(runner, "c"), mean, rtol=1e-4, atol=1e-5)


def test_identical_clients_do_centralized_gradient_descent(tmp_path):
    problem = quadratics(alike=True)
    runner = train(problem, SCAFFOLD(), tmp_path, 3, LR, STEPS)
    w = descend(problem, 0, np.zeros(3), 3 * STEPS)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), np.tile(w, (4, 1)), rtol=1e-4, atol=1e-5)


def test_one_client_does_gradient_descent(tmp_path):
    problem = quadratics(clients=1)
    runner = train(problem, SCAFFOLD(), tmp_path, 3, LR, STEPS)
    np.testing.assert_allclose(server(runner), descend(problem, 0, np.zeros(3), 3 * STEPS), rtol=1e-4, atol=1e-5)


def test_the_first_round_is_fedavg_with_equal_weights(tmp_path):
    """All control variates start at zero."""
    problem = quadratics()
    first = train(problem, SCAFFOLD(), tmp_path, 1, LR, STEPS)
    plain = train(problem, FedAvg(weights="equal"), tmp_path, 1, LR, STEPS)
    np.testing.assert_allclose(server(first), server(plain), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(personal(first), personal(plain), rtol=1e-5, atol=1e-6)


def test_the_personalized_model_is_y_and_not_w(tmp_path):
    runner = train(quadratics(), SCAFFOLD(), tmp_path, 2, LR, STEPS)
    np.testing.assert_array_equal(personal(runner), states(runner)["theta"])
    assert np.abs(personal(runner) - server(runner)).max() > 0.1


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=10), SCAFFOLD(), tmp_path, 1, activity=0.1)
    idle = runner.active == 0
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(server(runner), (9, 1)))
    np.testing.assert_array_equal(states(runner)["c"][idle], np.zeros((9, 3)))


def test_traffic_is_two_models_up_and_two_down(tmp_path):
    runner = train(quadratics(), SCAFFOLD(), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 2 * 3 * 4, "bytes_down": 3 * 4 * 2 * 3 * 4}
    assert SCAFFOLD.about.traffic == ("2", "2")


@pytest.mark.parametrize("global_lr", [0.0, -1.0])
def test_a_global_lr_of_zero_or_less_is_refused(global_lr):
    with pytest.raises(ConfigError, match=rf"global_lr = {global_lr}: must be above 0"):
        SCAFFOLD(global_lr=global_lr)


def test_momentum_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"local\.momentum = 0\.9: must be 0 for scaffold"):
        train(quadratics(), SCAFFOLD(), tmp_path, rounds=1, momentum=0.9)
