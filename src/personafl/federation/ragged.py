"""Samples of unequal length (texts, signals): padded to one length, with a mask that says what is real.

Integers are padded with 0, floats with 0.0, labels with -100, which no loss looks at. The mask is an input beside the
others, uint8, 1 for what is real and 0 for padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.inputs import part_name, parts, whole

Array = NDArray[Any]

MASK = "mask"
"""The input that padding adds; NAME_mask for each where the lengths of several inputs differ."""
OWN_MASKS = (MASK, "attention_mask")
"""Where one of these is brought, it is the mask, and none is added."""
LENGTHS = ".lengths"
"""In a file, an array of samples end to end has another beside it, of this name, that says how long each is."""
IGNORED = -100
"""A label that is not looked at: torch's own `ignore_index`."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Samples of unequal length, end to end: `values` (total, ...) and `lengths` (N,)."""

    values: Array
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As padded to the longest."""
        return (len(self), int(self.lengths.max(initial=0)), *self.values.shape[1:])

    def padded(self, width: int, fill: int = 0) -> Array:
        """(N, width, ...).

        >>> Ragged(np.arange(3), np.array([1, 2])).padded(3).tolist()
        [[0, 0, 0], [1, 2, 0]]
        """
        out = np.full((len(self), width, *self.values.shape[1:]), fill, self.values.dtype)
        out[real(self.lengths, width)] = self.values
        return out


Part = Array | Ragged
Features = Part | dict[str, Part]


def real(lengths: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """(N, width): what is no padding."""
    return np.asarray(np.arange(width) < lengths[:, None])


def ragged(values: Sequence[Any], what: str) -> Ragged:
    """Arrays, tensors or lists of unequal length."""
    rows = [_row(value, f"{what}: sample {number}") for number, value in enumerate(values)]
    for number, row in enumerate(rows):
        if row.shape[1:] != rows[0].shape[1:]:
            raise DataError(
                f"{what}: sample {number} has shape {row.shape}, expected (any length, "
                f"{', '.join(map(str, rows[0].shape[1:]))}) as sample 0; only the first axis may differ"
            )
    kinds = {row.dtype.kind for row in rows}
    dtype = np.result_type(*{row.dtype for row in rows})
    if not kinds <= set("biuf"):
        raise DataError(f"{what} holds {dtype} values, not numbers; convert it to integer or float arrays")
    return checked_ragged(np.concatenate(rows), np.array([len(row) for row in rows], np.int64), what)


def checked_ragged(values: Array, lengths: Array, what: str) -> Ragged:
    """Samples end to end with their lengths, as a file has them."""
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or values.ndim == 0:
        raise DataError(f"{what}: lengths are {lengths.dtype} of shape {lengths.shape}; expected an integer a sample")
    if (empty := np.flatnonzero(lengths < 1)).size:
        raise DataError(f"{what}: sample {empty[0]} is empty; leave it out")
    if lengths.sum() != len(values):
        raise DataError(f"{what}: lengths add up to {lengths.sum()}, and there are {len(values)} values")
    return Ragged(values, lengths.astype(np.int64))


def equal_length(
    pieces: Sequence[tuple[Features, Part]], length: int | None = None
) -> list[tuple[Array | dict[str, Array], Array]]:
    """All pieces with arrays only: what is unequal in any of them is padded in all, and there is a mask.

    Parameters
    ----------
    length
        What to pad to; left out, the longest sample.
    """
    named: list[dict[str, Any]] = [parts(x) for x, _ in pieces]
    unequal = [name for name in named[0] if any(isinstance(piece[name], Ragged) for piece in named)]
    labels: list[Any] = [y for _, y in pieces]
    if any(isinstance(y, Ragged) for y in labels):
        labels = _padded(labels, "y", length, IGNORED)
    if not unequal:
        return [(whole(x), y) for x, y in zip(named, labels, strict=True)]
    lengths = {name: [lengths_of(piece[name]) for piece in named] for name in unequal}
    columns: dict[str, list[Array]] = {}
    for name in named[0]:
        column = [piece[name] for piece in named]
        padded = _padded(column, part_name(name), length, 0) if name in unequal else column
        columns[name or "x"] = padded
    if not set(OWN_MASKS) & named[0].keys():
        columns |= _masks(lengths, columns)
    return [({name: column[i] for name, column in columns.items()}, y) for i, y in enumerate(labels)]


def padded_length(pieces: Sequence[tuple[Features, Part]]) -> int | None:
    """The longest sample, where any are of unequal length."""
    found = [part for x, y in pieces for part in (*parts(x).values(), y) if isinstance(part, Ragged)]
    return max((part.shape[1] for part in found), default=None)


def padding_notes(
    brought: Sequence[tuple[Features, Part]], pieces: Sequence[tuple[Array | dict[str, Array], Array]]
) -> list[str]:
    """What `equal_length` did, for people to read."""
    before, (after, _) = parts(brought[0][0]), pieces[0]
    if not isinstance(after, dict) or not (added := [name for name in after if name not in before]):
        return []
    masks = [name for name in added if name.endswith(MASK)]
    widths = sorted({after[name].shape[1] for name in masks})
    lengths = " and ".join(map(str, widths))
    return [f"samples of unequal length are padded to {lengths}; {', '.join(masks)} is 1 for what is real"]


def _masks(lengths: dict[str, list[NDArray[np.int64]]], columns: dict[str, list[Array]]) -> dict[str, list[Array]]:
    """One mask where all inputs that were padded are equally long, else one for each of them."""
    first = next(iter(lengths))
    alike = all(
        np.array_equal(mine, other)
        for column in lengths.values()
        for mine, other in zip(lengths[first], column, strict=True)
    )
    made = {MASK: first} if alike else {f"{name}_{MASK}": name for name in lengths}
    if clash := made.keys() & columns.keys():
        raise DataError(f"x.{min(clash)} is there already, and is the name of the mask of what is padded; rename it")
    return {
        mask: [real(each, columns[name or "x"][0].shape[1]).astype(np.uint8) for each in lengths[name]]
        for mask, name in made.items()
    }


def _padded(column: Sequence[Part], what: str, length: int | None, fill: int) -> list[Array]:
    if fill and any(part.dtype.kind == "f" for part in column):
        raise DataError(f"{what} are floats of unequal length; only classes (integers) of unequal length can be padded")
    longest = max(part.shape[1] if len(part.shape) > 1 else 0 for part in column)
    if length is not None and longest > length:
        raise DataError(f"{what} has a sample of length {longest}, and length = {length}; cut it, or give more")
    if any(len(part.shape) < 2 for part in column):
        raise DataError(f"{what} is one number a sample in one place and a sequence in another; give sequences")
    return [padded_to(part, length or longest, fill) for part in column]


def padded_to(part: Part, width: int, fill: int = 0) -> Array:
    """Samples of equal or unequal length as (N, width, ...)."""
    if not isinstance(part, Ragged):
        part = Ragged(part.reshape(-1, *part.shape[2:]), lengths_of(part))
    if fill:
        part = Ragged(part.values.astype(np.int64), part.lengths)
    return part.padded(width, fill)


def lengths_of(part: Part) -> NDArray[np.int64]:
    """The length of each sample."""
    return part.lengths if isinstance(part, Ragged) else np.full(len(part), part.shape[1], np.int64)


def _row(value: Any, what: str) -> Array:
    try:
        row = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} is not one array: {error}") from error
    if row.ndim == 0:
        raise DataError(f"{what} is a single number, and others are sequences")
    return row
