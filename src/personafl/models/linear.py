"""Linear models and fully connected layers, for samples of any shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from personafl.settings import check


@dataclass(frozen=True)
class MCLR:
    """Multinomial logistic regression: one linear layer.

    >>> sum(p.numel() for p in MCLR().build((28, 28), 10).parameters())
    7850
    """

    name: ClassVar[str] = "mclr"

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU between them; unchanged, the DNN 784-100-10 of PersFL and pFedMe.

    >>> sum(p.numel() for p in MLP(hidden=(100,)).build((784,), 10).parameters())
    79510
    """

    hidden: tuple[int, ...] = (100,)
    dropout: float = 0.0

    name: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        check("model.hidden", self.hidden, all(width >= 1 for width in self.hidden), "widths of at least 1")
        check("model.dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
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

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
        return nn.Linear(math.prod(shape), outputs, bias=False)
