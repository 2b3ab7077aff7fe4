"""FedAMP's choices: other functions A, the schedules of its theorems, random starts, u_i, and its objective."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy.integrate import quad
from torch import nn

import personafl as pf
from personafl.algorithms import FedAMP, HeurFedAMP, JobInfo
from personafl.algorithms.attention import attention, slope_
from personafl.errors import ConfigError
from personafl.settings import Local
from tests.algorithms.test_fedamp import (
    LR,
    STEPS,
    close,
    local_result,
    random_models,
    served,
    squared_distance,
    weights,
)
from tests.oracles.quadratic import Quadratics, losses, personal, quadratics, server, states, train

SIGMA, LAM, ALPHA = 20.0, 6.0, 5.0

# --- the oracle: A′ as the papers define it, with their λ = 1, and A as its integral

DEFINED = {
    "exp": lambda x, a: np.exp(-x),
    "mcp": lambda x, a: np.maximum(1 - x / a, 0),
    "scad": lambda x, a: np.where(x <= 1, 1.0, np.maximum(a - x, 0) / (a - 1)),
}
kinds = pytest.mark.parametrize("kind", DEFINED)


def xi(W: np.ndarray, kind: str, a: float, alpha: float = ALPHA, sigma: float = SIGMA) -> np.ndarray:
    found = alpha * DEFINED[kind](squared_distance(W) / sigma, a) / sigma
    np.fill_diagonal(found, 0.0)
    return found + np.diag(1 - found.sum(1))


def coupling(W: np.ndarray, kind: str, a: float) -> float:
    """Σ_{i<j} A."""
    apart = squared_distance(W)[np.triu_indices(len(W), 1)] / SIGMA
    return sum(quad(DEFINED[kind], 0, x, args=(a,), points=sorted({min(1.0, x), min(a, x)}))[0] for x in apart)


def rounds(problem: Quadratics, W: np.ndarray, alphas: list[float], kind: str = "exp", a: float = 3.7) -> list[Any]:
    """(U, W) after each round."""
    found = []
    for alpha in alphas:
        U = xi(W, kind, a, alpha) @ W
        W = np.stack([local_result(problem, m, U[m], LAM / alpha) for m in range(len(U))])
        found.append((U, W))
    return found


@kinds
@settings(max_examples=60, deadline=None)
@given(x=st.floats(0, 12), y=st.floats(0, 12), a=st.floats(2.01, 10))
def test_attention_is_the_integral_of_its_slope_grows_and_is_concave(kind, x, y, a):
    def value(at: float) -> float:
        return float(attention(kind, torch.tensor(at, dtype=torch.float64), a))

    assert value(0.0) == 0 and value(max(x, y)) >= value(min(x, y))
    assert value((x + y) / 2) >= (value(x) + value(y)) / 2 - 1e-12
    expected = quad(DEFINED[kind], 0, x, args=(a,), points=sorted({min(1.0, x), min(a, x)}))[0]
    assert value(x) == pytest.approx(expected, rel=1e-7, abs=1e-10)


@kinds
@pytest.mark.parametrize("a", [2.5, 3.7])
def test_the_slope_is_that_of_autograd_and_of_differences_and_1_at_0(kind, a):
    x = torch.linspace(0.0, 6.0, 241, dtype=torch.float64)[1:] + 0.001  # beside the knees at 1 and a
    at = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(attention(kind, at, a).sum(), at)
    found = slope_(kind, x.clone(), a)
    torch.testing.assert_close(found, by_autograd)
    differences = (attention(kind, x + 1e-5, a) - attention(kind, x - 1e-5, a)) / 2e-5
    torch.testing.assert_close(found, differences, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found, DEFINED[kind](x.numpy(), a), atol=1e-12)
    assert float(slope_(kind, torch.zeros(1), a)) == 1
    beyond = slope_(kind, torch.tensor([a + 0.1]), a)
    assert (beyond > 0) == (kind == "exp")


@kinds
def test_weights_follow_the_chosen_function(kind):
    W = random_models(1, 6, 2.0, False)
    algorithm = FedAMP(sigma=SIGMA, alpha=4.0, lam=LAM, attention=kind, concavity=2.2)
    close(weights(algorithm, W), xi(W, kind, 2.2, alpha=4.0))
    far = squared_distance(W) > 2.2 * SIGMA
    assert 0 < far.sum() < 30, "some models should be too far apart, and some not"
    assert (weights(algorithm, W)[far] > 0).all() == (kind == "exp")


@pytest.mark.parametrize("kind", ["mcp", "scad"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_left_out_sigma_and_alpha_keep_rows_convex_with_every_function(kind, scale):
    for W in (random_models(3, 7, scale, False), random_models(3, 7, scale, True)):
        found = weights(FedAMP(attention=kind, alpha_fraction=0.9), W)
        assert found.min() >= -1e-6 and (1 - np.diag(found)).max() == pytest.approx(0.9, rel=1e-4)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


def test_models_that_are_all_too_far_apart_stay_alone():
    W = 1e3 * random_models(2, 4, 1.0, False)
    np.testing.assert_array_equal(weights(FedAMP(sigma=1.0, attention="mcp"), W), np.eye(4))


@pytest.mark.parametrize("kind", ["mcp", "scad"])
def test_rounds_with_another_function_are_those_of_the_equations(tmp_path, kind):
    problem = quadratics()
    algorithm = FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM, attention=kind, concavity=2.1)
    runner = train(problem, algorithm, tmp_path, rounds=4, lr=LR, steps=STEPS, start=np.ones(3))
    close(personal(runner), rounds(problem, np.ones((4, 3)), 4 * [ALPHA], kind, 2.1)[-1][1])


# --- the schedules of the theorems


@pytest.mark.parametrize(
    ("schedule", "alphas"),
    [({"alpha_schedule": "root", "horizon": 4}, 4 * [3.0]), ({"alpha_schedule": "harmonic"}, [6.0, 3.0, 2.0, 1.5])],
    ids=["root", "harmonic"],
)
def test_steps_of_the_theorems(tmp_path, schedule, alphas):
    """λ = 6: 6/√4 in each of four rounds; 6/k in round k. The pull λ/α_k is √4, or k."""
    problem, algorithm = quadratics(), FedAMP(sigma=SIGMA, lam=LAM, **schedule)
    runner = train(problem, algorithm, tmp_path, rounds=0, lr=LR, steps=STEPS, start=np.ones(3))
    for alpha, (_, W) in zip(alphas, rounds(problem, np.ones((4, 3)), alphas), strict=True):
        sent = algorithm.send(runner.server, torch.arange(4))
        assert float(sent.shared["pull"]) == pytest.approx(LAM / alpha)
        runner.step()
        close(server(runner, "models"), W)


def test_schedules_of_the_theorems_need_sigma_and_lambda_and_nothing_else():
    for schedule in ({"alpha_schedule": "root", "horizon": 9}, {"alpha_schedule": "harmonic"}):
        for missing in ({"lam": 1.0}, {"sigma": 1.0}):
            with pytest.raises(ConfigError, match=r"alpha_schedule = .* needs algorithm.sigma and algorithm.lam"):
                FedAMP(**schedule, **missing)
        for besides in ({"alpha": 0.1}, {"alpha_decay": 0.5}):
            with pytest.raises(ConfigError, match=r"leave out algorithm\.alpha and algorithm\.alpha_decay"):
                FedAMP(**schedule, sigma=1.0, lam=0.1, **besides)
    for schedule in ({"alpha_schedule": "root"}, {"alpha_schedule": "root", "horizon": 0}, {"horizon": 9}):
        with pytest.raises(ConfigError, match=r"algorithm\.horizon = .*: must be at least 1 round with"):
            FedAMP(sigma=1.0, lam=0.1, **schedule)


def test_a_first_step_beyond_the_bound_is_refused():
    job = JobInfo((("weight", 3),), 5, Local(), False)
    FedAMP(sigma=4.0, lam=3.0, alpha_schedule="root", horizon=9).prepare(job)
    with pytest.raises(ConfigError, match=r"lam = 3.0: the α_k of round 1 = 1.5: must be at most σ/\(m−1\) = 1 for 5"):
        FedAMP(sigma=4.0, lam=3.0, alpha_schedule="root", horizon=4).prepare(job)
    with pytest.raises(ConfigError, match=r"the α_k of round 1 = 3.0: must be at most σ/\(m−1\) = 1 for 5 clients"):
        FedAMP(sigma=4.0, lam=3.0, alpha_schedule="harmonic").prepare(job)


@pytest.mark.parametrize(("kind", "least"), [("scad", 2), ("mcp", 0)])
def test_a_concavity_out_of_range_is_refused(kind, least):
    FedAMP(attention=kind, concavity=least + 0.1)
    with pytest.raises(ConfigError, match=rf"algorithm\.concavity = {least}: must be above {least}"):
        FedAMP(attention=kind, concavity=least)


@pytest.mark.parametrize("wrong", [{"attention": "lasso"}, {"starts": "far"}, {"alpha_schedule": "k"}])
def test_unknown_words_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(wrong))}"):
        pf.train(quadratics().federation, nn.Linear(3, 1), FedAMP(**wrong), rounds=1, progress=False)


# --- random starts, and u_i as the personalized model


def test_random_starts_differ_between_clients_and_follow_from_the_initial_weights(tmp_path):
    problem, algorithm = quadratics(), FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM, starts="random")
    runner = train(problem, algorithm, tmp_path, rounds=0, lr=LR, steps=STEPS, start=np.array([1.0, 2.0, 4.0]))
    W = server(runner, "models")
    np.testing.assert_array_equal(W[0], [1.0, 2.0, 4.0])
    assert len(np.unique(W)) == 12
    again = train(problem, algorithm, tmp_path / "again", rounds=0, start=np.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(server(again, "models"), W)
    for _, expected in rounds(problem, W, 3 * [ALPHA]):
        runner.step()
        close(personal(runner), expected)


@pytest.mark.parametrize("kind", [FedAMP, HeurFedAMP])
def test_random_starts_have_the_mean_and_the_spread_of_each_of_the_pieces(kind):
    job = JobInfo((("weight", 4000), ("bias", 3000), ("norm", 5)), 6, Local(), False)
    theta0 = torch.cat([3 + 0.5 * torch.randn(4000), -1 + 2 * torch.randn(3000), torch.ones(5)])
    models = kind(starts="random").prepare(job).new_server(theta0, 6)["models"]
    torch.testing.assert_close(models[0], theta0)
    for piece, mean, spread in zip(models[1:].split([4000, 3000, 5], 1), (3, -1, 1), (0.5, 2, 0), strict=True):
        torch.testing.assert_close(piece.mean(1), torch.full((5,), float(mean)), atol=0.2, rtol=0)
        torch.testing.assert_close(piece.std(1), torch.full((5,), float(spread)), atol=0.2, rtol=0)
    assert not torch.equal(models[1], models[2])


def test_u_is_what_the_client_got_in_its_last_round(tmp_path):
    problem, start = quadratics(), np.array([1.0, -1.0, 2.0])
    algorithm = FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM, personalized="u")
    runner = train(problem, algorithm, tmp_path, rounds=3, lr=LR, steps=STEPS, start=start)
    U, W = rounds(problem, np.tile(start, (4, 1)), 3 * [ALPHA])[-1]
    close(personal(runner), U)
    close(states(runner)["theta"], W)
    close(server(runner, "models"), W)
    assert np.abs(U - W).max() > 0.1


# --- the objective (1)


def evaluated(run: pf.Run) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The column `objective` and what the server reports, of each evaluation."""
    written = [load_file(path) for path in sorted(Path(run.path / "evaluations").glob("round-*.safetensors"))]
    return [(run.clients(k + 1).column("objective").to_numpy(), tensors) for k, tensors in enumerate(written)]


def run(algorithm: FedAMP, problem: Quadratics, folder: Path, count: int, lr: float, steps: int) -> pf.Run:
    module = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(module.weight)
    options = {"rounds": count, "eval_every": 1, "threads": 1, "progress": False, "out": folder / "run"}
    return pf.train(problem.federation, module, algorithm, local=Local(lr=lr, batch_size=0, steps=steps), **options)


def fits(problem: Quadratics, W: np.ndarray) -> np.ndarray:
    return np.array([losses(problem, w)[m] for m, w in enumerate(W)])


@kinds
def test_the_objective_is_that_of_equation_1(tmp_path, kind):
    problem = quadratics()
    algorithm = FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM, attention=kind, concavity=2.1, objective=True)
    found = evaluated(run(algorithm, problem, tmp_path, 4, LR, STEPS))
    expected = rounds(problem, np.zeros((4, 3)), 4 * [ALPHA], kind, 2.1)
    for (mine, tensors), (_, W) in zip(found, expected, strict=True):
        close(mine, fits(problem, W))
        close(tensors["attention"], coupling(W, kind, 2.1))
        assert (tensors["lam"], tensors["alpha"], tensors["sigma"]) == (LAM, ALPHA, SIGMA)
    assert 0.1 < tensors["attention"] < 6 * coupling(np.array([[0.0], [1e3]]), kind, 2.1)


def test_the_objective_with_half_lambda_goes_down_in_every_round(tmp_path):
    algorithm = FedAMP(sigma=SIGMA, alpha=1.0, lam=LAM, objective=True)
    found = evaluated(run(algorithm, quadratics(), tmp_path, 25, 0.1, 60))
    values = np.array([float(mine.sum() + LAM / 2 * tensors["attention"]) for mine, tensors in found])
    assert (np.diff(values) < 1e-5).all() and values[0] - values[-1] > 1


def test_a_left_out_lambda_is_the_pull_times_alpha(tmp_path):
    found = evaluated(run(FedAMP(pull=0.3, objective=True), quadratics(), tmp_path, 2, LR, STEPS))
    for _, tensors in found:
        off = tensors["weights"][~np.eye(4, dtype=bool)].astype(np.float64)
        assert tensors["lam"] == pytest.approx(0.3 * float(tensors["alpha"]), rel=1e-5)
        # ξ = (α/σ) e^{−d/σ} and A = 1 − e^{−d/σ}: the sum over pairs of A follows from the weights.
        total = 6 - float(tensors["sigma"]) / float(tensors["alpha"]) * off.sum() / 2
        assert float(tensors["attention"]) == pytest.approx(total, rel=1e-4)


def test_without_it_nothing_more_is_reported():
    algorithm = FedAMP()
    assert algorithm.evaluation_program(True) is None and algorithm.report({}, {"u": torch.zeros(3)}) == {}
    assert set(algorithm.report_server(served(np.eye(3)))) == {"weights"}
