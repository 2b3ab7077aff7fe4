"""FedRoD against two heads in plain torch and float64, and its limits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import FedAvg, FedRoD
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.oracles.parts import (
    HEAD_SIZE,
    LR,
    SIZES,
    STEPS,
    data,
    initial,
    mean,
    model,
    personal,
    start,
    trained,
    vector,
    vectors,
)


def oracle(gamma: float, weighted: bool, rounds: int = 3) -> tuple[dict, np.ndarray]:
    """With two modules for the heads, the features between them detached, and the loss by counts of classes."""
    heads = [{"weight": torch.zeros(3, 4).double(), "bias": torch.zeros(3).double()} for _ in SIZES]
    now = initial()
    for _ in range(rounds):
        found = []
        for m in range(3):
            net, personal_head = model().double(), nn.Linear(4, 3).double()
            net.load_state_dict(now)
            personal_head.load_state_dict(heads[m])
            both = [torch.optim.SGD(one.parameters(), LR) for one in (net, personal_head)]
            x, y = (torch.tensor(part) for part in data(m))
            counts = torch.bincount(y, minlength=3).double()
            for _ in range(STEPS):
                features = net[:-1](x.double())
                generic = net[-1](features)
                weighed = counts**gamma * generic.exp()
                balanced = -(weighed.gather(1, y[:, None])[:, 0] / weighed.sum(1)).log().mean()
                own = F.cross_entropy(generic.detach() + personal_head(features.detach()), y)
                for loss, optimizer in zip((balanced, own), both, strict=True):
                    optimizer.zero_grad()
                    loss.backward()
                for optimizer in both:
                    optimizer.step()
            found.append({name: value.detach().clone() for name, value in net.named_parameters()})
            heads[m] = {name: value.detach().clone() for name, value in personal_head.named_parameters()}
        now = mean(found, weighted)
    summed = [{**now, **{f"4.{name}": now[f"4.{name}"] + value for name, value in head.items()}} for head in heads]
    return now, vectors(summed)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(("gamma", "weights"), [(1.0, "samples"), (0.5, "equal")])
def test_one_vector_is_two_heads_in_plain_torch(tmp_path, gamma, weights, engine):
    run = trained(FedRoD(gamma=gamma, weights=weights), tmp_path, engine=engine)
    generic, own = oracle(gamma, weights == "samples")
    np.testing.assert_allclose(run.server["theta"], vector(generic), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(run), own, rtol=1e-4, atol=1e-5)
    assert (run.gradients == 3 * 2 * STEPS).all()


def test_without_balance_the_generic_model_is_fedavgs(tmp_path):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one = trained(FedRoD(gamma=0.0), tmp_path / "a", **options)
    two = trained(FedAvg(), tmp_path / "b", **options)
    torch.testing.assert_close(one.server["theta"], two.server["theta"], rtol=1e-5, atol=1e-6)


def test_a_class_that_a_client_does_not_have_is_left_alone_by_the_generic_loss(tmp_path):
    """Its row of the generic head gets no gradient, where cross-entropy would push it down."""

    def two_classes(m):
        x, y = data(m)
        return x, y % 2

    balanced = trained(FedRoD(), tmp_path / "a", rounds=1, samples=two_classes).server["theta"]
    plain = trained(FedRoD(gamma=0.0), tmp_path / "b", rounds=1, samples=two_classes).server["theta"]
    before = torch.tensor(vector(initial())).float()
    third = slice(-HEAD_SIZE + 8, -3)  # the weights of class 2
    torch.testing.assert_close(balanced[third], before[third], rtol=0, atol=1e-7)
    assert balanced.isfinite().all() and (plain[third] - before[third]).abs().min() > 1e-3


def test_a_client_that_was_never_active_has_the_generic_model(tmp_path):
    run = trained(FedRoD(), tmp_path, rounds=2, clients=10, activity=0.1)
    idle = run.active == 0
    np.testing.assert_array_equal(personal(run)[idle], np.tile(run.server["theta"], (idle.sum(), 1)))
    apart = personal(run)[~idle] - run.server["theta"].numpy()
    assert (apart[:, :-HEAD_SIZE] == 0).all() and (apart[:, -HEAD_SIZE:] != 0).all()


def test_a_head_that_is_not_one_linear_layer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^fedrod adds two heads up: .* not Linear '2', Linear '4'$"):
        start(FedRoD(head=2), tmp_path)
    normed = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))
    with pytest.raises(ConfigError, match=r"^fedrod adds two heads up: .* not LayerNorm '1'$"):
        start(FedRoD(), tmp_path, net=normed)
    with pytest.raises(ConfigError, match=r"algorithm\.gamma = -1\.0: must be at least 0"):
        FedRoD(gamma=-1.0)


def test_a_task_without_classes_is_refused(tmp_path):
    fed = Federation.from_clients({"a": {"train": (np.zeros((4, 2), np.float32), np.zeros(4, np.float32))}})
    engine = ENGINES["loop"](Task(nn.Linear(2, 1), "mse"), fed, Local(), seed=0)
    with pytest.raises(ConfigError, match=r"^fedrod balances classes: it needs a classification task$"):
        Runner(FedRoD(), LocalClients(engine), Schedule(), RunFolder(tmp_path), {})
