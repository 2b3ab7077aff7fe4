"""Convolutional models for images of shape (channels, height, width) or (height, width)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from personafl.models.base import misfit
from personafl.settings import check


@dataclass(frozen=True)
class CNN:
    """Two convolutions and three linear layers, the CNN of PyTorch's CIFAR10 tutorial (pFedMe, PersFL).

    6 and 16 channels of 5x5, each with ReLU and 2x2 max-pooling, then 120 and 84 hidden units.

    >>> sum(p.numel() for p in CNN().build((3, 32, 32), 10).parameters())
    62006
    """

    name: ClassVar[str] = "cnn"

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
        before, channels, height, width = image(self.name, shape, smallest=16)
        rest = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        return nn.Sequential(
            *before,
            nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(rest, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
        )  # fmt: skip


@dataclass(frozen=True)
class FemnistCNN:
    """Two wide convolutions and two linear layers: FedAvg's CNN for MNIST, with hidden = 2048 LEAF's for FEMNIST.

    32 and 64 channels of 5x5 that keep the image's size, each with ReLU and 2x2 max-pooling (McMahan et al. 2017;
    Caldas et al. 2018).

    >>> sum(p.numel() for p in FemnistCNN().build((28, 28), 10).parameters())
    1663370
    """

    hidden: int = 512

    name: ClassVar[str] = "femnist-cnn"

    def __post_init__(self) -> None:
        check("model.hidden", self.hidden, self.hidden >= 1, "at least 1")

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
        before, channels, height, width = image(self.name, shape, smallest=4)
        return nn.Sequential(
            *before,
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs),
        )  # fmt: skip


def image(model: str, shape: Sequence[int], smallest: int) -> tuple[list[nn.Module], int, int, int]:
    """Layers that give images their axis of channels where they have none; then channels, height and width."""
    expected = f"images (channels, height, width) or (height, width) of at least {smallest} by {smallest}"
    if len(shape) not in (2, 3) or min(shape[-2:]) < smallest:
        raise misfit(model, expected, shape)
    height, width = shape[-2:]
    if len(shape) == 3:
        return [], shape[0], height, width
    return [nn.Unflatten(1, (1, height))], 1, height, width
