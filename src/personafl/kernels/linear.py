"""Linear layers of K clients at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x weightᵀ + bias` of K clients: `x` is (K, rows, features), parameters have a leading axis K."""
    if casts(x.device):  # it casts torch's own operations, forwards and backwards
        columns = weight.transpose(1, 2)
        return torch.bmm(x, columns) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, columns)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def casts(device: torch.device) -> bool:
    """Whether autocast is on."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def in_full(function: Any, *inputs: Any) -> Any:
    """An operation of our own, which autocast does not cast, in float32 where autocast is on."""
    if not casts(inputs[0].device):
        return function.apply(*inputs)
    with torch.autocast(inputs[0].device.type, enabled=False):
        return function.apply(*(value.float() if isinstance(value, Tensor) else value for value in inputs))


class _Linear(torch.autograd.Function):
    """Batched `x Wᵀ + b`. Its weight gradient comes out in W's own layout, which autograd's of bmm does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        (g,) = grads
        x, weight = ctx.saved_tensors
        to_x = torch.bmm(g, weight) if ctx.needs_input_grad[0] else None
        to_bias = g.sum(1) if ctx.needs_input_grad[2] else None
        return to_x, torch.bmm(g.transpose(1, 2), x), to_bias
