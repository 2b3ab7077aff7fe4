"""Layers whose usual form does not survive being run for many clients at once, and their replacements.

Dropout draws from the process's generator and batch normalization mixes the padding of short batches into its
statistics. The replacements take what they need from a `Frame` that `Task` fills before each call: the random
key of this client and step, and the weight of each sample (0 for padding).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

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
    """What the replacement layers know of the current call.

    In a pass for K clients at once (`clients` = K), `key` is (K,), `weight` is (K, B), and tensors have K·B rows, those
    of the first client first. Rows are usually along axis 0, but along axis 1 where time comes first: `axes` has what
    was found of each layer when the model was verified.
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.weight: Tensor | None = None
        self.clients: int | None = None
        self.rows = 0
        self.axes: dict[str, int | None] = {}
        self._calls = 0

    def enter(self, key: Tensor | None, weight: Tensor | None, clients: int | None = None, rows: int = 0) -> None:
        self.key, self.weight, self._calls, self.clients, self.rows = key, weight, 0, clients, rows

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def axis(self, layer: nn.Module, x: Tensor) -> int | None:
        """Along which axis of its input a layer sees the rows of K clients; None where it sees something else."""
        path: str = layer.path  # type: ignore[assignment]
        if path not in self.axes:
            fits = [axis for axis in range(min(2, x.dim())) if x.shape[axis] % self.rows == 0]
            self.axes[path] = fits[0] if fits else None
        return self.axes[path]

    @contextmanager
    def one_client(self, key: Tensor | None, weight: Tensor | None) -> Iterator[None]:
        """Within a pass for K clients, a layer that is computed as for one."""
        outer = self.key, self.weight, self.clients
        self.key, self.weight, self.clients = key, weight, None
        try:
            yield
        finally:
            self.key, self.weight, self.clients = outer


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
        z = (key ^ self.frame.next_call()) * _M1 + position * _GAMMA
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _M1
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _M2
        uniform = ((z >> 40) & 0xFFFFFF).float() / float(1 << 24)
        return x * (uniform.view(shape) >= self.p).to(x.dtype) / (1.0 - self.p)


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
