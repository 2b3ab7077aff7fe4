"""The columns of a table as arrays: numbers, names and labels, with every value checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation.arrays import Indices
from personafl.federation.splits import natural_order
from personafl.federation.tabular_files import Table

_LONGEST_NAME = 1_000


@dataclass(frozen=True)
class Place:
    """A column of a batch whose first row is the table's row `first`, counted from 0."""

    table: Table
    column: str
    first: int

    def row(self, position: int) -> str:
        """What a row of the batch is called in an error: people count from 1."""
        return f"{self.table.where}: column {self.column!r} in row {self.first + position + 1}"


def matrix(batch: pa.RecordBatch, places: Sequence[Place], alone: bool, may_lack: bool = False) -> NDArray[np.float32]:
    """The features of a batch as (n, d); a single column that is all of them keeps its own shape.

    Where values may lack, they are NaN.
    """
    parts = [_finite(batch.column(place.column), place, may_lack) for place in places]
    if alone and parts[0].ndim > 1:
        return parts[0]
    flat = [part.reshape(len(part), -1) if len(part) else part.reshape(0, 1) for part in parts]
    return np.concatenate([np.empty((len(batch), 0), np.float32), *flat], axis=1)


def text(array: pa.Array, place: Place, may_lack: bool = False) -> pa.Array:
    """A column of names, none missing; or, where they may lack, null for those that do."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{place.table.where}: column {place.column!r} holds {described(kind)}, expected names")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{place.table.where}: column {place.column!r} is not UTF-8 text: {error}") from error
    array = array.cast(pa.large_string())
    length = np.asarray(pc.fill_null(pc.utf8_length(array), 0))
    if (missing := np.flatnonzero(length == 0)).size and not may_lack:
        raise DataError(f"{place.row(int(missing[0]))} has no value; fill it in, or leave out the row")
    if missing.size:
        array = pc.if_else(pa.array(length == 0), pa.scalar(None, array.type), array)
    if (long := np.flatnonzero(length > _LONGEST_NAME)).size:
        raise DataError(f"{place.row(int(long[0]))} has {length[long[0]]} characters, expected a name of at most 1000")
    return array


def label(array: pa.Array, place: Place) -> pa.Array:
    """A label as int64, float64 or text, none missing."""
    whole = pa.types.is_integer(array.type)
    if not (whole or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)):
        return text(array, place)
    values = np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if (wrong := np.flatnonzero(~np.isfinite(values))).size:
        raise DataError(f"{place.row(int(wrong[0]))} has no finite value; fill it in, or leave out the row")
    return array.cast(pa.int64() if whole else pa.float64(), safe=False)


def moments(array: pa.Array, place: Place) -> NDArray[Any]:
    """A column of numbers, dates or times, as numbers that order the rows; none missing."""
    if is_text(array.type):
        for kind in (pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            try:
                array = array.cast(kind)
                break
            except pa.ArrowInvalid:
                continue
    kind = array.type
    if not (pa.types.is_temporal(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        first = next((value for value in array.to_pylist() if value is not None), None)
        raise DataError(
            f"{place.row(0)} is {first!r}: time must be numbers, or dates such as 2026-01-31 or 2026-01-31 08:00:00"
        )
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("us"))
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    values = np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if (wrong := np.flatnonzero(~np.isfinite(values))).size:
        raise DataError(f"{place.row(int(wrong[0]))} has no value; fill it in, or leave out the row")
    return values if array.null_count or pa.types.is_floating(array.type) else array.to_numpy(zero_copy_only=False)


def encoded(arrays: Sequence[pa.Array]) -> tuple[list[str], Indices]:
    """The different texts in natural order, and the position of each row's text among them; -1 for null.

    >>> encoded([pa.array(["ward-10", "ward-2"]), pa.array(["ward-10"])])
    (['ward-2', 'ward-10'], array([1, 0, 1]))
    """
    dictionary = pa.chunked_array(arrays).combine_chunks().dictionary_encode()
    names = dictionary.dictionary.to_pylist()
    ranked = sorted(range(len(names)), key=lambda k: natural_order(names[k]))
    codes = np.asarray(pc.fill_null(dictionary.indices, -1))
    place = np.append(np.argsort(ranked), -1)  # the last one: of null
    return [names[k] for k in ranked], place[codes]


def labels_of_columns(
    columns: Sequence[Sequence[pa.Array]], names: Sequence[str], table: Table
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """The labels of one column (N,) with the names of the classes, or of several, which are numbers (N, d)."""
    found = [_classes_or_targets(column, table) for column in columns]
    if len(found) == 1:
        return found[0]
    for name, (_, texts) in zip(names, found, strict=True):
        if texts is not None:
            raise DataError(
                f"{table.where}: column {name!r} holds text ({', '.join(texts[:3])}), and several columns of labels "
                "must be numbers: 0 and 1 for labels that a row has or not"
            )
    return np.stack([values for values, _ in found], axis=1), None


def _classes_or_targets(labels: Sequence[pa.Array], table: Table) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Labels for the store, and the names of the classes: texts are classes with names, integers classes, others not.

    In a CSV file, where everything is text, what can be read as a number is one.
    """
    if not is_text(labels[0].type):
        return pa.chunked_array(labels).to_numpy(), table.class_names
    names, codes = encoded(labels)
    for kind in () if table.typed else (pa.int64(), pa.float64()):
        try:
            return pa.array(names).cast(kind).to_numpy()[codes], None
        except pa.ArrowInvalid:
            continue
    return codes, tuple(names)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type holds numbers."""
    # A CSV column that is empty at first has the type null; its first missing value will be named.
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def innermost(kind: pa.DataType) -> pa.DataType:
    """What lists of lists of … are made of."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return innermost(kind.value_type) if is_list(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def described(kind: pa.DataType) -> str:
    """A type, for people."""
    return "text" if is_text(kind) or pa.types.is_dictionary(kind) else f"{kind} values"


def is_list(kind: pa.DataType) -> bool:
    """Whether a type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _finite(array: pa.Array, place: Place, may_lack: bool) -> NDArray[np.float32]:
    decode = place.table.decoders.get(place.column)
    part = _numbers(array, place) if decode is None else decode(array, place)
    flat = part.reshape(len(part), -1) if len(part) else part
    usable = ~np.isinf(flat) if may_lack else np.isfinite(flat)
    if not usable.all():
        wrong = int(np.flatnonzero(~usable.all(axis=1))[0])
        lacks = np.isnan(flat[wrong]).any()
        how = "has no value" if lacks else "is infinite or too large for a float32"
        fill = " (missing = 'fill' does)" if lacks else ""
        raise DataError(f"{place.row(wrong)} {how}; fill it in{fill}, or leave out the row or the column")
    return part


def _numbers(array: pa.Array, place: Place, each: int = 1) -> NDArray[np.float32]:
    """A column of numbers, or of equally long lists of numbers, of lists, …; `each` entries here are one row."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not is_list(array.type):
        with np.errstate(all="ignore"):  # what float32 cannot hold becomes infinite, and is named
            return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)).astype(np.float32)
    if array.null_count:
        missing = int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise DataError(f"{place.row(missing // each)} has no value; fill it in, or leave out the row or the column")
    lengths = np.asarray(pc.list_value_length(array))
    if (other := np.flatnonzero(lengths != lengths[:1])).size:
        raise DataError(
            f"{place.row(int(other[0]) // each)} has {lengths[other[0]]} values, expected {lengths[0]} as in row "
            f"{place.first + 1}; make all rows equally long"
        )
    size = int(lengths[0]) if len(lengths) else 0
    inner = _numbers(array.flatten(), place, each * max(size, 1))
    return inner.reshape(len(array), size, *inner.shape[1:])
