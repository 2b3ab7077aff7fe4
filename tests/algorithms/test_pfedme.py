import numpy as np
import pytest

from personafl.algorithms import PFedMe
from personafl.errors import ConfigError
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, states, train

LR, STEPS, LAM = 0.3, 3, 2.0
# The inner problem has curvature λ + eig(A), here in [2.6, 5.4]: forty steps of 0.2 solve it to float32 precision.
EXACT = {"lam": LAM, "personal_lr": 0.2, "inner_steps": 40}


def proximal_point(problem: Quadratics, m: int, w: np.ndarray, lam: float = LAM) -> np.ndarray:
    """argmin F(θ) + λ/2 ‖θ − w‖², that is (A + λI) θ = A z + λ w."""
    return np.linalg.solve(problem.A[m] + lam * np.eye(len(w)), problem.A[m] @ problem.z[m] + lam * w)


def envelope(problem: Quadratics, w: np.ndarray) -> float:
    """The mean over clients of min_θ F(θ) + λ/2 ‖θ − w‖², up to a constant."""
    total = 0.0
    for m, z in enumerate(problem.z):
        theta = proximal_point(problem, m, w)
        total += (theta - z) @ problem.A[m] @ (theta - z) / 2 + LAM / 2 * (theta - w) @ (theta - w)
    return total / len(problem.z)


def envelope_minimizer(problem: Quadratics) -> np.ndarray:
    """Σ λ (w − θ_i(w)) = 0, with w − θ = (A + λI)⁻¹ A (w − z)."""
    pull = [np.linalg.solve(A + LAM * np.eye(len(A)), A) for A in problem.A]
    return np.linalg.solve(sum(pull), sum(P @ z for P, z in zip(pull, problem.z, strict=True)))


def by_hand(problem, cohorts, start, personal_lr, inner_steps, beta, steps=STEPS):
    """w, and all w_i and θ_i of the last time that a client took part (nan if never)."""
    w = start.astype(float)
    w_i, theta_i = np.full(problem.z.shape, np.nan), np.full(problem.z.shape, np.nan)
    for cohort in cohorts:
        for i in cohort:
            local, theta = w, w
            for _ in range(steps):
                for _ in range(inner_steps):
                    slope = problem.A[i] @ (theta - problem.z[i])
                    theta = theta - personal_lr * (slope + LAM * (theta - local))
                local = local - LR * LAM * (local - theta)
            w_i[i], theta_i[i] = local, theta
        w = (1 - beta) * w + beta * sum(w_i[i] for i in cohort) / len(cohort)
    return w, w_i, theta_i


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("beta", [1.0, 0.6, 1.5])
def test_every_round_equals_the_algorithm_by_hand_and_theta_is_the_personalized_model(tmp_path, beta, engine):
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    algorithm = PFedMe(LAM, personal_lr=0.1, inner_steps=4, beta=beta)
    runner = train(problem, algorithm, tmp_path, 3, LR, STEPS, start, engine=engine)
    w, w_i, theta = by_hand(problem, [range(4)] * 3, start, 0.1, 4, beta)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), theta, rtol=1e-4, atol=1e-5)
    for other in (w, w_i, start):
        assert np.abs(personal(runner) - other).max(1).min() > 0.01, "θ should be told apart from w_i, w and θ0 here"


def test_with_partial_participation_it_equals_the_algorithm_by_hand(tmp_path):
    problem, start = quadratics(clients=10), np.array([1.0, -2.0, 3.0])
    algorithm = PFedMe(LAM, personal_lr=0.1, inner_steps=4, beta=0.6)
    runner = train(problem, algorithm, tmp_path, 4, LR, STEPS, start, activity=0.2)
    assert runner.active.min() == 0 and runner.active.max() >= 2
    w, _, theta = by_hand(problem, [runner.schedule.cohort(0, r, 10) for r in range(1, 5)], start, 0.1, 4, 0.6)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), np.where(np.isnan(theta), w, theta), rtol=1e-4, atol=1e-5)


def test_with_many_inner_steps_theta_is_the_proximal_point_of_w(tmp_path):
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    runner = train(problem, PFedMe(**EXACT), tmp_path, 1, LR, 1, start)
    exact = np.array([proximal_point(problem, m, start) for m in range(4)])
    np.testing.assert_allclose(personal(runner), exact, rtol=1e-4, atol=1e-5)
    assert np.abs(exact - problem.z).max() > 0.1, "the proximal term should make a difference here"


def test_with_many_inner_steps_theta_is_the_proximal_point_of_w_i_in_later_steps(tmp_path):
    """w_i ← (1 − ηλ) w_i + ηλ prox(w_i), and θ belongs to the w_i before its last move."""
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    runner = train(problem, PFedMe(**EXACT), tmp_path, 1, LR, STEPS, start)
    ends = []
    for m in range(4):
        w_i = start
        for _ in range(STEPS):
            theta = proximal_point(problem, m, w_i)
            w_i = w_i - LR * LAM * (w_i - theta)
        np.testing.assert_allclose(personal(runner)[m], theta, rtol=1e-4, atol=1e-5)
        ends.append(w_i)
    np.testing.assert_allclose(server(runner), np.mean(ends, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_the_fixed_point_minimizes_the_average_of_the_moreau_envelopes(tmp_path, beta):
    """One local step a round, so that there is no drift; the minimum does not depend on β."""
    problem = quadratics()
    runner = train(problem, PFedMe(**EXACT, beta=beta), tmp_path, 40, LR, 1)
    w = envelope_minimizer(problem)
    np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-4)
    for direction in np.vstack([np.eye(3), -np.eye(3)]):
        assert envelope(problem, server(runner)) < envelope(problem, server(runner) + 0.01 * direction)
    np.testing.assert_allclose(personal(runner), [proximal_point(problem, m, w) for m in range(4)], atol=1e-3)
    average_optimum = np.linalg.solve(problem.A.sum(0), np.einsum("mij,mj->i", problem.A, problem.z))
    assert np.abs(w - average_optimum).max() > 0.05, "the envelopes should have another minimum than the losses here"


def test_when_lr_times_lambda_is_one_the_server_averages_proximal_points(tmp_path):
    problem, start = quadratics(), np.array([1.0, -2.0, 3.0])
    runner = train(problem, PFedMe(**EXACT), tmp_path, 1, 1 / LAM, 1, start)
    points = [proximal_point(problem, m, start) for m in range(4)]
    np.testing.assert_allclose(server(runner), np.mean(points, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clients", [1, 4])
def test_one_client_or_identical_clients_end_at_their_optimum(tmp_path, clients):
    """A Moreau envelope has its minimum where the function has it, and there θ = w."""
    problem = quadratics(clients=clients, alike=True)
    runner = train(problem, PFedMe(LAM, personal_lr=0.2, inner_steps=5), tmp_path, 40, LR, 5)
    np.testing.assert_allclose(server(runner), problem.z[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(personal(runner), problem.z, rtol=1e-3, atol=1e-3)


def test_a_client_that_was_never_active_has_the_global_model(tmp_path):
    runner = train(quadratics(clients=10), PFedMe(), tmp_path, 2, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() >= 8
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(server(runner), (idle.sum(), 1)))
    np.testing.assert_array_equal(personal(runner)[~idle], states(runner)["theta"][~idle])


def test_traffic_is_one_model_up_and_one_down(tmp_path):
    runner = train(quadratics(), PFedMe(), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * 3 * 4}
    assert PFedMe.about.traffic == ("1", "1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": 0.0}, r"lam = 0.0: must be above 0"),
        ({"lam": -1.0}, r"lam = -1.0: must be above 0"),
        ({"personal_lr": 0.0}, r"personal_lr = 0.0: must be above 0"),
        ({"lam": 20.0, "personal_lr": 0.1}, r"personal_lr = 0.1: must be below 2/λ"),
        ({"inner_steps": 0}, r"inner_steps = 0: must be at least 1"),
        ({"beta": 0.0}, r"beta = 0.0: must be above 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PFedMe(**settings)


@pytest.mark.parametrize(("lr", "refused"), [(0.5, True), (0.6, True), (0.49, False)])
def test_a_local_lr_of_two_over_lambda_or_more_is_refused(tmp_path, lr, refused):
    algorithm = PFedMe(lam=4.0)
    if refused:
        with pytest.raises(ConfigError, match=rf"local\.lr = {lr}: must be below 2/λ = 0\.5"):
            train(quadratics(), algorithm, tmp_path, 0, lr)
    else:
        train(quadratics(), algorithm, tmp_path, 0, lr)
