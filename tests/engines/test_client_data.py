"""What programs see of all of a client's data: means over its training and validation samples."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import About, FedAvg, Mean, Sent
from personafl.engines import ENGINES
from personafl.engines.work import Work
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local

SIZES = {"train": (5, 9, 1, 4), "val": (3, 0, 2, 6)}


def shares(outputs, y, scale):
    return scale * F.one_hot(y, 3) * outputs.softmax(-1)


def centroids(outputs, y, features):
    return F.one_hot(y, 3)[:, :, None] * features[:, None, :6]


centroids.uses_features = True


@dataclass(frozen=True)
class Measures(FedAvg):
    """FedAvg that sends what it measures at the beginning and at the end of its round."""

    about = About(name="measures", paper="none", personalized="y")
    uses_training: ClassVar[bool] = True
    uses_validation: ClassVar[bool] = True
    uplink: ClassVar = {"loss": Mean(), "correct": Mean(), "shares": Mean(), "after": Mean(), "held": Mean()}
    uplink = uplink | {"centroids": Mean()}

    def begin(self, own, sent, ctx):
        found = ctx.training(sent["theta"])
        held = ctx.validation.mean(shares, sent["theta"], scale=torch.tensor(2.0))
        carry = {
            "theta": sent["theta"],
            "shares": ctx.training.mean(shares, sent["theta"], scale=ctx.samples),
            "held": held,
        }
        return carry | {"loss": found["loss"], "correct": found["correct"]}, ctx.steps

    def finish(self, own, carry, sent, ctx):
        up = {name: carry[name] for name in ("loss", "correct", "shares", "held")}
        up["centroids"] = ctx.training.mean(centroids, sent["theta"])
        return own | {"theta": carry["theta"]}, up | {"after": ctx.training(carry["theta"])["loss"]}


@pytest.fixture(scope="module")
def federation():
    draw = np.random.default_rng(0)

    def samples(n):
        return draw.standard_normal((n, 4)).astype(np.float32), draw.integers(0, 3, n)

    data = {f"c{m}": {split: samples(SIZES[split][m]) for split in SIZES if SIZES[split][m]} for m in range(4)}
    return Federation.from_clients(data, classes=3)


@pytest.mark.parametrize("memory", [1024, 0])
@pytest.mark.parametrize("engine", ENGINES)
def test_means_are_over_all_samples_of_the_client(federation, engine, memory):
    """At the sent and the trained model; clients of unequal sizes, one without validation data; also in chunks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    task = Task(net)
    made = ENGINES[engine](task, federation, Local(lr=0.1, batch_size=2, steps=3), seed=0, memory=memory, threads=1)
    ids = np.arange(4)
    own = {"theta": task.theta0.expand(4, -1)}
    result = made.run(Work(Measures(), 1, "train", ids, own, Sent({"theta": task.theta0})))
    for m in range(4):
        x, y = federation.client(f"c{m}")["train"]
        outputs = net(x).double()
        expected = {
            "loss": F.cross_entropy(outputs, y),
            "correct": (outputs.argmax(1) == y).double().mean(),
            "shares": len(y) * (F.one_hot(y, 3) * outputs.softmax(-1)).mean(0),
            "centroids": torch.einsum("nc,nd->cd", F.one_hot(y, 3).float(), net[:2](x)) / len(y),
            "after": F.cross_entropy(task.module(result.own["theta"][m])(x), y),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(result.up[name][m], value.detach(), rtol=1e-5, atol=1e-6, err_msg=name)
        if not SIZES["val"][m]:
            assert result.up["held"][m].tolist() == [0.0, 0.0, 0.0]
        else:
            x, y = federation.client(f"c{m}")["val"]
            held = 2 * (F.one_hot(y, 3) * net(x).softmax(-1)).mean(0)
            np.testing.assert_allclose(result.up["held"][m], held.detach(), rtol=1e-5, atol=1e-6)
