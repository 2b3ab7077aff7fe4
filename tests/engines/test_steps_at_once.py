"""Steps that are nothing but SGD are taken at once where the network allows it, with the result of single steps."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from personafl.algorithms import FedAvg
from personafl.algorithms.base import Sent
from personafl.engines import Work
from personafl.engines.stacked import StackedEngine
from personafl.kernels.task import Task
from personafl.settings import Local
from tests.engines.test_agreement import MODELS, federation


@dataclass(frozen=True)
class StepByStep(FedAvg):
    """The same algorithm with a step of its own."""

    def step(self, carry, sent, grad, ctx):
        ctx.descend(carry, "theta", grad)
        return carry


def trained(algorithm, local, module):
    """Vectors, steps and gradients of all clients after a round, and how often they took all steps at once."""
    torch.manual_seed(0)
    calls = []
    engine = StackedEngine(Task(module()), federation(), local, seed=3, threads=1)
    through = engine.task.descend_through
    engine.task.descend_through = lambda *arguments: calls.append(1) or through(*arguments)
    theta, ids = engine.task.theta0, np.arange(len(engine.federation))
    work = Work(algorithm, 1, "train", ids, {"theta": theta.expand(len(ids), -1).clone()}, Sent({"theta": theta}))
    result = engine.run(work)
    return result.up["theta"], result.steps, result.gradients, len(calls)


@pytest.mark.parametrize("network", ["linear", "mlp"])
@pytest.mark.parametrize(
    "local", [Local(lr=0.1, batch_size=4, steps=5), Local(lr=0.1, batch_size=4, epochs=2)], ids=str
)
def test_the_same_as_step_by_step(network, local):
    """With epochs, clients are done after different numbers of steps."""
    theta, steps, gradients, calls = trained(FedAvg(), local, MODELS[network])
    expected, own_steps, own_gradients, own_calls = trained(StepByStep(), local, MODELS[network])
    assert (calls, own_calls) == (1, 0)
    torch.testing.assert_close(theta, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(steps, own_steps) and torch.equal(gradients, own_gradients)


@pytest.mark.parametrize(
    "setting",
    [
        {"momentum": 0.5},
        {"weight_decay": 0.1},
        {"clip_norm": 1.0},
        {"optimizer": "adam"},
        {"groups": {"*.bias": 0.5}},
        {"schedule": "cosine", "schedule_over": "steps"},
        {"warmup": 2, "schedule_over": "steps"},
    ],
)
def test_settings_that_are_more_than_sgd(setting):
    local = Local(lr=0.1, batch_size=4, steps=3, **setting)
    theta, *_, calls = trained(FedAvg(), local, MODELS["mlp"])
    assert calls == 0
    assert torch.equal(theta, trained(StepByStep(), local, MODELS["mlp"])[0])
