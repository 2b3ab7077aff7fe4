"""What a model takes: one tensor, or several by their names, which the module gets as keywords.

Samples are along the first axis of every tensor; those of K clients have one more axis in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from personafl.states import State

Inputs = Tensor | dict[str, Tensor]
"""The features of some samples."""

_ONLY = "x"
_NAMED = "x."


def each_input(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same function of every tensor.

    >>> each_input(len, {"ids": torch.zeros(3, 5), "mask": torch.ones(3, 5)})
    {'ids': 3, 'mask': 3}
    """
    return {name: function(value) for name, value in x.items()} if isinstance(x, dict) else function(x)


def tensors(x: Inputs) -> list[Tensor]:
    """All tensors of the inputs."""
    return list(x.values()) if isinstance(x, dict) else [x]


def length(x: Inputs) -> int:
    """How many samples there are."""
    return len(tensors(x)[0])


def some(x: Inputs, which: slice | int | Tensor) -> Inputs:
    """Some samples, or the inputs of one client of K."""
    return each_input(lambda value: value[which], x)


def stacked(parts: Sequence[Inputs]) -> Inputs:
    """Inputs of equal shapes with an axis in front."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: torch.stack([part[name] for part in parts]) for name in first}  # type: ignore[index]
    return torch.stack(parts)  # type: ignore[arg-type]


def unbound(x: Inputs) -> list[Inputs]:
    """The inverse of `stacked`."""
    if not isinstance(x, dict):
        return list(x.unbind(0))
    columns = {name: value.unbind(0) for name, value in x.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(length(x))]


def as_state(x: Inputs) -> State:
    """As a flat dictionary, which `from_state` undoes.

    >>> sorted(as_state({"ids": torch.zeros(1), "mask": torch.ones(1)}))
    ['x.ids', 'x.mask']
    """
    return {f"{_NAMED}{name}": value for name, value in x.items()} if isinstance(x, dict) else {_ONLY: x}


def from_state(state: Mapping[str, Tensor]) -> Inputs:
    """The inputs in a flat dictionary; what else is there is left alone."""
    if _ONLY in state:
        return state[_ONLY]
    return {name.removeprefix(_NAMED): value for name, value in state.items() if name.startswith(_NAMED)}


def described(x: Inputs) -> str:
    """Shapes and types, for people: "(10, 64) float32".

    >>> described({"ids": torch.zeros(3, 5, dtype=torch.int64), "mask": torch.ones(3, 5)})
    'ids (3, 5) int64, mask (3, 5) float32'
    """
    if isinstance(x, dict):
        return ", ".join(f"{name} {described(value)}" for name, value in x.items())
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
