"""Networks as users bring them, in plain torch, for jobs of `personafl bench` and the libraries that do them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 100
"""Of the jobs on text."""


class SensorCNN(nn.Sequential):
    """Three convolutions in time with group normalization, on windows of nine sensors: 117,822 parameters."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        layers: list[nn.Module] = []
        for before, after, kernel in ((shape[0], 64, 7), (64, 96, 5), (96, 128, 5)):
            layers += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.GroupNorm(8, after), nn.ReLU()]
            layers += [nn.MaxPool1d(2)]
        head = (nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(512, 40), nn.ReLU(), nn.Linear(40, outputs))
        super().__init__(*layers, *head)


class Block(nn.Module):
    """Of a residual network (He et al. 2016), with group normalization."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet8(nn.Module):
    """Three blocks of 16, 32 and 64 channels."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return out


class Transformer(nn.Module):
    """Two layers of width 32 on words, without dropout, so that everybody computes the same."""

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Parameter(0.1 * torch.randn(1, shape[0], width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.words(x) + self.positions).mean(1))
        return out


class GRU(nn.Module):
    """32 units, and a linear layer on the last step's output."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(shape[-1], 32, batch_first=True), nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0][:, -1])
        return out


class LowRank(nn.Module):
    """A linear layer that is frozen, and a trained matrix of rank 4 beside it (Hu et al. 2022)."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + 2.0 * self.up(self.down(x))
        return out


class AdaptedLayer(nn.Module):
    """A layer of a transformer, frozen but for low-rank matrices in its feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        wide, narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.requires_grad_(False)
        self.wide, self.narrow = LowRank(wide.requires_grad_(False)), LowRank(narrow.requires_grad_(False))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        out: Tensor = self.norm2(x + self.narrow(F.relu(self.wide(x))))
        return out


class Adapted(nn.Module):
    """Two such layers of width 64 on words, and a trained head."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64).requires_grad_(False)
        self.positions = nn.Parameter(0.1 * torch.randn(1, shape[0], 64), requires_grad=False)
        self.layers, self.head = nn.Sequential(AdaptedLayer(64), AdaptedLayer(64)), nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.words(x) + self.positions).mean(1))
        return out


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "sensors": SensorCNN, "resnet": ResNet8, "transformer": Transformer, "gru": GRU, "lora": Adapted,
}  # fmt: skip


def build(kind: str, shape: Any, outputs: int) -> nn.Module:
    """A network with weights that are the same whoever builds it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[kind](tuple(shape), outputs)
