"""A parameter outside of any layer, of which every client has its own: a class token, positions, a scale.

In a pass for the K·B rows of K clients the module holds a `ClientTensor` in its place, which looks like one client's
and carries all K. What is computed of such tensors alone is one again; what is computed with samples, such as
`x + positions` or `torch.cat([token.expand(len(x), -1, -1), x], 1)`, is that one operation under vmap, and has rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from personafl.kernels.by_client import linear_rows
from personafl.kernels.frame import Frame

_PROPERTIES = {
    "__get__", "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "is_floating_point",
    "is_contiguous", "element_size", "get_device", "is_complex", "type",
}  # fmt: skip
_PRODUCTS = {"matmul", "__matmul__", "linear"}
_WIDENING = {"expand", "repeat", "tile", "broadcast_to"}


class ClientTensor(Tensor):
    """`carried` has a leading axis K that nobody sees.

    >>> frame = Frame()
    >>> frame.enter(None, None, clients=2, rows=6)
    >>> scale = ClientTensor.of(torch.tensor([[1.0, 1.0], [2.0, 3.0]]), frame)
    >>> scale.shape, (torch.ones(6, 2) * scale)[[0, 5]]
    (torch.Size([2]), tensor([[1., 1.],
            [2., 3.]]))
    """

    carried: Tensor
    frame: Frame

    @staticmethod
    def of(values: Tensor, frame: Frame) -> ClientTensor:
        """A tensor of K clients, (K, ...), that looks like one of them."""
        shown = torch.empty(values.shape[1:], dtype=values.dtype, device="meta")
        out: ClientTensor = shown.as_subclass(ClientTensor)
        out.carried, out.frame = values, frame
        return out

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ClientTensor({self.carried!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, tree = tree_flatten((args, kwargs))
        own = next(leaf for leaf in leaves if isinstance(leaf, ClientTensor))
        with torch._C.DisableTorchFunctionSubclass():
            if func.__name__ in _PROPERTIES:
                found = func(*tree_unflatten([_one(leaf) for leaf in leaves], tree)[0], **kwargs)
                if not isinstance(found, Tensor):
                    return found
            return _computed(func, leaves, tree, own.frame)


def _one(leaf: Any) -> Any:
    return leaf.carried[0] if isinstance(leaf, ClientTensor) else leaf


def _computed(func: Callable[..., Any], leaves: list[Any], tree: Any, frame: Frame) -> Any:
    """The operation for every client, on its own values and rows."""
    clients = frame.clients
    assert clients is not None
    plain = [None if isinstance(leaf, ClientTensor) else leaf for leaf in leaves]
    axes = frame.axes_of(getattr(func, "__name__", ""), plain)
    product = _product(func, tree_unflatten(leaves, tree), axes[0] if axes else None, frame)
    if product is not None:
        return product
    shared = all(axis is None for axis in axes)
    frame.maps = frame.maps or not shared
    wide = _widened(func, leaves, frame) if shared else None
    inputs: list[Any] = []
    dims: list[int | None] = []
    for leaf, axis in zip(leaves if wide is None else wide[1], axes, strict=True):
        if isinstance(leaf, ClientTensor):
            inputs.append(leaf.carried)
            dims.append(0)
        elif axis is not None:
            inputs.append(leaf.unflatten(axis, (clients, -1)))
            dims.append(axis)
        else:
            inputs.append(leaf)
            dims.append(None)
    tensors = [i for i, dim in enumerate(dims) if dim is not None]

    def one(*own: Tensor) -> Any:
        filled = list(inputs)
        for i, value in zip(tensors, own, strict=True):
            filled[i] = value
        args, kwargs = tree_unflatten(filled, tree)
        return func(*args, **kwargs)

    along = wide[0] if wide is not None else next((axis for axis in axes if axis is not None), 0)
    out = vmap(one, tuple(dims[i] for i in tensors), along)(*(inputs[i] for i in tensors))
    flat, form = tree_flatten(out)
    if shared and wide is None:
        return tree_unflatten([ClientTensor.of(part, frame) for part in flat], form)
    return tree_unflatten([part.flatten(along, along + 1) for part in flat], form)


def _product(func: Callable[..., Any], inputs: Any, axis: int | None, frame: Frame) -> Tensor | None:
    """Rows times each client's matrix, as in a low-rank adapter, by one batched product; None for other operations."""
    args, kwargs = inputs
    name = getattr(func, "__name__", "")
    if name not in _PRODUCTS or len(args) != 2 or kwargs or axis is None:
        return None
    x, matrix = args
    if not isinstance(matrix, ClientTensor) or matrix.carried.dim() != 3 or x.dim() <= axis + 1:
        return None
    weight = matrix.carried if name == "linear" else matrix.carried.transpose(1, 2)
    return linear_rows(x, axis, len(weight), weight, None)


def _widened(func: Callable[..., Any], leaves: list[Any], frame: Frame) -> tuple[int, list[Any]] | None:
    """For an operation that repeats a client's tensor for all rows: along which axis, and one client's arguments."""
    if getattr(func, "__name__", "") not in _WIDENING:
        return None
    numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, int) and not isinstance(leaf, bool)]
    for axis, i in enumerate(numbers[:2]):
        if leaves[i] > 0 and leaves[i] % frame.rows == 0:
            own = list(leaves)
            own[i] = leaves[i] // (frame.clients or 1)
            return axis, own
    return None
