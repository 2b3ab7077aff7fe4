import itertools

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import Context, FedAvg, PerFedAvg
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.oracles.quadratic import Quadratics, fixed_point, personal, quadratics, server, train

LR, STEPS, ALPHA = 0.1, 4, 0.15
VARIANTS = ["first-order", "hessian-free"]


def made(variant: str, **settings: float) -> PerFedAvg:
    # On a quadratic the difference is exact for every δ; a large one loses no digits in float32.
    return PerFedAvg(variant, **{"alpha": ALPHA, "delta": 0.5} | settings)


def meta_hessian(A: np.ndarray, variant: str) -> np.ndarray:
    """B with direction = B (w − z): A (I − αA) where the Hessian is ignored, (I − αA) A (I − αA) where it is not."""
    shrink = np.eye(len(A)) - ALPHA * A
    return A @ shrink if variant == "first-order" else shrink @ A @ shrink


def resting_point(problem: Quadratics, variant: str) -> np.ndarray:
    """Σ B_i (w − z_i) = 0."""
    B = np.array([meta_hessian(A, variant) for A in problem.A])
    return np.linalg.solve(B.sum(0), np.einsum("mij,mj->i", B, problem.z))


def adapted_loss(problem: Quadratics, w: np.ndarray) -> float:
    """mean_i F_i(w − α ∇F_i(w)), up to a constant."""
    total = 0.0
    for A, z in zip(problem.A, problem.z, strict=True):
        offset = w - ALPHA * A @ (w - z) - z
        total += offset @ A @ offset / 2
    return total / len(problem.z)


def one_round(problem, w, variant, cohort, steps=STEPS):
    ends = []
    for m in cohort:
        y = w
        for _ in range(steps):
            y = y - LR * meta_hessian(problem.A[m], variant) @ (y - problem.z[m])
        ends.append(y)
    return np.mean(ends, axis=0)


def adapted(problem, w, steps=1):
    rows = np.tile(w, (len(problem.z), 1))
    for _ in range(steps):
        rows = rows - ALPHA * np.einsum("mij,mj->mi", problem.A, rows - problem.z)
    return rows


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_round_equals_the_algorithm_by_hand(tmp_path, variant, engine):
    problem, start = quadratics(clients=10), np.array([1.0, -2.0, 3.0])
    for activity in (1.0, 0.2):
        runner = train(problem, made(variant), tmp_path, 3, LR, STEPS, start, activity=activity, engine=engine)
        w = start
        for r in range(1, 4):
            w = one_round(problem, w, variant, runner.schedule.cohort(0, r, 10))
        np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(personal(runner), adapted(problem, w), rtol=1e-4, atol=1e-5)


def test_hessian_free_is_stationary_for_the_loss_after_one_step(tmp_path):
    """One local step a round, so that there is no drift."""
    problem = quadratics()
    w = server(train(problem, made("hessian-free"), tmp_path, 120, 0.5, 1))
    np.testing.assert_allclose(w, resting_point(problem, "hessian-free"), rtol=1e-4, atol=1e-4)
    for direction in np.vstack([np.eye(3), -np.eye(3)]):
        assert adapted_loss(problem, w) < adapted_loss(problem, w + 0.02 * direction)


def test_first_order_rests_where_the_mean_of_the_adapted_gradients_is_zero(tmp_path):
    """Σ ∇F_i(w − α∇F_i(w)) = 0: neither the minimum after one step nor that of the average loss."""
    problem = quadratics()
    w = server(train(problem, made("first-order"), tmp_path, 120, 0.5, 1))
    np.testing.assert_allclose(w, resting_point(problem, "first-order"), rtol=1e-4, atol=1e-4)
    average_optimum = np.linalg.solve(problem.A.sum(0), np.einsum("mij,mj->i", problem.A, problem.z))
    for other in (resting_point(problem, "hessian-free"), average_optimum):
        assert np.abs(w - other).max() > 0.02


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_more_steps_it_reaches_the_fixed_point_of_its_linear_map(tmp_path, variant):
    problem = quadratics()
    runner = train(problem, made(variant), tmp_path, 60, LR, STEPS)
    expected = fixed_point(lambda w: one_round(problem, w, variant, range(4)), 3)
    np.testing.assert_allclose(server(runner), expected, rtol=1e-4, atol=1e-4)


def test_the_default_delta_is_precise_enough_in_float32(tmp_path):
    problem = quadratics()
    w = server(train(problem, PerFedAvg("hessian-free", ALPHA), tmp_path, 60, LR, STEPS))
    expected = fixed_point(lambda w: one_round(problem, w, "hessian-free", range(4)), 3)
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_personalized_model_is_w_after_alpha_steps_on_the_training_data(tmp_path, steps):
    problem = quadratics()
    runner = train(problem, made("first-order", adapt_steps=steps), tmp_path, 2, LR, STEPS)
    np.testing.assert_allclose(personal(runner), adapted(problem, server(runner), steps), rtol=1e-4, atol=1e-5)


def test_a_client_that_was_never_active_adapts_the_global_model_too(tmp_path):
    problem = quadratics(clients=10)
    runner = train(problem, made("first-order"), tmp_path, 1, LR, STEPS, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() == 9
    np.testing.assert_allclose(personal(runner)[idle], adapted(problem, server(runner))[idle], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_alpha_zero_is_fedavg_with_equal_weights(tmp_path, variant):
    problem = quadratics()
    runner = train(problem, made(variant, alpha=0.0), tmp_path, 3, LR, STEPS)
    w = server(train(problem, FedAvg("equal"), tmp_path, 3, LR, STEPS))
    np.testing.assert_array_equal(server(runner), w)
    np.testing.assert_array_equal(personal(runner), np.tile(w, (4, 1)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("clients", [1, 4])
def test_one_client_or_identical_clients_end_at_their_optimum(tmp_path, clients, variant):
    problem = quadratics(clients=clients, alike=True)
    w = server(train(problem, made(variant), tmp_path, 60, 0.3, 5))
    np.testing.assert_allclose(w, problem.z[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_uses_a_batch_of_its_own_for_each_gradient(variant):
    """w̃ on D, g̃ on D′, the Hessian on D″; each batch has a loss of its own here."""
    problem, w = quadratics(clients=3), np.array([1.0, -2.0, 3.0])
    A, z = torch.tensor(problem.A), torch.tensor(problem.z)
    one = torch.ones((), dtype=torch.int64)
    ctx = Context(1, LR, Local(lr=LR), steps=one, samples=one, batch_size=one, copy=0 * one)
    algorithm = made(variant)
    after = algorithm.step({"theta": torch.tensor(w)}, {}, lambda theta, batch=0: A[batch] @ (theta - z[batch]), ctx)
    direction = problem.A[1] @ (w - ALPHA * problem.A[0] @ (w - problem.z[0]) - problem.z[1])
    if variant == "hessian-free":
        direction = direction - ALPHA * problem.A[2] @ direction
    np.testing.assert_allclose(after["theta"].numpy(), w - LR * direction, rtol=1e-10)
    assert algorithm.batches_per_step == (2 if variant == "first-order" else 3)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_of_one_sample_are_all_different_within_a_step(tmp_path, variant, engine):
    """A client with as many samples as batches: the result is that of some order of its samples, never of a repeat."""
    count, w, draw = (2 if variant == "first-order" else 3), np.array([0.5, -1.0]), np.random.default_rng(1)
    x, y = draw.standard_normal((count, 2)).astype(np.float32), draw.standard_normal(count).astype(np.float32)
    federation = Federation.from_clients({"only": {"train": (x, y), "test": (x, y)}})
    module = nn.Linear(2, 1, bias=False)
    module.load_state_dict({"weight": torch.tensor(w, dtype=torch.float32)[None]})
    local = Local(lr=LR, batch_size=1, steps=1)
    run = ENGINES[engine](Task(module, "mse"), federation, local, seed=0)
    runner = Runner(
        made(variant), LocalClients(run), Schedule(10, eval_every=0, checkpoint_every=0), RunFolder(tmp_path), {}
    )
    runner.step()

    def result(batches: tuple[int, ...]) -> np.ndarray:
        A, b = [2 * np.outer(x[i], x[i]) for i in batches], [2 * x[i] * y[i] for i in batches]
        direction = A[1] @ (w - ALPHA * (A[0] @ w - b[0])) - b[1]
        if variant == "hessian-free":
            direction = direction - ALPHA * A[2] @ direction
        return w - LR * direction

    fits = [o for o in itertools.product(range(count), repeat=count) if np.allclose(result(o), server(runner), 1e-4)]
    assert len(fits) == 1 and len(set(fits[0])) == count


@pytest.mark.parametrize("variant", VARIANTS)
def test_traffic_is_one_model_up_and_one_down(tmp_path, variant):
    runner = train(quadratics(), PerFedAvg(variant), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * 3 * 4}
    assert PerFedAvg.about.traffic == ("1", "1")


@pytest.mark.parametrize(
    ("settings", "range_"),
    [({"alpha": -0.1}, "at least 0"), ({"delta": 0.0}, "above 0"), ({"adapt_steps": -1}, "at least 0")],
)
def test_a_setting_out_of_range_is_refused(settings, range_):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=rf"{name} = {value}: must be {range_}"):
        PerFedAvg(**settings)
