"""The arrays that metrics take: an entry for each client, or the samples of all clients end to end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from personafl.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CELLS_AT_ONCE = 2**22
"""Tables of clients × classes or clients × bins are made this many cells at a time (32 MB)."""


def numbers(values: ArrayLike, name: str, axes: tuple[int, ...] = (1,)) -> Floats:
    """A float64 array of one axis, or as many as may be; None becomes NaN."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not an array of numbers: {error}") from error
    if array.ndim not in axes:
        raise DataError(f"{name} has shape {array.shape}; the number of axes must be {' or '.join(map(str, axes))}")
    return array


def aligned(**arrays: ArrayLike) -> list[Floats]:
    """Several arrays of the same length, in the order given."""
    out = [numbers(values, name) for name, values in arrays.items()]
    for name, array in zip(arrays, out, strict=True):
        if len(array) != len(out[0]):
            raise DataError(f"{name} has {len(array)} entries and {next(iter(arrays))} has {len(out[0])}; give as many")
    return out


def known(values: Floats) -> Floats:
    """The entries that are not NaN: those of the clients that have test data."""
    return values[~np.isnan(values)]


def share_of(count: int, share: float) -> int:
    """⌈share · count⌉, at least 1 where there is anybody; .07 · 100 is 7, though in binary it is a bit more."""
    if not 0 < share <= 1:
        raise DataError(f"share = {share} must be above 0 and at most 1")
    return min(count, max(1, math.ceil(round(share * count, 9))))


def client_sizes(sizes: ArrayLike, samples: int) -> Integers:
    """How many samples each client has; together they must be all samples."""
    out = numbers(sizes, "sizes")
    if not np.all(out >= 0) or not np.all(out == np.floor(out)):
        raise DataError("sizes must be whole numbers, 0 or more: how many samples each client has")
    if out.sum() != samples:
        raise DataError(f"sizes add up to {out.sum():.0f} and there are {samples} samples; they must be as many")
    return out.astype(np.int64)


def blocks_of_clients(sizes: Integers, columns: int) -> Iterator[tuple[slice, slice, Integers]]:
    """Runs of clients whose table with so many columns is small: (their rows, their samples, each sample's row)."""
    many = max(1, CELLS_AT_ONCE // max(1, columns))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    for first in range(0, len(sizes), many):
        last = min(first + many, len(sizes))
        row = np.repeat(np.arange(last - first), sizes[first:last])
        yield slice(first, last), slice(int(ends[first]), int(ends[last])), row
