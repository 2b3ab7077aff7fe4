"""Modes are honoured: what is in eval() stays so while clients train, what is frozen is a constant."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import personafl as pf
from personafl.kernels.frame import Frame
from personafl.kernels.layers import replace_layers
from personafl.kernels.modes import frozen_and_eval
from personafl.kernels.task import Batch, Task
from tests.task_models import CLASSES, a_batch, keys, labels, random


def net() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, CLASSES))
    made[1].running_mean.uniform_(-1, 1)
    made[1].running_var.uniform_(0.5, 2)
    return made


def gradient_of_torch(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of the module as it stands, with its own modes."""
    module = copy.deepcopy(module)
    F.cross_entropy(module(x), y).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_in_eval_has_torchs_gradients_in_eval(frozen):
    module = net().eval()
    module[1].requires_grad_(not frozen)
    task, x, y = Task(module), random(5, 4), labels(5)
    assert task.full_size == task.size
    torch.testing.assert_close(task.gradient(task.theta0, a_batch(x, y)), gradient_of_torch(module, x, y))
    two = Batch(torch.stack([x, x]), torch.stack([y, y]), torch.ones(2, 5), keys(2))
    for row in task.gradient_stacked(task.theta0.expand(2, -1), two):
        torch.testing.assert_close(row, gradient_of_torch(module, x, y), rtol=1e-4, atol=1e-6)


def test_batch_norm_in_train_beside_dropout_in_eval():
    module = net()
    module[2].eval()
    task, x, y = Task(module), random(5, 4), labels(5)
    torch.testing.assert_close(
        task.gradient(task.theta0, a_batch(x, y)), gradient_of_torch(module, x, y), rtol=1e-4, atol=1e-5
    )


def test_dropout_in_train_beside_batch_norm_in_eval():
    module = net()
    module[1].eval()
    task, x, y = Task(module), random(5, 4), labels(5)
    losses = [task.loss(task.theta0, Batch(x, y, torch.ones(5), key)).item() for key in keys(2)]
    assert losses[0] != losses[1] and task.full_size == task.size
    with torch.no_grad():
        hidden = module[1](module[0](x))
    task.frame.enter(keys(1)[0], None)
    assert torch.equal(task._training[1](task._training[0](x)), hidden)


class Activated(nn.BatchNorm2d):
    """As timm has it: normalization, dropout and activation in one class with a forward of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Dropout(0.0), nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(self.drop(x))


def activated() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 3, 2), Activated(3), nn.Conv2d(3, 2, 2), Activated(2), nn.Flatten())
    nn.init.normal_(made[1].weight, 1.0, 0.3)
    return nn.Sequential(made, nn.Linear(8, CLASSES))


def test_a_batch_norm_with_a_forward_of_its_own_keeps_it():
    module, x, y = activated(), 2 + random(7, 1, 4, 4), labels(7)
    task = Task(module)
    assert task.statistic_names == [f"0.{i}.running_{name}" for i in (1, 3) for name in ("mean", "var")]
    torch.testing.assert_close(
        task.gradient(task.theta0, a_batch(x, y)), gradient_of_torch(module, x, y), rtol=1e-3, atol=1e-5
    )
    full = torch.cat([task.theta0, task.statistics(task.theta0, x, torch.ones(7))])
    torch.testing.assert_close(task.predict(full, x), task.module(full)(x), rtol=1e-4, atol=1e-5)
    for layer in (own := copy.deepcopy(module)).modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    own(x)
    for name in task.statistic_names:
        torch.testing.assert_close(task.module(full).state_dict()[name], own.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_such_a_layer_for_many_clients():
    task = Task(activated())
    x, y = 2 + random(3, 5, 1, 4, 4), labels(3, 5)
    theta = task.theta0 + 0.1 * random(3, task.size)
    stacked = task.statistics_stacked(theta, x, torch.ones(3, 5))
    full = torch.cat([theta, stacked], 1)
    outputs = task.predict_stacked(full, x, torch.ones(3, 5))
    gradients = task.gradient_stacked(theta, Batch(x, y, torch.ones(3, 5), keys(3)))
    for k in range(3):
        torch.testing.assert_close(stacked[k], task.statistics(theta[k], x[k], torch.ones(5)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outputs[k], task.module(full[k])(x[k]), rtol=1e-4, atol=1e-5)
        alone = task.gradient(theta[k], Batch(x[k], y[k], torch.ones(5), keys(3)[k]))
        torch.testing.assert_close(gradients[k], alone, rtol=1e-3, atol=1e-5)


def test_one_sample_in_a_batch_gives_the_bias_and_a_finite_gradient():
    """Where torch refuses: there is nothing to normalize by."""
    layer = nn.BatchNorm1d(6)
    nn.init.normal_(layer.bias)
    frame = Frame()
    frame.enter(None, torch.ones(1))
    torch.testing.assert_close(replace_layers(layer, frame)(random(1, 6))[0], layer.bias)
    task = Task(net())
    assert torch.isfinite(task.gradient(task.theta0, a_batch(random(1, 4), labels(1)))).all()


def test_synchronized_batch_norm_is_batch_norm():
    x, y = random(6, 4), labels(6)
    plain, synchronized = (Task(nn.Sequential(nn.Linear(4, CLASSES), kind(CLASSES)))
                           for kind in (nn.BatchNorm1d, nn.SyncBatchNorm))  # fmt: skip
    batch = a_batch(x, y)
    assert torch.equal(plain.gradient(plain.theta0, batch), synchronized.gradient(plain.theta0, batch))


# --- what the run says -----------------------------------------------------------------------------------------------


def test_names_of_what_is_frozen_and_in_eval_are_short():
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    for layer in module[::2]:
        layer.requires_grad_(False).eval()
    said = frozen_and_eval(module)
    assert said["frozen_parameters"] == 20 * 6 and said["frozen"] == said["eval"]
    assert said["frozen"][:2] == ["0", "2"] and said["frozen"][-1] == "and 8 more" and len(said["frozen"]) == 13
    assert frozen_and_eval(nn.Linear(2, 2)) == {} and frozen_and_eval(nn.Linear(2, 2).eval()) == {
        "eval": ["(the model)"]
    }


@pytest.mark.parametrize("whole", [True, False])
def test_the_run_says_what_is_frozen_and_in_eval(whole, tmp_path, caplog):
    module = net()
    (module if whole else module[1]).eval()
    module[0].requires_grad_(False)
    data = {f"c{k}": (random(20, 4, seed=k).numpy(), labels(20, seed=k).numpy()) for k in range(2)}
    with caplog.at_level(logging.WARNING):
        run = pf.train(
            pf.Federation.from_clients(data), module, rounds=1, local=pf.Local(lr=0.1), engine="loop", progress=False,
            out=tmp_path / "run",
        )  # fmt: skip
    resolved = pf.load_run(tmp_path / "run", module=module).manifest["resolved"]
    assert resolved["frozen_parameters"] == 30 and resolved["frozen"] == ["0"]
    assert resolved["eval"] == (["(the model)"] if whole else ["1"])
    assert ("the model is in eval()" in caplog.text) is whole
    kept = run.personal("c0")
    assert torch.equal(kept[0].weight, module[0].weight)
    assert torch.equal(kept[1].running_mean, module[1].running_mean)
    assert not np.allclose(kept[3].weight.detach(), module[3].weight.detach())
