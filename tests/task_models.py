"""Modules and batches for the tests of `Task`, and what holds for all of them."""

import numpy as np
import torch
from torch import Tensor, nn

from personafl.kernels.task import Batch, Task
from personafl.streams import mix, name_key

CLASSES = 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(*shape: int, seed: int = 0, classes: int = CLASSES) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def keys(count: int) -> Tensor:
    return torch.from_numpy(mix(name_key("test"), np.arange(count)).view(np.int64))


def a_batch(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Batch:
    return Batch(x, y, torch.ones(len(x)) if weight is None else weight, keys(1)[0])


def seeded(module_type, *args, **kwargs) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module_type(*args, **kwargs)


class Tokens(nn.Module):
    """Mean embedding of int tokens, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x).mean(1))


class Partly(nn.Module):
    """A frozen parameter, a buffer, and a parameter that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, CLASSES)
        self.frozen = nn.Parameter(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.frozen + self.shift)


class Scaled(nn.Module):
    """A parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.temperature


class Autoencoder(nn.Module):
    """The decoder's weight is the encoder's: one tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, CLASSES))


def batch_norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def layer_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, CLASSES))


IMAGES, ROWS, BOXES = (2, 6, 6), (12,), (3, 4)

# What the module is, one sample's shape, and whether it is computed without vmap.
MODULES = {
    "mlp": (mlp, BOXES, True),
    "linear": (lambda: nn.Linear(12, CLASSES, bias=False), ROWS, True),
    "mlp in place": (
        lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)),
        ROWS,
        True,
    ),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 5), nn.Tanh()), nn.Sequential(nn.Linear(5, CLASSES))),
        ROWS,
        True,
    ),
    "cnn": (cnn, IMAGES, False),
    "dropout": (dropout_net, ROWS, False),
    "batch norm": (batch_norm_net, IMAGES, False),
    "layer norm": (layer_norm_net, ROWS, False),
    "frozen layer": (
        lambda: nn.Sequential(nn.Linear(12, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, CLASSES)),
        ROWS,
        False,
    ),
    "flatten two axes": (
        lambda: nn.Sequential(nn.Flatten(1, 2), nn.Linear(12, CLASSES)),
        BOXES,
        False,
    ),
}


def assert_stacked_equals_single(task: Task, x: Tensor, y: Tensor) -> None:
    clients, size = y.shape[:2]
    theta = task.theta0 + 0.3 * random(clients, task.size, seed=9)
    weight = (torch.arange(size) < torch.tensor([size, size - 2, 1])[:, None]).float()
    batch = Batch(x, y, weight, keys(clients))
    gradients, sums = task.gradient_stacked(theta, batch), task.evaluate_stacked(theta, batch)
    outputs = task.predict_stacked(theta, x, weight)
    descended, pulled, anchor = theta.clone(), theta.clone(), task.theta0.expand(clients, -1)
    task.descend_stacked(descended, batch, lr=0.5)
    torch.testing.assert_close(descended, theta - 0.5 * gradients, rtol=1e-5, atol=1e-6)
    task.descend_stacked(pulled, batch, lr=0.5, pull=0.3, anchor=anchor)
    torch.testing.assert_close(pulled, descended - 0.5 * 0.3 * (theta - anchor), rtol=1e-5, atol=1e-5)
    for k in range(clients):
        mine = Batch(x[k], y[k], weight[k], batch.key[k])
        torch.testing.assert_close(gradients[k], task.gradient(theta[k], mine), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outputs[k], task.predict(theta[k], x[k], weight[k]), rtol=1e-4, atol=1e-5)
        for measure, value in task.evaluate(theta[k], mine).items():
            torch.testing.assert_close(sums[measure][k], value, rtol=1e-4, atol=1e-4)
