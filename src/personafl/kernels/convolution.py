"""Convolutions and poolings for K clients at once, each with its own weights.

A convolution of few channels becomes a batched matrix product: weights (K, outputs, patch) times patches (K, patch,
places). Three things make that fast:

- The samples of a batch are the innermost axis, so that patches are copied in long runs.
- 2x2 max-pooling that follows is part of it: a place is a whole window, its patch is all that the window sees, and the
  weights are repeated for the four positions in the window. These are more multiplications, but of matrices with a
  better shape, and the maximum is one of four long rows.
- Patches are made for a few clients at a time, while they fit in the processor's cache, and made again for the
  backward pass.

Of many channels or large images, the multiplications alone take the time, and torch's own convolution, client after
client, is best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from personafl.kernels.pooling import FEW, halved_images, only_halves

POOLINGS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_CACHE = 2**23
_WIDE = 8
"""From this many channels on, torch's own convolution for one client after another is faster, measured on a CPU."""
_MUCH = 2**20
"""Of fewer channels: from so many multiplications of a client's batch on, see benchmarks/layers.py."""


def supports(layer: nn.Module) -> bool:
    """Whether `convolution` or `pooling` can compute this layer."""
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
        return plain and all(parameter.requires_grad for parameter in layer.parameters())
    return type(layer) in POOLINGS and not getattr(layer, "return_indices", False)


def narrow(layer: nn.Conv2d) -> bool:
    """Whether `convolution` computes a layer as products of its own, and not by torch client after client."""
    return layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same" and layer.in_channels < _WIDE


def plan(layers: Mapping[str, nn.Module | None]) -> list[tuple[str, nn.Module, bool]]:
    """The layers of a sequence as they are computed: name, layer, and whether it does the max-pooling that follows.

    ReLU between the two is moved behind: the values and gradients are the same, of a quarter as many numbers.
    """
    left = [(name, layer) for name, layer in layers.items() if layer is not None]
    for i in range(len(left) - 2):
        if type(left[i + 1][1]) is nn.ReLU and _joins(left[i][1], left[i + 2][1]):
            left[i + 1], left[i + 2] = left[i + 2], left[i + 1]
    out: list[tuple[str, nn.Module, bool]] = []
    for name, layer in left:
        if out and _joins(out[-1][1], layer):
            out[-1] = (*out[-1][:2], True)
        else:
            out.append((name, layer, False))
    return out


def _joins(layer: nn.Module, following: nn.Module) -> bool:
    """Whether `convolution` can do the max-pooling that follows a layer, too."""
    if type(layer) is not nn.Conv2d or type(following) is not nn.MaxPool2d or layer.in_channels >= _WIDE:
        return False
    stepwise = _pair(layer.stride) == _pair(layer.dilation) == (1, 1)
    halving = _pair(following.kernel_size) == _pair(following.stride) == (2, 2)
    plain = _pair(following.padding) == (0, 0) and _pair(following.dilation) == (1, 1) and not following.ceil_mode
    return stepwise and halving and plain


def pooling(layer: nn.Module, x: Tensor) -> Tensor:
    """A pooling layer on (K, B, …)."""
    rows = x.flatten(0, 1)
    large = type(layer) is nn.MaxPool2d and rows.numel() > FEW and only_halves(layer) and x.device.type == "cpu"
    out: Tensor = halved_images(rows) if large else layer(rows)
    return out.view(*x.shape[:2], *out.shape[1:])


def convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None, pooled: bool = False) -> Tensor:
    """A convolution, and 2x2 max-pooling where `plan` has it, of `x` (K, B, channels, height, width).

    `weight` and `bias` are the layer's parameters with a leading axis K. The result is (K, B, outputs, height, width),
    in memory often with the samples as the innermost axis.
    """
    padding = (0, 0) if layer.padding == "valid" else _pair(layer.padding)
    settings = zip(x.shape[-2:], weight.shape[-2:], padding, _pair(layer.stride), _pair(layer.dilation), strict=True)
    rows, columns = (_Axis.of(*setting, 2 if pooled else 1) for setting in settings)
    if layer.in_channels >= _WIDE or _much(x, weight, rows, columns):
        biases = bias.unbind(0) if bias is not None else [None] * len(x)
        clients = zip(x.unbind(0), weight.unbind(0), biases, strict=True)
        whole = torch.stack([F.conv2d(*own, layer.stride, layer.padding, layer.dilation) for own in clients])
        return pooling(_HALVING, whole) if pooled else whole
    out: Tensor = _Convolution.apply(x, weight, bias, rows, columns)  # type: ignore[no-untyped-call]
    return out.permute(0, 4, 1, 2, 3)


_HALVING = nn.MaxPool2d(2)


def _much(x: Tensor, weight: Tensor, rows: _Axis, columns: _Axis) -> bool:
    """Whether a client's batch is so much work that torch's own convolution is faster even with few channels."""
    if x.device.type != "cpu":
        return False
    work = x.shape[1] * weight[0].numel() * rows.places * rows.pool * columns.places * columns.pool
    if rows.pool == 1:
        return work >= _MUCH
    return work >= 8 * _MUCH and x.shape[2] > 2  # patches of one channel are small


@dataclass(frozen=True)
class _Axis:
    """Where patches lie along the height or width of images.

    Of each image the lines 0, s, 2 s, … (phase 0), 1, s + 1, … (phase 1) … are brought together, where s is the
    distance of patches: then neighbouring places are neighbours in memory.
    """

    padding: tuple[int, int]  # before and after; less than 0 where the image ends in lines that no patch has
    pool: int
    patch: int  # lines of a patch, in all phases: kernel + pool - 1, or a few more
    places: int
    phases: int
    length: int  # lines of a phase
    step: int  # from place to place, and from line to line of a patch, in lines of a phase
    dilation: int

    @classmethod
    def of(cls, size: int, kernel: int, padding: int, stride: int, dilation: int, pool: int) -> _Axis:
        places = ((size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1) // pool
        phases = stride * pool if dilation == 1 else 1
        patch = -(-(kernel + pool - 1) // phases) * phases
        step = stride * pool // phases
        length = (places - 1) * step + (patch // phases - 1) * dilation + 1
        after = length * phases - size - padding
        return cls((padding, after), pool, patch, places, phases, length, step, dilation)

    def lines(self) -> Iterator[tuple[int, slice]]:
        """For each line of a patch within its phase: the lines of the image where it lies, for all places."""
        for line in range(self.patch // self.phases):
            start = line * self.dilation
            yield line, slice(start, start + (self.places - 1) * self.step + 1, self.step)


class _Convolution(torch.autograd.Function):
    """Gives (K, outputs, height, width, B)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: _Axis, columns: _Axis) -> Tensor:
        images, weights = _split(x, rows, columns), _repeat(weight, rows, columns)
        sums = x.new_empty(*weights.shape[:2], rows.places * columns.places * x.shape[1])
        for some, patches in _blocks(images, rows, columns):
            torch.bmm(weights[some], patches, out=sums[some])
        out, *winners = [sums] if rows.pool == 1 else _largest(sums)
        if bias is not None:
            out += bias.unsqueeze(2)
        ctx.save_for_backward(images, weights, *winners)
        ctx.axes, ctx.shape = (rows, columns), weight.shape
        return out.view(*weight.shape[:2], rows.places, columns.places, x.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        images, weights, *winners = ctx.saved_tensors
        to_out = grads[0].flatten(2)
        to_bias = to_out.sum(2) if ctx.needs_input_grad[2] else None
        to_sums = _to_winners(to_out, *winners) if winners else to_out
        to_weights = torch.empty_like(weights)
        to_images = torch.zeros_like(images) if ctx.needs_input_grad[0] else None
        for some, patches in _blocks(images, *ctx.axes):
            torch.bmm(to_sums[some], patches.transpose(1, 2), out=to_weights[some])
            if to_images is not None:
                to_patches = torch.bmm(weights[some].transpose(1, 2), to_sums[some], out=patches)
                _add_patches(to_images[some], to_patches, *ctx.axes)
        to_x = None if to_images is None else _join(to_images, *ctx.axes)
        return to_x, _add_repeated(to_weights, ctx.shape, *ctx.axes), to_bias, None, None


# Images (K, B, channels, height, width) to (K, channels, phases, phases, length, length, B), and back.


def _split(x: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    padding = (0, 0, *columns.padding, *rows.padding)
    x = x.permute(0, 2, 3, 4, 1)
    x = F.pad(x, padding) if any(padding) else x
    lines: Tensor = x.unflatten(3, (-1, columns.phases)).unflatten(2, (-1, rows.phases))
    return lines.permute(0, 1, 3, 5, 2, 4, 6).contiguous()


def _join(images: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    padding = (0, 0, *columns.padding, *rows.padding)
    x = images.permute(0, 1, 4, 2, 5, 3, 6).flatten(4, 5).flatten(2, 3)
    x = F.pad(x, [-lines for lines in padding]) if any(padding) else x
    return x.permute(0, 4, 1, 2, 3)


# The patches (K, channels · patch · patch, places · places · B) of images, and their sum where they overlap.


def _blocks(images: Tensor, rows: _Axis, columns: _Axis) -> Iterator[tuple[slice, Tensor]]:
    """Some clients after another, and their patches, always in the same memory so that it stays in the cache."""
    shape = _patch_shape(images, rows, columns)
    k, channels, height, width, row, column, one = images.stride()
    strides = (
        k, channels, rows.dilation * row, height, columns.dilation * column, width,
        rows.step * row, columns.step * column, one,
    )  # fmt: skip
    overlapping = images.as_strided(shape, strides)
    blocks = min(len(images), -(-images.element_size() * math.prod(shape) // _CACHE))
    count = -(-len(images) // blocks)
    memory = images.new_empty(count, *shape[1:])
    for first in range(0, len(images), count):
        some = slice(first, first + count)
        patches = memory[: len(images) - first].copy_(overlapping[some])
        yield some, patches.view(len(patches), shape[1] * rows.patch * columns.patch, -1)


def _add_patches(images: Tensor, patches: Tensor, rows: _Axis, columns: _Axis) -> None:
    patches = patches.view(_patch_shape(images, rows, columns))
    for i, height in rows.lines():
        for j, width in columns.lines():
            images[:, :, :, :, height, width] += patches[:, :, i, :, j]


def _patch_shape(images: Tensor, rows: _Axis, columns: _Axis) -> tuple[int, ...]:
    return (
        *images.shape[:2], rows.patch // rows.phases, rows.phases, columns.patch // columns.phases, columns.phases,
        rows.places, columns.places, images.shape[-1],
    )  # fmt: skip


# Weights (K, outputs, channels, kernel, kernel) for every position in a pooling window, and the sum of these. As there
# are zeros between them, to move the weights within their patches is to move all of them along in memory.


def _repeat(weight: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    clients, outputs, channels, height, width = weight.shape
    shifts, size = _shifts(rows, columns), outputs * channels * rows.patch * columns.patch
    padded = weight.new_zeros(clients, shifts[-1] + size)
    in_patches = padded[:, shifts[-1] :].view(clients, outputs, channels, rows.patch, columns.patch)
    in_patches[..., :height, :width] = weight
    moved = [padded[:, shifts[-1] - shift :][:, :size] for shift in shifts]
    return torch.stack(moved, 1).view(clients, len(shifts) * outputs, -1)


def _add_repeated(weights: Tensor, shape: tuple[int, ...], rows: _Axis, columns: _Axis) -> Tensor:
    shifts = _shifts(rows, columns)
    moved = weights.view(len(weights), len(shifts), -1).unbind(1)
    total = moved[0].clone()
    for shift, part in zip(shifts[1:], moved[1:], strict=True):
        total[:, :-shift] += part[:, shift:]
    return total.view(*shape[:3], rows.patch, columns.patch)[..., : shape[3], : shape[4]]


def _shifts(rows: _Axis, columns: _Axis) -> list[int]:
    return [i * columns.patch + j for i in range(rows.pool) for j in range(columns.pool)]


# The largest of four, by three matches.


def _largest(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, second, third, fourth = sums.chunk(4, 1)
    upper, lower = torch.maximum(first, second), torch.maximum(third, fourth)
    largest = torch.maximum(upper, lower)
    # 1 where the earlier one won or at a tie, as torch's pooling has it. In place: nobody needs the sums any more.
    first.ge_(second)
    third.ge_(fourth)
    return largest, sums, upper.ge_(lower)


def _to_winners(grad: Tensor, winners: Tensor, upper: Tensor) -> Tensor:
    """The gradient of `_largest`."""
    first, _, third, _ = winners.chunk(4, 1)
    out = torch.empty_like(winners)
    to_first, to_second, to_third, to_fourth = out.chunk(4, 1)
    to_upper = grad * upper
    to_lower = grad - to_upper
    torch.mul(to_upper, first, out=to_first)
    torch.sub(to_upper, to_first, out=to_second)
    torch.mul(to_lower, third, out=to_third)
    torch.sub(to_lower, to_third, out=to_fourth)
    return out


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
