"""Calling a function of stacked tensors from inside vmap.

`outside_vmap(function, row, theta)` hands `function` the tensors with all clients' rows, as they are outside of vmap,
and wraps what it returns for the inside. The public way to do this is an autograd Function with a vmap rule; torch's
machinery around that takes half a millisecond a call, a third of a training step of a small model. So the same is done
with the three primitives that vmap itself is made of, and the public way stays as the fallback for a torch that has
renamed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    from torch._C._functorch import _add_batch_dim, get_unwrapped, is_batchedtensor, maybe_get_bdim, maybe_get_level
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    FAST = True
except ImportError:
    FAST = False

Stacked = Callable[..., Tensor]


def outside_vmap(function: Stacked, row: Tensor, theta: Tensor, **extra: Tensor) -> Tensor:
    """`function(theta, **extra)` for all clients at once.

    Parameters
    ----------
    function
        Takes and returns tensors with a leading axis for the clients.
    row
        A tensor that the surrounding vmap has batched; it says how many clients there are, even where `theta` is the
        same for all.
    """
    return (_fast if FAST else _public)(function, row, theta, **extra)


def _fast(function: Stacked, row: Tensor, theta: Tensor, **extra: Tensor) -> Tensor:
    level, count = maybe_get_level(row), len(get_unwrapped(row))

    def rows(tensor: Tensor) -> Tensor:
        if is_batchedtensor(tensor) and maybe_get_level(tensor) == level:
            return get_unwrapped(tensor).movedim(maybe_get_bdim(tensor), 0)
        return tensor.expand(count, *tensor.shape)

    theta, named = rows(theta), {name: rows(tensor) for name, tensor in extra.items()}
    with retrieve_current_functorch_interpreter().lower():
        result = function(theta, **named)
    wrapped: Tensor = _add_batch_dim(result, 0, level)
    return wrapped


def _public(function: Stacked, row: Tensor, theta: Tensor, **extra: Tensor) -> Tensor:
    result: Tensor = _Call.apply(function, tuple(extra), row, theta, *extra.values())  # type: ignore[no-untyped-call]
    return result


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(function: Stacked, names: tuple[str, ...], row: Tensor, *tensors: Tensor) -> Tensor:
        raise AssertionError("only called under vmap, with a batched row")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        function: Stacked,
        names: tuple[str, ...],
        row: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, int]:
        theta, *extra = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims[3:], strict=True)
        )
        return function(theta, **dict(zip(names, extra, strict=True))), 0
