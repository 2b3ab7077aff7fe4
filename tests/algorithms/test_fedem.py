"""FedEM against its equations in float64, against FedAvg, and the mixture that its clients end with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import personafl as pf
from personafl.algorithms import FedAvg
from personafl.algorithms.extras import trained_task
from personafl.algorithms.fedem import FedEM, Mixture
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner

LR, STEPS, SIZES = 0.3, 3, (6, 12, 9)


def data(m: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(m)
    return draw.standard_normal((SIZES[m], 4)).astype(np.float32), draw.integers(0, 3, SIZES[m])


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def runner(algorithm, folder, engine="stacked", net=None, kind="cross_entropy", activity=1.0, **local) -> Runner:
    given = {f"c{m}": {"train": data(m)} for m in range(3)}
    if kind == "mse":
        given = {c: {"train": (x["train"][0], x["train"][1] + np.float32(0.5))} for c, x in given.items()}
    fed = Federation.from_clients(given, **({"classes": 3} if kind == "cross_entropy" else {}))
    task = trained_task(algorithm, Task(net or model(), kind))
    settings = Local(**{"lr": LR, "batch_size": 0, "steps": STEPS, **local})
    made = ENGINES[engine](task, fed, settings, seed=0, threads=1)
    schedule = Schedule(rounds=10**6, activity=activity, eval_every=0)
    return Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})


def trained(algorithm, folder, rounds=3, **options) -> Runner:
    made = runner(algorithm, folder, **options)
    for _ in range(rounds):
        made.step()
    return made


def personal(made: Runner) -> torch.Tensor:
    parts = personal_models(made.algorithm, made.clients.engine, made.clients.store, made.snapshot(True))
    return torch.cat([part.theta for part in parts])


def oracle(start: list[dict], rounds: int, weighted: bool = True):
    """The paper's equations with ordinary modules: q once a round, on all samples of a client."""
    p = np.array(SIZES) / sum(SIZES) if weighted else np.full(3, 1 / 3)
    components, shares = start, [torch.full((len(start),), 1 / len(start)).double() for _ in SIZES]
    for _ in range(rounds):
        found = []
        for m in range(3):
            x, y = (torch.tensor(part) for part in data(m))
            nets = [model().double() for _ in components]
            for net, state in zip(nets, components, strict=True):
                net.load_state_dict(state)
            losses = torch.stack([F.cross_entropy(net(x.double()), y, reduction="none") for net in nets], 1).detach()
            q = shares[m] * torch.exp(-losses)
            q = q / q.sum(1, keepdim=True)
            shares[m] = q.mean(0)
            for k, net in enumerate(nets):
                optimizer = torch.optim.SGD(net.parameters(), LR)
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    (q[:, k] * F.cross_entropy(net(x.double()), y, reduction="none")).mean().backward()
                    optimizer.step()
            found.append([net.state_dict() for net in nets])
        components = [
            {n: sum(w * f[k][n] for w, f in zip(p, found, strict=True)) for n in start[0]} for k in range(len(start))
        ]
    return components, shares


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighted", [True, False])
def test_it_is_the_papers_expectation_maximization(tmp_path, weighted, engine):
    algorithm = FedEM(components=2, weights="samples" if weighted else "equal")
    made = runner(algorithm, tmp_path, engine=engine)
    names = [name for name, _ in model().named_parameters()]
    sizes = [p.numel() for p in model().parameters()]
    start = [
        {n: p.view(s.shape).double() for n, p, s in zip(names, v.split(sizes), model().parameters(), strict=True)}
        for v in made.server["theta"].view(2, -1)
    ]
    assert not torch.equal(start[0]["0.weight"], start[1]["0.weight"])
    for _ in range(4):
        made.step()
    components, shares = oracle(start, 4, weighted)
    expected = torch.cat([value.flatten() for state in components for value in state.values()])
    np.testing.assert_allclose(made.server["theta"], expected, rtol=1e-4, atol=1e-5)
    for ours, known in zip(personal(made), shares, strict=True):
        np.testing.assert_allclose(ours[:2], known, rtol=1e-4)
        np.testing.assert_allclose(ours[2:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["cross_entropy", "mse"])
def test_one_component_is_fedavg(tmp_path, kind):
    def net():
        torch.manual_seed(1)
        return nn.Linear(4, 3 if kind == "cross_entropy" else 1)

    ours = trained(FedEM(components=1), tmp_path / "a", net=net(), kind=kind, batch_size=4, momentum=0.5)
    plain = trained(FedAvg(), tmp_path / "b", net=net(), kind=kind, batch_size=4, momentum=0.5)
    torch.testing.assert_close(ours.server["theta"], plain.server["theta"])
    assert personal(ours)[:, 0].tolist() == [1.0, 1.0, 1.0]


def test_clients_of_two_kinds_find_their_component(tmp_path):
    """Opposite labels for the same inputs: no single model can serve both; the shares go to 0 and 1."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((8, 30, 4)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int64)
    y[4:] = 1 - y[4:]
    fed = Federation.from_clients({f"c{m}": {"train": (x[m], y[m]), "test": (x[m], y[m])} for m in range(8)}, classes=2)
    torch.manual_seed(0)
    local = Local(lr=0.5, batch_size=0, steps=5)
    run = pf.train(
        fed, nn.Linear(4, 2), FedEM(components=2), rounds=40, local=local, progress=False, out=tmp_path / "r"
    )
    right = [
        (run.personal(c)(torch.tensor(x[m])).argmax(1) == torch.tensor(y[m])).float().mean()
        for m, c in enumerate(fed.ids)
    ]
    assert min(right) > 0.9
    share = np.array([run.personal(c).shares[0].item() for c in fed.ids])
    assert (share[:4].max() < 0.05 and share[4:].min() > 0.95) or (share[4:].max() < 0.05 and share[:4].min() > 0.95)
    again = pf.load_run(tmp_path / "r", module=nn.Linear(4, 2))
    assert (again.personal("c5")(torch.tensor(x[5])).argmax(1) == torch.tensor(y[5])).float().mean() > 0.95
    newcomer = again.personalize(x[6], y[6])
    assert abs(newcomer.shares[0].item() - share[6]) < 0.05


def test_the_mixture_mixes_probabilities_or_outputs():
    x, net = torch.randn(5, 4), Mixture(model(), 3, True)
    with torch.no_grad():
        net.shares.copy_(torch.tensor([0.2, 0.0, 0.8]))
        each = [c(x).softmax(-1) for c in net.components]
        torch.testing.assert_close(net(x).exp(), 0.2 * each[0] + 0.8 * each[2])
        net.probabilities = False
        torch.testing.assert_close(net(x), 0.2 * net.components[0](x) + 0.8 * net.components[2](x))


def test_components_have_batch_statistics_of_their_own_on_every_engine(tmp_path):
    def net():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    made = [trained(FedEM(components=2), tmp_path / e, 2, engine=e, net=net()) for e in ("stacked", "loop")]
    torch.testing.assert_close(made[0].server["theta"], made[1].server["theta"], rtol=1e-4, atol=1e-5)


def test_who_was_never_active_has_equal_shares(tmp_path):
    made = trained(FedEM(components=2), tmp_path, rounds=1, activity=0.34)
    never = int(np.flatnonzero(made.active == 0)[0])
    assert personal(made)[never, :2].tolist() == [0.5, 0.5]
    torch.testing.assert_close(personal(made)[never, 2:], made.server["theta"])


def test_what_it_cannot_do_is_said_in_a_line(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.components = 0: must be at least 1"):
        FedEM(components=0)
    fed = Federation.from_clients({"a": {"train": (np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32))}})
    with pytest.raises(ConfigError, match="fedem: it needs a loss for each sample"):
        pf.train(fed, nn.Linear(2, 1), FedEM(), task="cox", rounds=1, progress=False)
