"""FedALA against plain torch in float64, against the best mixture there is, and against FedAvg."""

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import nn

from personafl.algorithms import FedALA, FedAvg
from personafl.errors import ConfigError
from tests.oracles.parts import (
    HEAD,
    PARAMETERS,
    data,
    descended,
    gradient,
    initial,
    mean,
    model,
    personal,
    start,
    trained,
    vector,
    vectors,
)
from tests.oracles.quadratic import personal as linear_models
from tests.oracles.quadratic import quadratics, states, train

UPPER = {1: HEAD, 2: ("2.weight", "2.bias", *HEAD), 3: tuple(PARAMETERS)}


def oracle(layers: int, lr: float, start_steps: int, weight_steps: int, rounds: int = 4) -> np.ndarray:
    names, sent, mine = UPPER[layers], initial(), [initial()] * 3
    W = [{n: torch.ones_like(sent[n]) for n in names} for _ in range(3)]

    def mixed(m):
        return {n: mine[m][n] + (v - mine[m][n]) * W[m][n] if n in names else v for n, v in sent.items()}

    for round in range(rounds):
        found = []
        for m in range(3):
            now = mixed(m)
            for _ in range((0, start_steps)[round] if round < 2 else weight_steps):
                slope = gradient(now, m)
                W[m] = {n: (W[m][n] - lr * slope[n] * (sent[n] - mine[m][n])).clamp(0, 1) for n in names}
                now = mixed(m)
            found.append(descended(now, m))
        sent, mine = mean(found, True), found
    return vectors(mine)


@pytest.mark.parametrize(("layers", "engine"), [(1, "stacked"), (2, "stacked"), (3, "stacked"), (2, "loop")])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, layers, engine):
    algorithm = FedALA(layers=layers, weight_lr=5.0, start_steps=6, weight_steps=2)
    run = trained(algorithm, tmp_path, rounds=4, engine=engine)
    np.testing.assert_allclose(personal(run), oracle(layers, 5.0, 6, 2), rtol=1e-4, atol=1e-5)
    W = run.clients.store.get(np.arange(3))["W"]
    assert W.shape[1] == sum(PARAMETERS[n] for n in UPPER[layers])
    assert W.min() == 0 and W.max() == 1 and ((0 < W) & (W < 1)).any()
    assert (run.gradients == 4 * 4 + 6 + 2 * 2).all()


def test_in_its_second_round_it_finds_the_best_mixture(tmp_path):
    """On quadratic losses: least squares over W in the unit box. (Local steps are too short to matter.)"""
    problem = quadratics()
    first = train(problem, FedALA(), tmp_path / "a", rounds=1, lr=0.2, steps=3)
    sent, mine = first.server["theta"].double().numpy(), linear_models(first)
    curvature = max(np.linalg.eigvalsh(problem.A[m] * np.outer(sent - mine[m], sent - mine[m])).max() for m in range(4))
    algorithm = FedALA(weight_lr=1 / curvature, start_steps=300)
    run = train(problem, algorithm, tmp_path / "b", rounds=1, lr=0.2, steps=3)
    run.clients.engine.local = type(run.clients.engine.local)(lr=1e-12, batch_size=0, steps=1)
    run.step()
    W = states(run)["W"]
    for m in range(4):
        root, apart = np.linalg.cholesky(problem.A[m]).T, sent - mine[m]
        best = lsq_linear(root * apart, root @ (problem.z[m] - mine[m]), bounds=(0, 1)).x
        np.testing.assert_allclose(linear_models(run)[m], mine[m] + apart * best, atol=0.02)
        assert ((W[m] == 0) == (best < 1e-6)).all()
    assert 0 < (W == 0).sum() < W.size and np.abs(sent - mine).max() > 0.5


@pytest.mark.parametrize("options", [{}, {"batch_size": 4, "clients": 6, "activity": 0.5}])
def test_with_range_0_it_is_fedavg_bit_for_bit(tmp_path, options, step_by_step):
    one, two = (trained(a, tmp_path / a.name, rounds=4, **options) for a in (FedALA(layers=0), FedAvg()))
    assert one.server["theta"].equal(two.server["theta"])
    np.testing.assert_array_equal(personal(one), personal(two))
    np.testing.assert_array_equal(one.gradients, two.gradients)


def test_with_rate_0_it_is_fedavg(tmp_path):
    one, two = (trained(a, tmp_path / a.name, rounds=4) for a in (FedALA(weight_lr=0.0, layers=2), FedAvg()))
    np.testing.assert_allclose(personal(one), personal(two), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("local", [{"optimizer": "adam", "lr": 0.01}, {"momentum": 0.9, "lr": 0.05}])
def test_the_optimizer_waits_until_the_weights_are_trained(tmp_path, local):
    """Two rounds of one client that is alone (Θ = θ_i, so that W does nothing) are torch's, with a fresh optimizer."""
    run = trained(FedALA(start_steps=3), tmp_path, rounds=2, clients=1, **local)
    net, (x, y) = model(), (torch.tensor(part) for part in data(0))
    for _ in range(2):
        kind = torch.optim.Adam if "optimizer" in local else torch.optim.SGD
        settings = {k: v for k, v in local.items() if k != "optimizer"}
        optimizer = kind(net.parameters(), **settings)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    np.testing.assert_allclose(personal(run)[0], vector(net.state_dict()), rtol=1e-4, atol=1e-5)


def test_who_is_active_for_the_first_time_has_nothing_to_mix(tmp_path):
    run = trained(FedALA(start_steps=5, weight_steps=2), tmp_path, rounds=6, clients=5, activity=0.4)
    more = np.select([run.active < 2, run.active >= 2], [0, 5 + 2 * (run.active - 2)])
    assert {*run.active} >= {1, 2, 3}
    np.testing.assert_array_equal(run.gradients, 4 * run.active + more)
    never = trained(FedALA(), tmp_path, rounds=1, clients=5, activity=0.2)
    idle = never.active == 0
    np.testing.assert_array_equal(personal(never)[idle], np.tile(never.server["theta"], (4, 1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 4}, r"algorithm\.layers = 4: must be at most 3, the number of the model's layers"),
        ({"layers": -1}, r"algorithm\.layers = -1: must be at least 0"),
        ({"weight_lr": -0.5}, r"algorithm\.weight_lr = -0\.5: must be at least 0"),
        ({"start_steps": -1}, r"algorithm\.start_steps = -1: must be at least 0"),
        ({"weight_steps": -1}, r"algorithm\.weight_steps = -1: must be at least 0"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        start(FedALA(**settings), tmp_path)
