"""pFedHN: a linear hypernetwork by hand, the vector-Jacobian product by finite differences, newcomers."""

import numpy as np
import pytest
import torch

import personafl as pf
from personafl.algorithms import FedAvg, PFedHN
from personafl.algorithms.base import Uploads
from personafl.errors import ConfigError
from tests.oracles.quadratic import clustered, personal, quadratics, server, train

LR, STEPS, START = 0.05, 3, np.array([1.0, -2.0, 3.0])
CENTRES = np.array([[2.0, 1.0, -1.0], [-2.0, 0.5, 1.0]])


def descend(problem, m, w):
    for _ in range(STEPS):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def by_hand(problem, v, cohorts, lr, embedding_lr, start=START):
    """θ_i = H v_i + b, so ∂θ_i/∂H v-part is Δ_i v_iᵀ, ∂θ_i/∂b is Δ_i, and ∂θ_i/∂v_i is Hᵀ Δ_i."""
    v, head, bias = v.copy(), np.zeros((len(start), v.shape[1])), start.copy()
    for cohort in cohorts:
        deltas = {i: descend(problem, i, head @ v[i] + bias) - (head @ v[i] + bias) for i in cohort}
        new_head = head + lr * sum(np.outer(d, v[i]) for i, d in deltas.items()) / len(cohort)
        bias = bias + lr * sum(deltas.values()) / len(cohort)
        for i, d in deltas.items():
            v[i] = v[i] + embedding_lr * head.T @ d
        head = new_head
    return v, head, bias


@pytest.mark.parametrize("activity", [1.0, 0.5])
def test_a_linear_hypernetwork_is_that_of_a_calculation_by_hand(tmp_path, activity):
    problem = quadratics(clients=6)
    algorithm = PFedHN(lr=0.3, embedding_lr=0.2, embedding=2, hidden=())
    runner = train(problem, algorithm, tmp_path, 0, LR, STEPS, START, activity=activity)
    first = server(runner, "embeddings")
    for _ in range(4):
        runner.step()
    cohorts = [runner.schedule.cohort(0, r, 6).tolist() for r in range(1, 5)]
    v, head, bias = by_hand(problem, first, cohorts, 0.3, 0.2)
    np.testing.assert_allclose(server(runner, "embeddings"), v, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server(runner, "head"), head, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), v @ head.T + bias, rtol=1e-4, atol=1e-5)
    assert np.abs(v - first).max() > 0.01


def test_steps_are_vector_jacobian_products_by_finite_differences():
    """⟨Δ, h(φ + tδ) − h(φ − tδ)⟩ / 2t = ⟨(∂h/∂φ)ᵀ Δ, δ⟩ for every parameter of a network with two hidden layers."""
    algorithm = PFedHN(lr=1e-4, embedding_lr=1e-4, embedding=3, hidden=(4, 5))
    draw = torch.Generator().manual_seed(1)
    before = {
        name: torch.randn(value.shape, generator=draw).double()
        for name, value in algorithm.new_server(torch.zeros(6), 3).items()
    }
    ids, delta = torch.tensor([0, 2]), 0.01 * torch.randn(2, 6, generator=draw).double()
    theta = algorithm.models(before, before["embeddings"][ids])
    known = {name: value.numpy() for name, value in before.items()}
    x = known["embeddings"][[0, 2]] @ known["weight0"].T + known["bias0"]
    x = np.maximum(x, 0) @ known["weight1"].T + known["bias1"]
    np.testing.assert_allclose(theta.numpy(), x @ known["head"].T + known["theta"])
    uploads = Uploads(ids, torch.ones(2), {"theta": theta + delta}, algorithm.uplink)
    after = algorithm.aggregate(dict(before), uploads)
    for name, value in before.items():
        expected, flat = torch.zeros_like(value).flatten(), value.flatten()
        for k in range(len(flat)):
            outs = []
            for t in (1e-5, -1e-5):
                moved = flat.clone()
                moved[k] += t
                outs.append(algorithm.models({**before, name: moved.view_as(value)}, (
                    moved.view_as(value) if name == "embeddings" else before["embeddings"])[ids]))  # fmt: skip
            expected[k] = ((outs[0] - outs[1]) * delta).sum() / 2e-5
        if name != "embeddings":
            expected = expected / 2  # the mean over the clients that answered
        torch.testing.assert_close((after[name] - value).flatten(), 1e-4 * expected, rtol=1e-5, atol=1e-12, msg=name)


def test_everybody_starts_from_the_initial_weights_and_embeddings_follow_from_them():
    algorithm, theta0 = PFedHN(), torch.arange(6.0)
    one, other = (algorithm.new_server(theta0 + shift, 8) for shift in (0, 1))
    assert algorithm.send(one, torch.arange(8)).each["theta"].equal(theta0.expand(8, -1))
    assert one["embeddings"].shape == (8, 3) and not torch.equal(one["embeddings"], other["embeddings"])
    assert one["embeddings"].equal(algorithm.new_server(theta0, 8)["embeddings"])


def test_without_embeddings_that_tell_clients_apart_it_is_fedavg(tmp_path):
    """Where v = 0 and nothing is hidden, only the bias learns: by the mean of the updates."""
    problem = quadratics()
    runner = train(problem, PFedHN(lr=1.0, embedding=1, hidden=()), tmp_path / "a", 0, LR, STEPS, START)
    runner.server["embeddings"] *= 0
    for _ in range(4):
        runner.step()
    average = server(train(problem, FedAvg("equal"), tmp_path / "b", 4, LR, STEPS, START))
    np.testing.assert_allclose(personal(runner), np.tile(average, (4, 1)), rtol=1e-5, atol=1e-6)


def test_a_step_that_overshoots_is_halved_until_it_does_not():
    """θ = H v + b with H = 1 and v = 3: a step of length lr moves θ by lr (1 + v² + H²) Δ = 11 lr Δ."""
    algorithm = PFedHN(lr=1.0, embedding_lr=1.0, embedding=1, hidden=())
    before = {"embeddings": torch.full((1, 1), 3.0), "head": torch.ones(1, 1), "theta": torch.zeros(1)}
    up = {"theta": torch.tensor([[3.01]])}
    after = algorithm.aggregate(before, Uploads(torch.arange(1), torch.ones(1), up, algorithm.uplink))
    assert after["theta"].item() == pytest.approx(0.01 / 8, rel=1e-3)  # 11/4 overshoots by more than 1, 11/8 does not


def test_two_clusters_come_apart_and_a_newcomers_embedding_finds_its_own():
    """No model serves both, and who comes later gets the one that fits it: only by its embedding."""
    members = np.arange(8) % 2
    problem = clustered(CENTRES, members)
    module = torch.nn.Linear(3, 1, bias=False)
    local = pf.Local(lr=0.1, batch_size=0, steps=5)
    algorithm = PFedHN(embedding=2, hidden=(16,))
    run = pf.train(problem.federation, module, algorithm, rounds=60, local=local, progress=False, threads=1)
    for client, centre in zip(problem.federation.ids, CENTRES[members], strict=True):
        np.testing.assert_allclose(run.personal(client).weight[0].detach().numpy(), centre, atol=0.3)
    for centre in CENTRES:
        x = np.random.default_rng(3).standard_normal((12, 3)).astype(np.float32)
        found = run.personalize(x, (x @ centre).astype(np.float32)).weight[0].detach().numpy()
        assert np.linalg.norm(found - centre) < 0.5 * np.linalg.norm(CENTRES.mean(0) - centre)


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"embedding_lr": -1.0}, {"embedding": 0}, {"hidden": (0,)}])
def test_bad_settings_are_one_line(bad):
    (key,) = bad
    with pytest.raises(ConfigError, match=rf"algorithm\.{key} = .*: must be ") as error:
        PFedHN(**bad)
    assert "\n" not in str(error.value)
