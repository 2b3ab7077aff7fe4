"""FedBN against plain torch in float64, against its limits, and what its clients keep and send."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personafl.algorithms import Algorithm, FedAvg, FedBN, Separate
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner

LR, STEPS, SIZES = 0.2, 3, (6, 12, 9)
NORMS = {"1.weight", "1.bias"}


def data(m: int) -> tuple[np.ndarray, np.ndarray]:
    """Clients whose features are shifted and stretched, as the paper has them."""
    draw = np.random.default_rng(m)
    return (draw.normal(m, 1 + m, (SIZES[m], 4))).astype(np.float32), draw.integers(0, 3, SIZES[m])


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


def runner(algorithm: Algorithm, folder: Path, net: nn.Module | None = None, clients: int = 3, activity=1.0) -> Runner:
    fed = Federation.from_clients({f"c{m}": {"train": data(m)} for m in range(clients)}, classes=3)
    made = ENGINES["stacked"](Task(net or model()), fed, Local(lr=LR, batch_size=0, steps=STEPS), seed=0, threads=1)
    return Runner(
        algorithm, LocalClients(made), Schedule(rounds=10**6, activity=activity, eval_every=0), RunFolder(folder), {}
    )


def trained(algorithm: Algorithm, folder: Path, rounds: int = 3, **options) -> Runner:
    made = runner(algorithm, folder, **options)
    for _ in range(rounds):
        made.step()
    return made


def personal(made: Runner) -> list[dict[str, Tensor]]:
    parts = personal_models(made.algorithm, made.clients.engine, made.clients.store, made.snapshot(True))
    return [made.clients.task.state_dict(theta) for part in parts for theta in part.theta]


def oracle(norms: set[str], rounds: int, weighted: bool) -> list[dict[str, Tensor]]:
    """FedBN in float64 with ordinary modules in training mode."""
    p = np.array(SIZES) / sum(SIZES) if weighted else np.full(3, 1 / 3)
    names = [name for name, _ in model().named_parameters()]
    base = {name: value.detach().double() for name, value in model().named_parameters()}
    own = [{name: base[name] for name in norms} for _ in SIZES]
    for _ in range(rounds):
        found = []
        for m in range(3):
            net = model().double().train()
            net.load_state_dict({**base, **own[m]}, strict=False)
            optimizer = torch.optim.SGD(net.parameters(), LR)
            x, y = data(m)
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(net(torch.tensor(x).double()), torch.tensor(y)).backward()
                optimizer.step()
            found.append({name: value.detach().clone() for name, value in net.named_parameters()})
        base = {n: sum(w * f[n] for w, f in zip(p, found, strict=True)) for n in names}
        own = [{name: f[name] for name in norms} for f in found]
    return [{**base, **norms} for norms in own]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("norms, names", [("batch", NORMS), ("all", NORMS | {"3.weight", "3.bias"})])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, norms, names, weighted):
    made = trained(FedBN(norms=norms, weights="samples" if weighted else "equal"), tmp_path)
    for ours, expected in zip(personal(made), oracle(names, 3, weighted), strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_one_client_is_alone(tmp_path):
    alone = personal(trained(Separate(), tmp_path / "a", clients=1))[0]
    ours = personal(trained(FedBN(), tmp_path / "b", clients=1))[0]
    for name, value in alone.items():
        torch.testing.assert_close(ours[name], value)


def test_with_norms_that_do_not_move_it_is_fedavg(tmp_path):
    """All clients keep the same norms, where their gradient is held at 0."""
    net = model()
    with torch.no_grad():
        net[1].weight.zero_()  # nothing of the first layer's output passes: only the bias of the norm has a gradient
        net[1].bias.zero_()
        net[3].weight.zero_()
    ours = trained(FedBN(norms="all"), tmp_path / "a", net=copy.deepcopy(net), rounds=1)
    average = trained(FedAvg(), tmp_path / "b", net=copy.deepcopy(net), rounds=1)
    theta = average.clients.task.state_dict(average.server["theta"])
    for own in personal(ours):
        for name in ("0.weight", "0.bias", "4.weight", "4.bias"):
            torch.testing.assert_close(own[name], theta[name])


def test_norms_stay_with_the_client_and_are_not_sent(tmp_path):
    made = trained(FedBN(), tmp_path)
    size = made.clients.task.size
    assert made.server["base"].shape == (size - 10,)
    assert made.clients.store.rows(np.arange(3))["norms"].shape == (3, 10)
    assert made.traffic["bytes_up"] == made.traffic["bytes_down"] == 3 * 3 * 4 * (size - 10)
    weights = torch.stack([own["1.weight"] for own in personal(made)])
    assert (weights[0] - weights[1]).abs().max() > 1e-3
    for own in personal(made)[1:]:
        assert torch.equal(own["0.weight"], personal(made)[0]["0.weight"])


def test_who_was_never_active_has_the_base_with_the_first_norms(tmp_path):
    made = trained(FedBN(), tmp_path, rounds=1, activity=0.34)
    assert made.active.tolist().count(0) == 2
    for k in np.flatnonzero(made.active == 0):
        own = personal(made)[k]
        assert torch.equal(own["1.weight"], torch.ones(5)) and torch.equal(own["1.bias"], torch.zeros(5))
        assert not torch.equal(own["0.weight"], model()[0].weight)


@pytest.mark.parametrize(
    "norms, found", [("batch", 'no trainable BatchNorm.*norms = "all"'), ("all", "no trainable Norm")]
)
def test_a_model_without_norms_is_refused_in_words(tmp_path, norms, found):
    with pytest.raises(ConfigError, match=rf"fedbn: .*{found}") as error:
        runner(FedBN(norms=norms), tmp_path, net=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    assert "\n" not in str(error.value) and "but Linear" in str(error.value)
