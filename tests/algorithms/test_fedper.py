from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import Algorithm, FedAvg, FedPer, Separate, Uploads
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner

LR, STEPS, SIZES = 0.3, 4, (5, 12, 8)
PARAMETERS = {"0.weight": 30, "0.bias": 5, "2.weight": 20, "2.bias": 4, "4.weight": 12, "4.bias": 3}
EVERYTHING = sum(PARAMETERS.values())


def data(m: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(m)
    return draw.standard_normal((SIZES[m % 3], 6)).astype(np.float32), draw.integers(0, 3, SIZES[m % 3])


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def start(
    algorithm: Algorithm, folder: Path, clients: int = 3, activity: float = 1.0, batch_size: int = 0,
    engine: str = "stacked",
) -> Runner:  # fmt: skip
    federation = Federation.from_clients({f"c{m}": {"train": data(m)} for m in range(clients)}, classes=3)
    local = Local(lr=LR, batch_size=batch_size, steps=STEPS)
    made = ENGINES[engine](Task(model()), federation, local, seed=0, threads=1)
    return Runner(
        algorithm, LocalClients(made), Schedule(rounds=10**6, activity=activity, eval_every=0), RunFolder(folder), {}
    )


def trained(algorithm: Algorithm, folder: Path, rounds: int = 3, **options: object) -> Runner:
    runner = start(algorithm, folder, **options)  # type: ignore[arg-type]
    for _ in range(rounds):
        runner.step()
    return runner


def personal(runner: Runner) -> np.ndarray:
    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    return torch.cat([part.theta for part in parts]).numpy()


def vector(state: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([state[name].flatten() for name in PARAMETERS]).numpy()


def oracle(head: set[str], rounds: int, weighted: bool) -> list[dict[str, torch.Tensor]]:
    """FedPer in float64 with ordinary modules: after each round, everybody's current base and own head."""
    p = np.array(SIZES) / sum(SIZES) if weighted else np.full(3, 1 / 3)
    base = {name: value.double() for name, value in model().state_dict().items()}
    heads = [{name: base[name] for name in head} for _ in SIZES]
    for _ in range(rounds):
        locals_ = []
        for m in range(3):
            net = model().double()
            net.load_state_dict({**base, **heads[m]})
            x, y = data(m)
            for _ in range(STEPS):
                net.zero_grad()
                F.cross_entropy(net(torch.tensor(x).double()), torch.tensor(y)).backward()
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter -= LR * parameter.grad
            locals_.append({name: value.clone() for name, value in net.state_dict().items()})
            heads[m] = {name: locals_[m][name] for name in head}
        base = {name: sum(p[m] * locals_[m][name] for m in range(3)) for name in PARAMETERS}
    return [{**base, **heads[m]} for m in range(3)]


HEADS = {
    "last layer": (FedPer(head=1), {"4.weight", "4.bias"}),
    "last two layers": (FedPer(head=2), {"2.weight", "2.bias", "4.weight", "4.bias"}),
    "the middle of the vector": (FedPer(head_names=("2",)), {"2.weight", "2.bias"}),
    "pieces here and there": (FedPer(head_names=("0.bias", "2.weight", "4.bias")), {"0.bias", "2.weight", "4.bias"}),
    "equal weights": (FedPer(head=1, weights="equal"), {"4.weight", "4.bias"}),
}


@pytest.mark.parametrize("case", HEADS)
def test_bases_are_averaged_and_heads_stay(tmp_path, case):
    """The personalized model is the current base with the client's own head."""
    algorithm, head = HEADS[case]
    expected = np.stack([vector(state) for state in oracle(head, 3, algorithm.weights == "samples")])
    np.testing.assert_allclose(personal(trained(algorithm, tmp_path)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(trained(algorithm, tmp_path, engine="loop")), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_without_a_head_the_base_is_the_server_of_fedavg(tmp_path, weights, batch_size):
    options = {"batch_size": batch_size, "clients": 6, "activity": 0.5}
    one = trained(FedPer(head=0, weights=weights), tmp_path, **options)
    two = trained(FedAvg(weights=weights), tmp_path, **options)
    assert one.server["base"].equal(two.server["theta"])
    np.testing.assert_array_equal(personal(one), np.tile(two.server["theta"].numpy(), (6, 1)))


@pytest.mark.parametrize("algorithm", [FedPer(head=3), FedPer(head_names=("4", "2", "0"))], ids=["count", "names"])
def test_with_everything_in_the_head_it_is_separate(tmp_path, algorithm):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one, two = trained(algorithm, tmp_path, **options), trained(Separate(), tmp_path, **options)
    np.testing.assert_array_equal(personal(one), personal(two))
    assert one.traffic == {"bytes_up": 0, "bytes_down": 0}


def test_identical_clients_have_identical_models(tmp_path):
    runner = trained(FedPer(), tmp_path, clients=1)
    np.testing.assert_allclose(personal(runner), personal(trained(Separate(), tmp_path, clients=1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "names"), [(1, ("4",)), (2, ("4", "2")), (1, ("4.bias", "4.weight")), (3, ("0", "2", "4"))]
)
def test_a_head_by_count_and_by_name_are_the_same(tmp_path, count, names):
    one, two = trained(FedPer(head=count), tmp_path), trained(FedPer(head_names=names), tmp_path)
    np.testing.assert_array_equal(personal(one), personal(two))
    assert one.traffic == two.traffic


def test_names_go_before_the_count(tmp_path):
    one, two = trained(FedPer(head=2, head_names=("4",)), tmp_path), trained(FedPer(head=1), tmp_path)
    np.testing.assert_array_equal(personal(one), personal(two))


@pytest.mark.parametrize("case", HEADS)
def test_only_the_base_travels(tmp_path, case):
    algorithm, head = HEADS[case]
    share = EVERYTHING - sum(PARAMETERS[name] for name in head)
    seen: list[Uploads] = []

    class Watched(type(algorithm)):  # type: ignore[misc]
        def aggregate(self, server, uploads):  # type: ignore[no-untyped-def]
            seen.append(uploads)
            return super().aggregate(server, uploads)

    runner = trained(Watched(**{f: getattr(algorithm, f) for f in ("head", "head_names", "weights")}), tmp_path)
    assert [{n: tuple(v.shape) for n, v in u.values.items()} for u in seen] == 3 * [{"base": (3, share)}]
    sent = runner.algorithm.send(runner.server, torch.arange(3))
    assert {n: tuple(v.shape) for n, v in sent.shared.items()} == {"base": (share,)} and not sent.each
    assert runner.traffic == {"bytes_up": 3 * 3 * 4 * share, "bytes_down": 3 * 3 * 4 * share}
    assert {n: v.shape[1] for n, v in runner.clients.store.get(np.arange(3)).items()} == {"head": EVERYTHING - share}


def test_a_client_that_was_never_active_has_the_current_base_and_the_first_head(tmp_path):
    runner = trained(FedPer(head=1), tmp_path, rounds=1, clients=10, activity=0.1)
    idle = runner.active == 0
    assert idle.sum() == 9
    expected = np.concatenate([runner.server["base"].numpy(), vector(model().state_dict())[-15:]])
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(expected, (9, 1)))
    assert not np.allclose(expected[:-15], vector(model().state_dict())[:-15])
    assert not np.allclose(personal(runner)[~idle][:, -15:], expected[-15:])


def test_a_head_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.head = 4: must be at most 3, the number of the model's layers"):
        start(FedPer(head=4), tmp_path)
    with pytest.raises(ConfigError, match=r"algorithm\.head = -1: must be at least 0"):
        FedPer(head=-1)
    with pytest.raises(ConfigError, match=r"head_names has 'fc2', but the model's parameters are 0\.weight, 0\.bias"):
        start(FedPer(head_names=("4", "fc2")), tmp_path)
    with pytest.raises(ConfigError, match=r"head_names has '4\.w'"):
        start(FedPer(head_names=("4.w",)), tmp_path)
