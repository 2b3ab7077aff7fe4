"""Layers whose usual form does not survive being run for many clients at once, and their replacements.

Dropout draws from the process's generator and batch normalization mixes the padding of short batches into its
statistics. The replacements take what they need from a `Frame` that `Task` fills before each call: the random
key of this client and step, and the weight of each sample (0 for padding).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from personafl.errors import ModelError
from personafl.kernels.batch_norm import WeightedBatchNorm as WeightedBatchNorm
from personafl.kernels.batch_norm import tracked_layers, weighted
from personafl.kernels.frame import Frame as Frame
from personafl.kernels.randomness import GAMMA, M1, at_least

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of (seed, client, round, step, layer, position)."""

    def __init__(self, p: float, frame: Frame, channels: bool) -> None:
        super().__init__()
        self.p, self.frame, self.channels = p, frame, channels

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if self.p >= 1.0:
            return torch.zeros_like(x)
        if self.frame.key is None:
            raise ModelError("dropout needs a random key: call the model through Task.loss")
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else tuple(x.shape)
        key, position = self.frame.key, torch.arange(math.prod(shape), device=x.device).view(shape)
        if self.frame.clients is not None:
            key, position = _of_clients(self.frame, self.frame.axis(self, x), shape, x.device)
        kept = at_least((key ^ self.frame.next_call()) * M1 + position * GAMMA, self.p)
        return x * kept.view(shape).to(x.dtype) / (1.0 - self.p)


class RandomSlopes(nn.Module):
    """`nn.RReLU` of operations that vmap knows."""

    def __init__(self, lower: float, upper: float) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.leaky_relu(x, (self.lower + self.upper) / 2)
        slope = self.lower + (self.upper - self.lower) * torch.rand_like(x)
        return torch.where(x >= 0, x, x * slope)


def _of_clients(frame: Frame, axis: int | None, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The key and the position, counted within its client's own samples, of every number of K clients' rows.

    Both have the axes (before the rows, client, row, after the rows). Padding is not counted, as it is not there when
    the client is computed alone; what falls on it is of no account.
    """
    assert frame.key is not None and frame.weight is not None and frame.clients is not None
    if axis is None:
        raise ModelError("dropout of something that has no samples")
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    each = shape[axis] // frame.clients
    own = frame.weight.ne(0).sum(1) * (each // frame.weight.shape[1])
    first = torch.arange(before, device=device).view(-1, 1, 1, 1) * own.view(1, -1, 1, 1)
    row = first + torch.arange(each, device=device).view(1, 1, -1, 1)
    return frame.key.view(1, -1, 1, 1), row * after + torch.arange(after, device=device)


def replace_layers(module: nn.Module, frame: Frame) -> nn.Module:
    """Swap the layers named above inside `module` (changed in place and returned); modes stay as they are.

    Raises
    ------
    ModelError
        For instance normalization that keeps running statistics, which it updates in place.
    """
    numbers = {id(layer): number for number, layer in enumerate(tracked_layers(module).values())}
    replaced: dict[int, nn.Module] = {}  # a layer that is used in two places stays one layer
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        new = replaced.get(id(layer)) or _replacement(path, layer, frame, numbers.get(id(layer)))
        if new is None:
            continue
        replaced[id(layer)] = new
        if not path:
            return new
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, new)
    return module


def _replacement(path: str, layer: nn.Module, frame: Frame, number: int | None) -> nn.Module | None:
    if isinstance(layer, _BatchNorm) and (number is not None or layer.running_mean is None):
        return weighted(layer, frame, number)
    if isinstance(layer, _InstanceNorm) and layer.training and layer.running_mean is not None:
        kind = type(layer).__name__
        raise ModelError(
            f"layer {path or '(the model itself)'!r} ({kind}) updates its running statistics in place during training, "
            f"so clients would overwrite each other's: use {kind}(..., track_running_stats=False), or set the layer to "
            "eval() to keep the statistics that it has"
        )
    if type(layer) is nn.RReLU:
        return RandomSlopes(layer.lower, layer.upper).train(layer.training)
    if isinstance(layer, _DROPOUTS):
        return KeyedDropout(layer.p, frame, channels=not isinstance(layer, nn.Dropout)).train(layer.training)
    return None
