"""The jobs' models and batches in plain torch, for the libraries that are made for it."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import networks
import protocol
import torch
from torch import Tensor, nn


class Lstm(nn.Module):
    """`nn.LSTM` and a linear layer on the last step's output."""

    def __init__(self, features: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(x)[0][:, -1])


def build(job: protocol.Given) -> nn.Module:
    """The model with the job's initial weights."""
    model = _module(**job.settings["model"])
    nn.utils.vector_to_parameters(torch.from_numpy(job.theta0.copy()), trained(model))
    return model


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def vector(model: nn.Module) -> Any:
    return nn.utils.parameters_to_vector(trained(model)).detach().numpy()


given = lru_cache(protocol.Given.load)


@lru_cache
def clients(folder: str) -> list[tuple[Tensor, Tensor]]:
    """Every client's training samples, as views of what was read once."""
    job = given(folder)
    x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
    return [(x[a:b], y[a:b]) for a, b in job.train.tolist()]


class Batches:
    """`steps` batches of one client's samples, which are shuffled anew whenever all were used."""

    def __init__(self, x: Tensor, y: Tensor, steps: int, size: int) -> None:
        self.x, self.y, self.steps, self.size = x, y, steps, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        each = len(self.x) // self.size
        for step in range(self.steps):
            if step % each == 0:
                order = torch.randperm(len(self.x)).split(self.size)
            rows = order[step % each]
            yield self.x[rows], self.y[rows]


def _module(kind: str, **sizes: Any) -> nn.Module:
    if kind in networks.NETWORKS:
        return networks.build(kind, **sizes)
    if kind == "lstm":
        return Lstm(**sizes)
    if kind == "cnn":
        rest = 16 * (((sizes["side"] - 4) // 2 - 4) // 2) ** 2
        return nn.Sequential(
            nn.Conv2d(sizes["channels"], 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(rest, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, sizes["outputs"]),
        )  # fmt: skip
    widths = sizes["widths"]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
