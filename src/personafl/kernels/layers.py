"""Layers whose usual form does not survive being run for many clients at once, and their replacements.

Dropout draws from the process's generator and batch normalization mixes the padding of short batches into its
statistics. The replacements take what they need from a `Frame` that `Task` fills before each call: the random
key of this client and step, and the weight of each sample (0 for padding).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from personafl.errors import ModelError

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_M1 = -4658895280553007687
_M2 = -7723592293110705685


class Frame:
    """What the replacement layers know of the current call."""

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.weight: Tensor | None = None
        self._calls = 0

    def enter(self, key: Tensor | None, weight: Tensor | None) -> None:
        self.key, self.weight, self._calls = key, weight, 0

    def next_call(self) -> int:
        self._calls += 1
        return self._calls


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
        count = 1
        for extent in shape:
            count *= extent
        position = torch.arange(count, device=x.device).view(shape)
        z = (self.frame.key ^ self.frame.next_call()) * _M1 + position * _GAMMA
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _M1
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _M2
        uniform = ((z >> 40) & 0xFFFFFF).float() / float(1 << 24)
        return x * (uniform >= self.p).to(x.dtype) / (1.0 - self.p)


class WeightedBatchNorm(nn.Module):
    """Batch normalization by the statistics of this client's batch, padding left out."""

    def __init__(self, layer: _BatchNorm, frame: Frame) -> None:
        super().__init__()
        self.eps, self.frame = layer.eps, frame
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        spatial = tuple(range(2, x.dim()))
        channelwise = (1, -1, *(1 for _ in spatial))
        over = (0, *spatial)
        share = x.new_ones(len(x)) if self.frame.weight is None else self.frame.weight
        # A client without samples is padding throughout: nothing to normalize by.
        share = (share / share.sum().clamp(min=1e-12)).view(-1, *(1 for _ in x.shape[1:]))
        places = 1
        for d in spatial:
            places *= x.shape[d]
        mean = (x * share).sum(over).view(channelwise) / places
        variance = ((x - mean).square() * share).sum(over).view(channelwise) / places
        out = (x - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            out = out * self.weight.view(channelwise) + self.bias.view(channelwise)
        return out


def replace_layers(module: nn.Module, frame: Frame) -> nn.Module:
    """Swap the layers named above inside `module` (changed in place and returned).

    Raises
    ------
    ModelError
        For a layer that keeps running statistics: they would be shared between clients and are updated in
        place, which no parameter vector can express.
    """
    replaced: dict[int, nn.Module] = {}  # a layer that is used in two places stays one layer
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        new = replaced.get(id(layer))
        if isinstance(layer, _BatchNorm | _InstanceNorm) and layer.running_mean is not None:
            kind = type(layer).__name__
            raise ModelError(
                f"layer {path or '(the model itself)'!r} ({kind}) updates its running statistics in place during "
                f"training, so clients would overwrite each other's: use nn.GroupNorm there, or statistics per "
                f"client with {kind}(..., track_running_stats=False)"
            )
        if new is not None:
            pass
        elif isinstance(layer, _BatchNorm):
            new = WeightedBatchNorm(layer, frame)
        elif isinstance(layer, _DROPOUTS):
            new = KeyedDropout(layer.p, frame, channels=not isinstance(layer, nn.Dropout))
        elif isinstance(layer, _DropoutNd):
            raise ModelError(
                f"layer {path!r} ({type(layer).__name__}) draws from the process's random generator, which no seed "
                "of a client controls: use nn.Dropout there"
            )
        if new is None:
            continue
        replaced[id(layer)] = new
        if not path:
            return new
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, new)
    return module
