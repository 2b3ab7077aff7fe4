"""Max-pooling that halves a length: the larger of two neighbours, for all of a tensor at once.

torch's own writes down the place of each maximum, number after number, which is a fifth of the time of a 1-D CNN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FEW = 2**17
"""Up to so many numbers, torch pools images as fast."""


class HalvingPool1d(nn.MaxPool1d):
    """`nn.MaxPool1d(2)`."""

    def forward(self, x: Tensor) -> Tensor:
        return halved(x, -1) if _plain(x) else super().forward(x)


class HalvingPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d(2)`."""

    def forward(self, x: Tensor) -> Tensor:
        return halved_images(x) if _plain(x) and x.numel() > FEW else super().forward(x)


def halve_faster(module: nn.Module) -> None:
    """Exchange the poolings in a module that only halve."""
    for layer in module.modules():
        if type(layer) in (nn.MaxPool1d, nn.MaxPool2d) and only_halves(layer):
            layer.__class__ = HalvingPool1d if type(layer) is nn.MaxPool1d else HalvingPool2d


def only_halves(layer: Any) -> bool:
    """Whether a max-pooling takes the larger of each two neighbours, and no more."""

    def each_is(value: Any, number: int) -> bool:
        return value in (number, (number,), (number, number))

    sizes = each_is(layer.kernel_size, 2) and each_is(layer.stride, 2)
    plain = each_is(layer.padding, 0) and each_is(layer.dilation, 1)
    return sizes and plain and not layer.ceil_mode and not layer.return_indices


def halved_images(x: Tensor) -> Tensor:
    """Both ways; in this order, the same of equal numbers counts as in torch."""
    return halved(halved(x, -1), -2)


def _plain(x: Tensor) -> bool:
    return type(x) is Tensor and x.device.type == "cpu"


def halved(x: Tensor, axis: int) -> Tensor:
    """The larger of each two neighbours along an axis, counted from the end; of an odd number the last is left out.

    >>> halved(torch.tensor([[1.0, 3.0, 2.0, 2.0, 9.0]]), -1)
    tensor([[3., 2.]])
    """
    out: Tensor = _Halved.apply(x, axis)  # type: ignore[no-untyped-call]
    return out


def _neighbours(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Along an axis that is counted from the end."""
    pairs = x.narrow(axis, 0, x.shape[axis] // 2 * 2).unflatten(axis, (-1, 2))
    return pairs.select(axis, 0), pairs.select(axis, 1)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:
        first, second = _neighbours(x, axis)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(first >= second)
            ctx.shape, ctx.axis = x.shape, axis
        return torch.maximum(first, second)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (first_won,), (grad,) = ctx.saved_tensors, grads
        odd = ctx.shape[ctx.axis] % 2
        out = grad.new_zeros(ctx.shape) if odd else grad.new_empty(ctx.shape)
        to_first, to_second = _neighbours(out, ctx.axis)
        torch.mul(grad, first_won, out=to_first)
        torch.sub(grad, to_first, out=to_second)
        return out, None
