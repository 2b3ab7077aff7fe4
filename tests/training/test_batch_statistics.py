"""Batch normalization with running statistics: what is measured and exported is nn.BatchNorm fed all data at once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import personafl as pf
from personafl.engines.loop import LoopEngine
from personafl.engines.stacked import StackedEngine
from personafl.engines.threaded import ThreadedEngine
from personafl.errors import ModelError
from personafl.kernels.task import Task
from personafl.settings import Local

SIZES = (9, 2, 31, 14)
LOCAL = Local(lr=0.1, batch_size=5, steps=3)


def tabular() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 6), nn.BatchNorm1d(6, affine=False), nn.Tanh(),
        nn.Linear(6, 3),
    )  # fmt: skip


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


class Twice(nn.Module):
    """One layer of normalization that is called in two places, and another in a branch beside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x)).relu()
        return self.out(self.norm(self.b(h)) + self.other(self.a(x) ** 2))


NETWORKS = {"tabular": (tabular, 5), "convolutional": (convolutional, 16), "twice": (Twice, 5)}


def network(name: str) -> nn.Module:
    torch.manual_seed(1)
    return NETWORKS[name][0]()


def federation(name: str, sizes: tuple[int, ...] = SIZES) -> pf.Federation:
    rng, width = np.random.default_rng(0), NETWORKS[name][1]
    data = {}
    for k, n in enumerate(sizes):
        x = (rng.normal(size=(n + 3, width)) * (1 + k) + k).astype(np.float32)
        y = rng.integers(3, size=n + 3)
        data[f"client {k}"] = {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}
    return pf.Federation.from_clients(data, classes=3)


def fed_at_once(net: nn.Module, x: Tensor) -> nn.Module:
    """Torch's own: a fresh average over one batch, in training mode."""
    net = copy.deepcopy(net).train()
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.reset_running_stats()
            layer.momentum = None
    with torch.no_grad():
        net(x)
    return net.eval()


def train_data(fed: pf.Federation, k: int) -> Tensor:
    start, size = int(fed.starts("train")[k]), int(fed.sizes("train")[k])
    return fed.x[start : start + size]


def engine(kind, task, fed, memory=1024):
    return kind(task, fed, Local(lr=0.1), 0, memory, 2 if kind is ThreadedEngine else 1)


def some_models(task: Task, count: int) -> Tensor:
    return task.theta0 + 0.3 * torch.randn(count, task.size, generator=torch.Generator().manual_seed(2))


def same_modules(ours: nn.Module, torchs: nn.Module) -> None:
    expected = torchs.state_dict()
    for name, value in ours.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("memory", [1024, 0], ids=["at once", "in parts"])
@pytest.mark.parametrize("kind", [LoopEngine, StackedEngine, ThreadedEngine])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_clients_statistics_are_those_of_torch_fed_all_its_data(name, kind, memory, monkeypatch):
    fed, net = federation(name), network(name)
    task = Task(net)
    at = engine(kind, task, fed)
    if not memory:
        monkeypatch.setattr(kind, "_samples_at_once", lambda self: 4)
    theta, ids = some_models(task, 3), np.array([2, 0, 1])
    full = at.with_statistics(theta, ids)
    assert full.shape == (3, task.full_size) and task.full_size > task.size
    for row, params, k in zip(full, theta, ids, strict=True):
        plain = copy.deepcopy(net)
        plain.load_state_dict(task.state_dict(params), strict=False)
        same_modules(task.module(row), fed_at_once(plain, train_data(fed, k)))


@pytest.mark.parametrize("memory", [1024, 0], ids=["at once", "in parts"])
@pytest.mark.parametrize("name", NETWORKS)
def test_pooled_statistics_are_those_of_torch_fed_everybodys_data(name, memory, monkeypatch):
    fed, net = federation(name), network(name)
    at = engine(LoopEngine, Task(net), fed)
    if not memory:
        monkeypatch.setattr(LoopEngine, "_samples_at_once", lambda self: 6)
    full = at.with_pooled_statistics(at.task.theta0, np.arange(len(fed)))
    everything = torch.cat([train_data(fed, k) for k in range(len(fed))])
    same_modules(at.task.module(full), fed_at_once(net, everything))


def test_parts_of_several_machines_pool_to_the_same():
    """As the Ray actors do: each gives the moments of its clients, layer after layer."""
    from personafl.kernels.statistics import Moments, by_layer

    fed, net = federation("tabular"), network("tabular")
    at = engine(LoopEngine, Task(net), fed)

    def ask(known):
        parts = [at.moments(at.task.theta0, ids, known) for ids in (np.array([0, 2]), np.array([1, 3]))]
        return None if None in parts else Moments.merged(parts)

    found = torch.cat([at.task.theta0, at.task.running(by_layer(ask))])
    torch.testing.assert_close(found, at.with_pooled_statistics(at.task.theta0, np.arange(4)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LoopEngine, StackedEngine])
def test_who_has_one_sample_or_none_keeps_what_the_model_came_with(kind):
    fed, net = federation("tabular", (6, 1)), network("tabular")
    with torch.no_grad():
        net[1].running_mean.fill_(0.25)
    task = Task(net)
    full = engine(kind, task, fed).with_statistics(task.theta0, np.array([0, 1]))
    assert torch.isfinite(full).all()
    assert torch.equal(task.state_dict(full[1])["1.running_mean"], torch.full((7,), 0.25))
    assert not torch.equal(task.state_dict(full[0])["1.running_mean"], torch.full((7,), 0.25))


def test_training_never_changes_the_users_buffers():
    net = network("convolutional")
    before = copy.deepcopy(net.state_dict())
    pf.train(federation("convolutional"), net, pf.Ditto(), rounds=2, local=LOCAL, engine="loop", progress=False)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("name", ["loop", "stacked"])
@pytest.mark.parametrize("algorithm", [pf.FedAvg(), pf.Ditto(), pf.FedAvgFT()], ids=lambda a: a.name)
def test_what_is_measured_is_what_plain_torch_gives(algorithm, name, tmp_path):
    fed = federation("convolutional")
    run = pf.train(
        fed, network("convolutional"), algorithm, rounds=2, activity=0.5, local=LOCAL,
        engine=name, progress=False, out=tmp_path / "run",
    )  # fmt: skip
    run = pf.load_run(tmp_path / "run", module=network("convolutional"))
    for row in run.clients().to_pylist():
        x, y = fed.client(row["client"])["test"]
        for who, net in (("personal", run.personal(row["client"])), ("global", run.global_model())):
            assert not any(layer.training for layer in net.modules())
            one_by_one = torch.cat([net(sample[None]) for sample in torch.as_tensor(x)])
            loss = nn.functional.cross_entropy(one_by_one, torch.as_tensor(y)).item()
            assert row[f"{who}_loss"] == pytest.approx(loss, rel=1e-4)
    same_modules(
        run.global_model(), fed_at_once(run.global_model(), torch.cat([train_data(fed, k) for k in range(len(fed))]))
    )


def test_a_newcomer_has_its_own_statistics(tmp_path):
    fed = federation("tabular")
    run = pf.train(fed, network("tabular"), rounds=1, local=LOCAL, engine="loop", progress=False, out=tmp_path)
    x, y = train_data(fed, 2), torch.randint(3, (31,))
    net = run.personalize(x, y)
    same_modules(net, fed_at_once(net, x))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["ray", "flower-sim"])
def test_clients_elsewhere_have_the_same_statistics(where):
    """Ray pools them layer after layer; at Flower's sites they stay, and the global model is kept without any."""
    pytest.importorskip({"ray": "ray", "flower-sim": "flwr"}[where])
    here, there = (
        pf.train(federation("tabular"), network("tabular"), pf.Ditto(), rounds=2, local=LOCAL, engine=engine,
                 progress=False)
        for engine in ("loop", where)
    )  # fmt: skip
    for client in ("client 0", "client 2"):
        same_modules(there.personal(client), here.personal(client))
    if where == "ray":
        same_modules(there.global_model(), here.global_model())
        return
    with pytest.raises(ModelError, match=r"no '1.running_mean'"):
        there.global_model()


def test_with_privacy_no_statistics_leave_the_clients(tmp_path):
    """The global model is measured with each client's own, and is kept without any."""
    fed = federation("tabular")
    run = pf.train(
        fed, network("tabular"), rounds=1, local=LOCAL, privacy=pf.Privacy(clip=1.0, noise=1.0), engine="loop",
        progress=False,
    )  # fmt: skip
    weights = load_file(run.path / "models" / "global.safetensors")
    assert sorted(weights) == sorted(run.task.names)
    plain = network("tabular")
    plain.load_state_dict(weights, strict=False)
    for k, row in enumerate(run.clients().to_pylist()):
        x, y = fed.client(row["client"])["test"]
        outputs = fed_at_once(plain, train_data(fed, k))(torch.as_tensor(x))
        expected = nn.functional.cross_entropy(outputs, torch.as_tensor(y)).item()
        assert row["global_loss"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ModelError, match=r"no '1.running_mean'.*belong to a client's data"):
        run.global_model()
