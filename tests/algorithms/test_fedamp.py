import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

import personafl as pf
from personafl.algorithms import FedAMP, HeurFedAMP, JobInfo, Separate, message_passing
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.settings import Local
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, states, train

LR, STEPS = 0.05, 6
SIGMA, ALPHA, LAM = 20.0, 5.0, 8.0  # for the 4 clients of `quadratics()`: ρ = λ/α = 1.6, bound σ/3
EXPLICIT = FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM)
EXACT = {"lr": 0.1, "steps": 150}  # local steps that solve (6) to float32 precision


def close(found: np.ndarray, expected: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


# --- the oracle: equations (1), (5), (6), (7) in float64


def squared_distance(W: np.ndarray) -> np.ndarray:
    return np.array([[((a - b) ** 2).sum() for b in W] for a in W])


def attention(W: np.ndarray, sigma: float = SIGMA, alpha: float = ALPHA) -> np.ndarray:
    xi = alpha * np.exp(-squared_distance(W) / sigma) / sigma
    np.fill_diagonal(xi, 0.0)
    return xi + np.diag(1 - xi.sum(1))


def local_result(problem: Quadratics, m: int, u: np.ndarray, rho: float, steps: int = STEPS) -> np.ndarray:
    w = u
    for _ in range(steps):
        w = (w - LR * problem.A[m] @ (w - problem.z[m]) + LR * rho * u) / (1 + LR * rho)
    return w


def objective(problem: Quadratics, W: np.ndarray, factor: float) -> float:
    """Σ F_i + factor · Σ_{i<j} A(‖w_i − w_j‖²), up to a constant."""
    fit = sum(0.5 * (w - z) @ A @ (w - z) for w, z, A in zip(W, problem.z, problem.A, strict=True))
    pairs = squared_distance(W)[np.triu_indices(len(W), 1)]
    return float(fit + factor * (1 - np.exp(-pairs / SIGMA)).sum())


def slope(problem: Quadratics, W: np.ndarray, factor: float) -> np.ndarray:
    """The gradient of `objective`, by central differences."""
    steps = 1e-5 * np.eye(W.size).reshape(-1, *W.shape)
    rise = [objective(problem, W + s, factor) - objective(problem, W - s, factor) for s in steps]
    return np.array(rise) / 2e-5


def served(W: np.ndarray, round: int = 0) -> dict[str, torch.Tensor]:
    return {"models": torch.tensor(W, dtype=torch.float32), "round": torch.tensor(round)}


def weights(algorithm: FedAMP | HeurFedAMP, W: np.ndarray, round: int = 0) -> np.ndarray:
    return algorithm.report_server(served(W, round))["weights"].double().numpy()


def test_the_objective_goes_down_to_a_stationary_point_with_half_lambda_and_not_with_lambda(tmp_path):
    problem, values = quadratics(), []
    runner = train(problem, EXPLICIT, tmp_path, rounds=0, **EXACT)
    for _ in range(20):
        values.append(objective(problem, server(runner, "models"), LAM / 2))
        runner.step()
    assert (np.diff(values) < 1e-5).all() and values[0] - values[-1] > 1
    W = states(runner)["theta"]
    close(slope(problem, W, LAM / 2), np.zeros(12), atol=1e-4)
    assert np.abs(slope(problem, W, LAM)).max() > 0.1
    assert np.abs(slope(problem, W, 0.0)).max() > 0.1, "the coupling should be visible here"


def test_rounds_are_those_of_the_equations(tmp_path):
    problem = quadratics()
    runner = train(problem, EXPLICIT, tmp_path, rounds=0, lr=LR, steps=STEPS, start=np.ones(3))
    W = np.ones((4, 3))
    for _ in range(5):
        runner.step()
        U = attention(W) @ W
        W = np.stack([local_result(problem, m, U[m], LAM / ALPHA) for m in range(4)])
        close(server(runner, "models"), W)
        close(personal(runner), W)


def test_many_local_steps_solve_the_proximal_problem(tmp_path):
    """(A + ρI) w = A z + ρ u; in the first round u is the common start."""
    problem, start, rho = quadratics(), np.array([1.0, 2.0, 3.0]), LAM / ALPHA
    pairs = zip(problem.A, problem.z, strict=True)
    runner = train(problem, EXPLICIT, tmp_path, rounds=1, start=start, **EXACT)
    exact = [np.linalg.solve(A + rho * np.eye(3), A @ z + rho * start) for A, z in pairs]
    close(personal(runner), exact)


def random_models(seed: int, clients: int, scale: float, alike: bool) -> np.ndarray:
    W = scale * np.random.default_rng(seed).standard_normal((clients, 5))
    return np.tile(W[:1], (clients, 1)) if alike else W


models = st.builds(random_models, st.integers(0, 10**6), st.integers(1, 9), st.floats(1e-3, 1e3), st.booleans())
algorithms = [FedAMP(), FedAMP(sigma=1.0, alpha=0.125), FedAMP(sigma=2.0), HeurFedAMP(), HeurFedAMP(sigma=30.0)]


@pytest.mark.parametrize("algorithm", algorithms, ids=repr)
@settings(max_examples=40, deadline=None)
@given(W=models)
def test_rows_are_convex_combinations(algorithm, W):
    xi = weights(algorithm, W)
    assert xi.shape == (len(W), len(W)) and xi.min() >= -1e-6
    np.testing.assert_allclose(xi.sum(1), 1, atol=1e-5)
    if len(W) == 1:
        np.testing.assert_array_equal(xi, [[1.0]])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(2, 8), scale=st.floats(0.01, 100.0), share=st.floats(0.1, 1.0))
def test_left_out_sigma_and_alpha_follow_the_scale_of_the_models(seed, clients, scale, share):
    W, algorithm = random_models(seed, clients, 1.0, False), FedAMP(sigma_scale=0.5, alpha_fraction=share)
    xi = weights(algorithm, W)
    assert (1 - np.diag(xi)).max() == pytest.approx(share, rel=1e-4)
    close(weights(algorithm, scale * W), xi)
    apart = np.sort(squared_distance(W)[~np.eye(clients, dtype=bool)])
    sigma = 0.5 * apart[(len(apart) - 1) // 2]
    closeness = attention(W, sigma, 1.0) - np.diag(np.diag(attention(W, sigma, 1.0)))
    close(xi, attention(W, sigma, share / closeness.sum(1).max()))


def test_distances_of_models_close_to_each_other_and_far_from_zero():
    rng = np.random.default_rng(0)
    W = (100 * rng.standard_normal(2000) + 0.01 * rng.standard_normal((5, 2000))).astype(np.float32).astype(np.float64)
    sigma = float(np.median(squared_distance(W)))
    close(weights(FedAMP(sigma=sigma, alpha=sigma / 8), W), attention(W, sigma, sigma / 8), rtol=1e-4)


def test_weights_are_those_of_the_formula_and_the_pull_grows_as_alpha_decays():
    W = random_models(1, 4, 2.0, False)
    algorithm = FedAMP(sigma=SIGMA, alpha=ALPHA, lam=LAM, alpha_decay=0.5, alpha_decay_every=3)
    for round, alpha in ((0, ALPHA), (2, ALPHA), (3, ALPHA / 2), (7, ALPHA / 4)):
        close(weights(algorithm, W, round), attention(W, SIGMA, alpha))
        assert float(algorithm.send(served(W, round), torch.arange(4)).shared["pull"]) == pytest.approx(LAM / alpha)


def test_partial_participation_keeps_the_latest_model_of_everybody(tmp_path):
    problem, algorithm = quadratics(clients=6), FedAMP(sigma=SIGMA, alpha=2.0, lam=LAM)
    runner = train(problem, algorithm, tmp_path, rounds=0, lr=LR, steps=STEPS, activity=0.34)
    W, before = np.zeros((6, 3)), np.zeros(6)
    for _ in range(2):
        runner.step()
        (active,) = np.nonzero(runner.active - before)
        U, before = attention(W, SIGMA, 2.0) @ W, runner.active.copy()
        for m in active:
            W[m] = local_result(problem, m, U[m], LAM / 2.0)
        close(server(runner, "models"), W)
    idle = runner.active == 0
    assert 0 < idle.sum() < 6
    close(personal(runner)[idle], np.tile(W.mean(0), (idle.sum(), 1)))
    close(personal(runner)[~idle], W[~idle])


@pytest.mark.parametrize("algorithm", [FedAMP(), HeurFedAMP()], ids=["fedamp", "heurfedamp"])
def test_models_of_clients_that_were_never_active_do_not_depend_on_the_memory(tmp_path, algorithm):
    runner = train(quadratics(clients=8), algorithm, tmp_path, rounds=2, lr=LR, activity=0.5, start=np.ones(3))
    whole = personal(runner)
    runner.clients.engine.memory = 0  # one client at a time
    close(personal(runner), whole)


@pytest.mark.parametrize("algorithm", [FedAMP(pull=0.0), HeurFedAMP(pull=0.0)], ids=["fedamp", "heurfedamp"])
def test_one_client_without_pull_is_separate(tmp_path, algorithm):
    problem = quadratics(clients=1)
    alone = personal(train(problem, Separate(), tmp_path, rounds=3))
    np.testing.assert_array_equal(personal(train(problem, algorithm, tmp_path, rounds=3)), alone)


@pytest.mark.parametrize("pull", [0.0, 2.0])
def test_a_tiny_alpha_is_separate_with_a_pull_to_the_own_model(tmp_path, pull):
    problem, W = quadratics(), np.zeros((4, 3))
    for _ in range(3):
        W = np.stack([local_result(problem, m, W[m], pull) for m in range(4)])
    algorithm = FedAMP(sigma=SIGMA, alpha=1e-9, pull=pull)
    close(personal(train(problem, algorithm, tmp_path, rounds=3, lr=LR, steps=STEPS)), W)


@pytest.mark.parametrize("algorithm", [FedAMP(), EXPLICIT, HeurFedAMP()], ids=["auto", "explicit", "heurfedamp"])
def test_identical_clients_stay_identical(tmp_path, algorithm):
    problem = quadratics(alike=True)
    W = personal(train(problem, algorithm, tmp_path, rounds=4, lr=0.1, steps=STEPS))
    np.testing.assert_allclose(W, np.tile(W[0], (4, 1)), atol=1e-6)
    assert np.abs(W[0] - problem.z[0]).max() < np.abs(problem.z[0]).max()


def test_weights_of_three_clients_by_hand():
    """w = (1,0), (3,4), (0,2): cosines .6, 0, .8; σ = 2.

    Row 0: e^1.2 = 3.320117, e^0 = 1: shares .768525, .231475; times .6: .461115, .138885.
    Row 1: e^1.2 = 3.320117, e^1.6 = 4.953032: shares .401312, .598688; times .6: .240787, .359213.
    Row 2: e^0 = 1, e^1.6 = 4.953032: shares .167982, .832018; times .6: .100789, .499211.
    """
    expected = [[0.4, 0.461115, 0.138885], [0.240787, 0.4, 0.359213], [0.100789, 0.499211, 0.4]]
    W = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]])
    close(weights(HeurFedAMP(self_weight=0.4, sigma=2.0), W), expected)
    ids = torch.tensor([2, 0])
    sent = HeurFedAMP(self_weight=0.4, sigma=2.0, pull=3.0).send(served(W, 5), ids)
    np.testing.assert_allclose(sent.each["u"].numpy(), np.array(expected)[ids] @ W, rtol=1e-5)
    assert float(sent.shared["pull"]) == 3.0


@pytest.mark.parametrize("sigma", [0.0, 5.0, None])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
def test_the_own_weight_is_on_the_diagonal(sigma, share):
    xi = weights(HeurFedAMP(self_weight=share, sigma=sigma), random_models(3, 5, 1.0, False))
    np.testing.assert_allclose(np.diag(xi), share, atol=1e-6)
    if sigma == 0:
        np.testing.assert_allclose(xi[~np.eye(5, dtype=bool)], (1 - share) / 4, rtol=1e-5)


def test_identical_models_have_uniform_weights():
    W = random_models(0, 4, 1.0, True)
    close(weights(HeurFedAMP(self_weight=0.4), W), np.full((4, 4), 0.2) + 0.2 * np.eye(4), rtol=1e-3)
    close(weights(FedAMP(alpha_fraction=0.8), W), np.full((4, 4), 0.8 / 3) - (0.8 / 3 - 0.2) * np.eye(4), rtol=1e-4)


def test_left_out_sigma_is_the_contrast_over_the_spread_of_the_cosines():
    W = random_models(4, 5, 1.0, False)
    unit = W / np.linalg.norm(W, axis=1, keepdims=True)
    spread = (unit @ unit.T)[~np.eye(5, dtype=bool)].std()
    close(weights(HeurFedAMP(contrast=2.0), W), weights(HeurFedAMP(sigma=2.0 / spread), W))


def three_groups() -> Federation:
    """18 clients; 80% of a client's digits are from the classes of its group."""
    digits, rng = load_digits(), np.random.default_rng(0)
    groups = [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]
    piles = [list(rng.permutation(np.flatnonzero(digits.target == c))) for c in range(10)]
    data = {}
    for m in range(18):
        own = groups[m // 6]
        rest = [c for c in range(10) if c not in own]
        rows = [piles[c].pop() for i in range(80) for c in [own[i % len(own)] if i < 64 else rest[i % len(rest)]]]
        data[f"{m // 6}-{m}"] = ((digits.data[rows] / 16).astype(np.float32), digits.target[rows])
    return Federation.from_clients(data, classes=10)


@pytest.mark.parametrize("algorithm", [FedAMP(), HeurFedAMP()], ids=["fedamp", "heurfedamp"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_three_groups_are_three_blocks(tmp_path, algorithm, model):
    torch.manual_seed(0)
    net = nn.Linear(64, 10) if model == "logistic" else nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    options = {"rounds": 25, "eval_every": 10, "out": tmp_path / "run", "threads": 1, "progress": False}
    run = pf.train(three_groups(), net, algorithm, **options)
    written = sorted((run.path / "evaluations").glob("round-*.safetensors"))
    assert len(written) == 3, "rounds 10, 20 and 25 are evaluated"
    for path in written:
        np.testing.assert_allclose(load_file(path)["weights"].sum(1), 1, atol=1e-5)
    xi, group = load_file(written[-1])["weights"].numpy(), np.arange(18) // 6
    alike = group[:, None] == group
    assert xi[alike & ~np.eye(18, dtype=bool)].mean() >= 3 * xi[~alike].mean()


@pytest.mark.parametrize("algorithm", [EXPLICIT, HeurFedAMP()], ids=["fedamp", "heurfedamp"])
def test_traffic_is_one_model_up_and_one_model_with_the_pull_down(tmp_path, algorithm):
    runner = train(quadratics(), algorithm, tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * 3 * 4, "bytes_down": 3 * 4 * (3 * 4 + 4)}


def test_alpha_beyond_its_bound_is_refused():
    setting = JobInfo((("weight", 3),), 5, Local(), False)
    FedAMP(sigma=2.0, alpha=0.5).prepare(setting)
    with pytest.raises(ConfigError, match=r"alpha = 0.51: must be at most σ/\(m−1\) = 0.5 for 5 clients.*ξ_ii"):
        FedAMP(sigma=2.0, alpha=0.51).prepare(setting)
    with pytest.raises(ConfigError, match=r"alpha is given without algorithm.sigma.*σ/\(m−1\)"):
        FedAMP(alpha=0.1)


WRONG = [
    (FedAMP, [("sigma", 0), ("lam", 0), ("sigma_scale", 0), ("alpha_fraction", 0), ("alpha_fraction", 1.1)]),
    (FedAMP, [("alpha", -1), ("alpha_decay", 0), ("alpha_decay", 1.5), ("alpha_decay_every", 0), ("pull", -1)]),
    (HeurFedAMP, [("self_weight", 1.0), ("self_weight", -0.1), ("sigma", -1), ("contrast", -1), ("pull", -1)]),
]


@pytest.mark.parametrize(("kind", "name", "value"), [(kind, *pair) for kind, pairs in WRONG for pair in pairs])
def test_values_out_of_range_are_refused(kind, name, value):
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} = {value}: must be"):
        kind(**{name: value})


def test_weights_of_very_many_clients_are_not_written_down():
    for clients, names in ((3, {"weights"}), (message_passing.REPORTED + 1, set())):
        assert set(FedAMP().report_server(FedAMP().new_server(torch.zeros(2), clients))) == names
