"""Modules may return more than a tensor."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from personafl.errors import ModelError
from personafl.kernels.task import Batch, Task
from tests.task_models import CLASSES, keys, labels, random


class Returns(nn.Linear):
    def __init__(self, made) -> None:
        super().__init__(4, CLASSES)
        self.made = made

    def forward(self, x):
        return self.made(super().forward(x))


@pytest.mark.parametrize(
    "made",
    [
        lambda t: {"loss": None, "logits": t},
        lambda t: {"out": t, "aux": t + 1},
        lambda t: (t, t + 1),
        lambda t: SimpleNamespace(logits=t),
    ],
)
def test_predictions_are_taken_out_of_what_is_returned(made):
    torch.manual_seed(0)
    plain = nn.Linear(4, CLASSES)
    task = Task(Returns(made))
    theta = Task(plain).theta0
    x, y = random(2, 5, 4), labels(2, 5)
    assert torch.equal(task.predict(theta, x[0]), plain(x[0]))
    batch = Batch(x, y, torch.ones(2, 5), keys(2))
    ours, expected = (t.gradient_stacked(theta.expand(2, -1), batch) for t in (task, Task(plain)))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    "made, found", [(lambda t: {"scores": t}, "a dict with scores"), (lambda t: None, "a NoneType")]
)
def test_anything_else_is_said(made, found):
    with pytest.raises(ModelError, match=f"the model returns {found}: its forward must return a tensor"):
        Task(Returns(made)).check(random(4, 4), labels(4))
