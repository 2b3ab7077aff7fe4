"""Models by name: frozen dataclasses of their settings that build an `nn.Module` for a data set.

Models made of `nn.Sequential`, `nn.Linear` and activations take the fastest path of the stacked engine; any other
module works too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn

from personafl.algorithms.base import check
from personafl.streams import stream_key


class Model(Protocol):
    """Settings of a model."""

    name: ClassVar[str]

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """A module for samples of this shape with this many outputs."""
        ...


@dataclass(frozen=True)
class Mclr:
    """Multinomial logistic regression: one linear layer.

    >>> sum(p.numel() for p in Mclr().build((28, 28), 10).parameters())
    7850
    """

    name: ClassVar[str] = "mclr"

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


@dataclass(frozen=True)
class Mlp:
    """Fully connected layers with ReLU between them.

    >>> sum(p.numel() for p in Mlp(hidden=(100,)).build((784,), 10).parameters())
    79510
    """

    hidden: tuple[int, ...] = (100,)
    dropout: float = 0.0

    name: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        check("model.hidden", self.hidden, all(width >= 1 for width in self.hidden), "widths of at least 1")
        check("model.dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(shape)
        for following in self.hidden:
            layers += [nn.Linear(width, following), nn.ReLU()]
            layers += [nn.Dropout(self.dropout)] if self.dropout else []
            width = following
        return nn.Sequential(*layers, nn.Linear(width, outputs))


@dataclass(frozen=True)
class LinearModel:
    """A linear map without bias; for the `gaussian` data its one weight is the client's mean."""

    name: ClassVar[str] = "linear"

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        return nn.Linear(math.prod(shape), outputs, bias=False)


MODELS: dict[str, type[Model]] = {model.name: model for model in (Mclr, Mlp, LinearModel)}

DEFAULT_MODEL = {
    "digits": "mlp",
    "gaussian": "linear",
    "synthetic": "mclr",
    "mnist": "mclr",
    "fmnist": "mlp",
    "letters": "mclr",
}
"""What is taken for a data set where the config names no model."""


def initialize(model: Model, shape: Sequence[int], outputs: int, seed: int) -> nn.Module:
    """Build a model whose initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream_key(seed, "model")) & 0x7FFFFFFFFFFFFFFF)
        return model.build(shape, outputs)
