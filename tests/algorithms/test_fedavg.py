import numpy as np
import pytest

from personafl.algorithms import FedAvg, FedAvgFT
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, fixed_point, personal, quadratics, server, train

LR, STEPS = 0.02, 5


def local_result(problem: Quadratics, m: int, w: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """z + (I − ηA)^K (w − z): gradient descent on a quadratic, in closed form."""
    contraction = np.linalg.matrix_power(np.eye(len(w)) - LR * problem.A[m], steps)
    return problem.z[m] + contraction @ (w - problem.z[m])


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_reaches_the_fixed_point_of_its_linear_map(tmp_path, weights):
    problem = quadratics()
    p = problem.weights if weights == "samples" else np.full(4, 0.25)
    expected = fixed_point(lambda w: sum(p[m] * local_result(problem, m, w) for m in range(4)), 3)
    runner = train(problem, FedAvg(weights=weights), tmp_path, rounds=80, lr=LR, steps=STEPS)
    np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-5)
    average_optimum = np.linalg.solve(np.tensordot(p, problem.A, 1), np.einsum("m,mij,mj->i", p, problem.A, problem.z))
    assert np.abs(server(runner) - average_optimum).max() > 1e-3, "the drift of fedavg should be visible here"


def test_the_personalized_model_is_what_the_client_trained_last(tmp_path):
    problem = quadratics()
    runner = train(problem, FedAvg(), tmp_path, rounds=3, lr=LR, steps=STEPS)
    w = np.zeros(3)
    for _ in range(2):
        w = sum(problem.weights[m] * local_result(problem, m, w) for m in range(4))
    trained = [local_result(problem, m, w) for m in range(4)]
    np.testing.assert_allclose(personal(runner), trained, rtol=1e-4, atol=1e-5)


def test_identical_clients_do_centralized_gradient_descent(tmp_path):
    problem = quadratics(alike=True)
    runner = train(problem, FedAvg(), tmp_path, rounds=4, lr=LR, steps=STEPS)
    np.testing.assert_allclose(
        server(runner), local_result(problem, 0, np.zeros(3), steps=4 * STEPS), rtol=1e-5, atol=1e-6
    )


def test_momentum_and_weight_decay_are_those_of_torch(tmp_path):
    import torch

    problem = quadratics(clients=1)
    runner = train(problem, FedAvg(), tmp_path, rounds=1, lr=LR, steps=7, momentum=0.9, weight_decay=0.1)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=LR, momentum=0.9, weight_decay=0.1)
    A, z = torch.tensor(problem.A[0]), torch.tensor(problem.z[0])
    for _ in range(7):
        optimizer.zero_grad()
        (0.5 * (w - z) @ A @ (w - z)).backward()
        optimizer.step()
    np.testing.assert_allclose(server(runner), w.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_learning_rate_decays_over_rounds(tmp_path):
    problem = quadratics(clients=1)
    runner = train(problem, FedAvg(), tmp_path, rounds=3, lr=LR, steps=1, lr_decay=0.5, lr_decay_every=2)
    w = np.zeros(3)
    for lr in (LR, LR, LR / 2):
        w = w - lr * problem.A[0] @ (w - problem.z[0])
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-6)


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=10), FedAvg(), tmp_path, rounds=1, activity=0.1)
    idle = runner.active == 0
    np.testing.assert_allclose(personal(runner)[idle], np.tile(server(runner), (9, 1)))


def test_traffic_is_one_model_up_and_one_down(tmp_path):
    runner = train(quadratics(), FedAvg(), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * 3 * 4}


def test_fine_tuning_is_gradient_descent_from_the_global_model(tmp_path):
    problem = quadratics()
    runner = train(problem, FedAvgFT(fine_tune_steps=7), tmp_path, rounds=3, lr=LR, steps=STEPS)
    w = server(runner)
    expected = [local_result(problem, m, w, steps=7) for m in range(4)]
    np.testing.assert_allclose(personal(runner), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(server(train(problem, FedAvg(), tmp_path, rounds=3, lr=LR, steps=STEPS)), w)


def test_fine_tuning_by_no_steps_is_the_global_model(tmp_path):
    runner = train(quadratics(), FedAvgFT(fine_tune_steps=0), tmp_path, rounds=3)
    np.testing.assert_allclose(personal(runner), np.tile(server(runner), (4, 1)))


def test_a_negative_number_of_fine_tuning_steps_is_refused():
    with pytest.raises(ConfigError, match="fine_tune_steps"):
        FedAvgFT(fine_tune_steps=-1)
