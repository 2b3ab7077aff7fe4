"""FedRep against plain torch in float64, against FedPer, and on the linear problem of its paper."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import FedPer, FedRep
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.oracles.parts import (
    BODY,
    EVERYTHING,
    HEAD,
    HEAD_SIZE,
    LR,
    STEPS,
    data,
    descended,
    initial,
    mean,
    model,
    personal,
    start,
    trained,
    vector,
    vectors,
)


def oracle(head_steps: int, body_steps: int, weighted: bool, rounds: int = 3) -> np.ndarray:
    body, heads = initial(), [initial()] * 3
    for _ in range(rounds):
        found = []
        for m in range(3):
            fitted = descended({**body, **{n: heads[m][n] for n in HEAD}}, m, HEAD, head_steps)
            found.append(descended(fitted, m, BODY, body_steps))
        body, heads = mean(found, weighted), found
    return vectors([{**body, **{n: one[n] for n in HEAD}} for one in heads])


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, weights, engine):
    run = trained(FedRep(head_steps=3, body_steps=2, weights=weights), tmp_path, engine=engine)
    np.testing.assert_allclose(personal(run), oracle(3, 2, weights == "samples"), rtol=1e-4, atol=1e-5)
    assert (run.steps == 5).all() and (run.gradients == 3 * 5).all()


def test_left_out_the_bodys_steps_are_those_of_the_settings(tmp_path):
    run = trained(FedRep(head_steps=2), tmp_path)
    np.testing.assert_allclose(personal(run), oracle(2, STEPS, False), rtol=1e-4, atol=1e-5)


def test_without_head_steps_it_is_fedper_whose_head_has_rate_0(tmp_path):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one = trained(FedRep(head_steps=0), tmp_path / "a", **options)
    two = trained(FedPer(weights="equal"), tmp_path / "b", groups={"head": 0.0}, **options)
    np.testing.assert_allclose(personal(one), personal(two), rtol=1e-6, atol=1e-7)
    assert np.abs(personal(one) - vector(initial())).max() > 0.1


@pytest.mark.parametrize(
    ("local", "optimizer", "settings"),
    [
        ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
        ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_each_part_has_an_optimizer_of_its_own(tmp_path, local, optimizer, settings, state):
    """One client, so that nothing is averaged: torch's optimizers, one after the other."""
    run = trained(FedRep(head_steps=3, body_steps=2), tmp_path, clients=1, lr=0.01, optimizer_state=state, **local)
    net, (x, y) = model(), data(0)
    named = dict(net.named_parameters())
    for round in range(3):
        if round == 0 or state == "fresh":
            two = [optimizer([named[n] for n in part], lr=0.01, **settings) for part in (HEAD, BODY)]
        for one in [two[0]] * 3 + [two[1]] * 2:
            net.zero_grad()
            nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y)).backward()
            one.step()
    np.testing.assert_allclose(personal(run)[0], vector(net.state_dict()), rtol=1e-4, atol=1e-5)


def test_rates_by_group_are_those_of_the_part(tmp_path):
    run = trained(FedRep(head_steps=1, body_steps=1), tmp_path, rounds=1, groups={"4.bias": 0.0, "0.*": 2.0})
    found = []
    for m in range(3):
        fitted = descended(initial(), m, ["4.weight"], 1)
        doubled, once = descended(fitted, m, BODY, 1, 2 * LR), descended(fitted, m, BODY, 1)
        found.append({n: (doubled if n.startswith("0.") else once)[n] for n in fitted})
    body = mean(found, False)
    expected = vectors([{**body, **{n: one[n] for n in HEAD}} for one in found])
    np.testing.assert_allclose(personal(run), expected, rtol=1e-4, atol=1e-5)


def angle(one: np.ndarray, other: np.ndarray) -> float:
    """The sine of the largest principal angle between the row spaces of two matrices: the paper's distance."""
    q, p = (np.linalg.qr(np.asarray(rows, np.float64).T)[0] for rows in (one, other))
    return float(np.linalg.norm(q - p @ (p.T @ q), 2))


def test_it_finds_the_subspace_that_clients_share(tmp_path):
    """The paper's linear problem: y = w_iᵀ B x with one B for all, and each client has fewer samples than x has
    numbers. Its Theorem 1: the distance goes to 0, by a factor in each round."""
    d, k = 6, 2
    draw = np.random.default_rng(0)
    B = np.linalg.qr(draw.standard_normal((d, k)))[0].T
    parts = {}
    for m in range(20):
        x = draw.standard_normal((4, d))
        parts[f"c{m}"] = {"train": (x.astype(np.float32), (x @ B.T @ draw.standard_normal(k)).astype(np.float32))}
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(d, k, bias=False), nn.Linear(k, 1, bias=False))
    local, schedule = Local(lr=0.2, batch_size=0, steps=1), Schedule(rounds=10**6, eval_every=0, checkpoint_every=0)
    engine = ENGINES["stacked"](Task(net, "mse"), Federation.from_clients(parts), local, seed=0, threads=1)
    run = Runner(FedRep(head_steps=5), LocalClients(engine), schedule, RunFolder(tmp_path), {})
    far = [angle(B, run.server["body"].view(k, d).numpy())]
    for _ in range(3):
        for _ in range(20):
            run.step()
        far.append(angle(B, run.server["body"].view(k, d).numpy()))
    assert far[0] > 0.9 and far[-1] < 0.02
    assert all(after < before / 3 for before, after in pairwise(far))


def test_only_the_body_travels_and_heads_stay(tmp_path):
    run = trained(FedRep(head_steps=2), tmp_path)
    share = EVERYTHING - HEAD_SIZE
    assert run.traffic == {"bytes_up": 3 * 3 * 4 * share, "bytes_down": 3 * 3 * 4 * share}
    assert run.clients.store.get(np.arange(3))["head"].shape == (3, HEAD_SIZE)


def test_a_client_that_was_never_active_has_the_current_body_and_the_first_head(tmp_path):
    run = trained(FedRep(head_steps=2), tmp_path, rounds=2, clients=10, activity=0.1)
    idle = run.active == 0
    assert 8 <= idle.sum() <= 9
    expected = np.concatenate([run.server["body"].numpy(), vector(model().state_dict())[-HEAD_SIZE:]])
    np.testing.assert_array_equal(personal(run)[idle], np.tile(expected, (idle.sum(), 1)))
    assert (personal(run)[~idle][:, -HEAD_SIZE:] != expected[-HEAD_SIZE:]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": 3}, r"algorithm\.head = 3: must be fewer layers for fedrep: the head would be the whole model"),
        ({"head": 0}, r"algorithm\.head = 0: must be at least 1 for fedrep"),
        (
            {"head_names": ("0", "2", "4")},
            r"algorithm\.head_names = \('0', '2', '4'\): must be fewer layers for fedrep",
        ),
        ({"head_steps": -1}, r"algorithm\.head_steps = -1: must be at least 0"),
        ({"body_steps": 0}, r"algorithm\.body_steps = 0: must be at least 1, or left out"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        start(FedRep(**settings), tmp_path)
    assert "\n" not in str(refused.value)
