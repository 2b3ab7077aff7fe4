"""What a model takes: one tensor, or several by their names, which the module gets as keywords.

Samples are along the first axis of every tensor; those of K clients have one more axis in front.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from personafl.errors import DataError
from personafl.states import State

Inputs = Tensor | dict[str, Tensor]
"""The features of some samples."""
Shape = tuple[int, ...] | dict[str, tuple[int, ...]]
"""The shape of one sample, or of each of its inputs by name."""

A = TypeVar("A")

_ONLY = "x"
_NAMED = "x."


def each_input(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same function of every tensor.

    >>> each_input(len, {"ids": torch.zeros(3, 5), "mask": torch.ones(3, 5)})
    {'ids': 3, 'mask': 3}
    """
    return {name: function(value) for name, value in x.items()} if isinstance(x, dict) else function(x)


def parts(x: A | dict[str, A]) -> dict[str, A]:
    """The inputs by name; the name of one that is alone is empty.

    >>> parts(torch.zeros(1)), list(parts({"ids": torch.zeros(1), "mask": torch.ones(1)}))
    ({'': tensor([0.])}, ['ids', 'mask'])
    """
    return x if isinstance(x, dict) else {"": x}


def whole(by_name: dict[str, A]) -> A | dict[str, A]:
    """The inverse of `parts`."""
    return by_name.get("", by_name)


def part_name(name: str) -> str:
    """What an input is called in messages and files: "x", or "x.ids".

    >>> part_name(""), part_name("ids")
    ('x', 'x.ids')
    """
    return f"{_NAMED}{name}" if name else _ONLY


def tensors(x: Inputs) -> list[Tensor]:
    """All tensors of the inputs."""
    return list(x.values()) if isinstance(x, dict) else [x]


def one_tensor(x: Inputs) -> Tensor:
    """The inputs, where there must be one."""
    if isinstance(x, dict):
        raise DataError(f"x has the inputs {', '.join(x)}, and one tensor is expected here")
    return x


def length(x: Inputs) -> int:
    """How many samples there are."""
    return len(tensors(x)[0])


def some(x: Inputs, which: slice | int | Tensor) -> Inputs:
    """Some samples, or the inputs of one client of K."""
    return each_input(lambda value: value[which], x)


def stacked(given: Sequence[Inputs]) -> Inputs:
    """Inputs of equal shapes with an axis in front."""
    first = given[0]
    if isinstance(first, dict):
        return {name: torch.stack([part[name] for part in given]) for name in first}  # type: ignore[index]
    return torch.stack(given)  # type: ignore[arg-type]


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
    return {part_name(name): value for name, value in parts(x).items()}


def from_state(state: Mapping[str, Tensor]) -> Inputs:
    """The inputs in a flat dictionary; what else is there is left alone."""
    if _ONLY in state:
        return state[_ONLY]
    return {name.removeprefix(_NAMED): value for name, value in state.items() if name.startswith(_NAMED)}


def check_names(names: Sequence[Any]) -> None:
    """Names of inputs are keywords of `forward`, and parts of the names of files."""
    if not names:
        raise DataError("x is an empty dictionary; give at least one input, as in {'ids': …, 'mask': …}")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise DataError(f"input {name!r} must be named like a variable: the module gets it as a keyword")


# --- shapes and types, as run folders and messages have them ------------------------------------------------------


def shape_of(x: Inputs) -> Shape:
    """The shape of one sample.

    >>> shape_of(torch.zeros(10, 64)), shape_of({"ids": torch.zeros(3, 5)})
    ((64,), {'ids': (5,)})
    """
    return {n: tuple(v.shape[1:]) for n, v in x.items()} if isinstance(x, dict) else tuple(x.shape[1:])


def dtype_of(x: Inputs) -> str | dict[str, str]:
    """The type of the numbers, or of those of each input.

    >>> dtype_of({"ids": torch.zeros(3, 5)})
    {'ids': 'float32'}
    """
    return {name: _type(value) for name, value in x.items()} if isinstance(x, dict) else _type(x)


def read_shape(found: Any) -> Shape:
    """A shape that was written as lists: in a run folder, or in a message.

    >>> read_shape([64]), read_shape({"ids": [5]})
    ((64,), {'ids': (5,)})
    """
    if isinstance(found, Mapping):
        return {str(name): tuple(shape) for name, shape in found.items()}
    return tuple(found)


def written_shape(shape: Shape) -> Any:
    """The inverse of `read_shape`."""
    return {name: list(each) for name, each in shape.items()} if isinstance(shape, dict) else list(shape)


def shape_text(shape: Shape) -> str:
    """A shape for people.

    >>> shape_text((64,)), shape_text({"ids": (5,), "mask": (5,)})
    ('(64,)', 'ids (5,), mask (5,)')
    """
    if isinstance(shape, dict):
        return ", ".join(f"{name} {each}" for name, each in shape.items())
    return str(shape)


def described(x: Inputs) -> str:
    """Shapes and types, for people: "(10, 64) float32".

    >>> described({"ids": torch.zeros(3, 5, dtype=torch.int64), "mask": torch.ones(3, 5)})
    'ids (3, 5) int64, mask (3, 5) float32'
    """
    if isinstance(x, dict):
        return ", ".join(f"{name} {described(value)}" for name, value in x.items())
    return f"{tuple(x.shape)} {_type(x)}"


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
