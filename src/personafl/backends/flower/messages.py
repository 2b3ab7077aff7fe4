"""Tensors and numbers as Flower's records, and back.

What comes from elsewhere is checked before it is used: how many bytes it has, that each array is as long as it says,
and that names, types and shapes are those that were expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from personafl.backends.flower.job import Layout
from personafl.errors import DataError
from personafl.federation.folders import UNREADABLE
from personafl.states import State

NUMPY = "numpy.ndarray"
KINDS = ("float64", "float32", "float16", "int64", "int32", "uint8", "bool")
"""The types that travel."""
HEADER = 1024
"""More than the header of an array takes."""


def pack(state: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Tensors as a record."""
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in state.items()}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def unpack(content: RecordDict, key: str, expected: Layout | None = None) -> State:
    """The tensors of a record of a message.

    Parameters
    ----------
    expected
        What they must be: nothing that is longer is read. Left out, they may be anything, as what a server sends.

    Raises
    ------
    DataError
        In one line: which tensor is not as expected, and how it is.
    """
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise DataError(f"the message has no tensors {key!r}")
    if expected is not None:
        _check_size(record, key, expected)
        if set(record) != set(expected):
            raise DataError(f"{key} holds {_names(record)}, expected {_names(expected)}")
    out: State = {}
    for name, array in record.items():
        value = _read(array, f"{key}.{name}")
        if expected is not None and (str(value.dtype), value.shape) != expected[name]:
            kind, shape = expected[name]
            raise DataError(f"{key}.{name} is {value.dtype} {value.shape}, expected {kind} {shape}")
        out[name] = torch.from_numpy(value.copy())  # what was received cannot be written to
    return out


def values(content: RecordDict, key: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The plain values of a record of a message, each of its type and none missing."""
    record = content.get(key)
    if not isinstance(record, ConfigRecord):
        raise DataError(f"the message has no values {key!r}")
    for name, kind in kinds.items():
        value = record.get(name)
        if type(value) is not kind:
            raise DataError(f"{key}.{name} is {str(value)[:80]!r}, expected {kind.__name__}")
    return {name: record[name] for name in kinds}


def plain(text: str, most: int = 500) -> str:
    r"""A text from elsewhere, fit for a terminal, a log and a page: no control characters, and not too long.

    What moves a cursor, changes colours, breaks a line or turns the direction of writing becomes a blank.

    >>> plain("no\nroom \x1b[2Jhere \u202eyas I")
    'no room  [2Jhere  yas I'
    >>> plain("a" * 9, 5)
    'aaaa…'
    """
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(character if character.isprintable() else " " for character in short)


def _check_size(record: ArrayRecord, key: str, expected: Layout) -> None:
    size = sum(len(array.data) for array in record.values())
    most = sum(np.dtype(kind).itemsize * int(np.prod(shape)) + HEADER for kind, shape in expected.values())
    if size > most:
        raise DataError(f"{key} has {size} bytes, more than the {most} of what was asked for")


def _read(array: Array, where: str) -> NDArray[Any]:
    """An array, never longer than the bytes that came: numpy would take memory on the word of the header."""
    data = memoryview(array.data)
    if array.stype != NUMPY:
        raise DataError(f"{where} is not a numpy array")
    head = BytesIO(data[:HEADER])
    try:
        if np.lib.format.read_magic(head) != (1, 0):
            raise ValueError("unknown version")
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(head)
    except UNREADABLE as error:
        raise DataError(f"{where} cannot be read: {str(error)[:80]}") from None
    if str(dtype) not in KINDS or in_columns:
        raise DataError(f"{where} has the type {str(dtype)[:40]}; known: {', '.join(KINDS)}, row after row")
    count, body = _product(shape), data[head.tell() :]
    if len(body) != count * dtype.itemsize:
        raise DataError(f"{where} says {dtype} {shape} and has {len(body)} bytes")
    return cast(NDArray[Any], np.frombuffer(body, dtype).reshape(shape))


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:  # Python's integers: these do not overflow
        count *= size
    return count if all(size >= 0 for size in shape) else -1


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(str(name)[:40] for name in names)[:10]) or "nothing"
