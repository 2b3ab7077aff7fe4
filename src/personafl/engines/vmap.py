"""Into vmap and out of it again, without what torch wraps around it.

`over_clients` is `torch.func.vmap` for functions of states. `outside_vmap(function, row, theta)`, called inside, hands
`function` the tensors with all clients' rows, as they are outside of vmap, and wraps what it returns for the inside.

The public ways cost more than the arithmetic of a small model: vmap a tenth of a millisecond a call, for trees of any
shape, and to leave it by an autograd Function with a vmap rule half a millisecond. So both are done with the primitives
that vmap itself is made of, and the public ways stay as the fallback for a torch that has renamed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from personafl.states import State

try:
    from torch._C._functorch import (
        _add_batch_dim,
        _remove_batch_dim,
        get_unwrapped,
        is_batchedtensor,
        maybe_get_bdim,
        maybe_get_level,
    )
    from torch._functorch.predispatch import lazy_load_decompositions
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.vmap import vmap_increment_nesting

    FAST = True
except ImportError:
    FAST = False

Stacked = Callable[..., Tensor]
OneClient = Callable[..., tuple[State, ...]]


def over_clients(function: OneClient, count: int, *states: State) -> tuple[State, ...]:
    """`function(*states)`, written for one client, for `count` clients: every tensor has a row for each of them.

    >>> over_clients(lambda own: ({"double": 2 * own["a"]},), 3, {"a": torch.arange(3)})
    ({'double': tensor([0, 2, 4])},)
    """
    if not FAST:
        # The row number makes sure that vmap sees `count` clients, even where they have no state of their own.
        return vmap(lambda row, *rest: function(*rest))(torch.arange(count), *states)
    lazy_load_decompositions()
    with vmap_increment_nesting(count, "error") as level:
        rows = [{name: _add_batch_dim(tensor, 0, level) for name, tensor in state.items()} for state in states]
        results = function(*rows)
        return tuple(
            {name: _remove_batch_dim(tensor, level, count, 0) for name, tensor in state.items()} for state in results
        )


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
            place, tensor = maybe_get_bdim(tensor), get_unwrapped(tensor)
            return tensor.movedim(place, 0) if place else tensor
        return tensor.expand(count, *tensor.shape)

    theta, named = rows(theta), {name: rows(tensor) for name, tensor in extra.items()}
    with temporarily_pop_interpreter_stack():
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
