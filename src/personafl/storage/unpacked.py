"""Bounds on how much memory a compressed file takes, checked before it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

VARIABLE = "PERSONAFL_UNPACKED_MB"
"""The environment variable with the megabytes that any file may unpack to."""
USUAL_MB, TIMES = 512, 100
MOST_COLUMNS = 4096
"""Of a table of a run; the slowest of what is done with each looks at all the others."""


def most_unpacked(packed: int) -> int:
    """The bytes that a file of this size may unpack to: 100 times as many, or 512 MB, or what the user allows.

    >>> most_unpacked(10), most_unpacked(10**9)
    (536870912, 100000000000)
    """
    named = os.environ.get(VARIABLE, "")
    return max((int(named) if named.isdecimal() else USUAL_MB) << 20, TIMES * packed)


def check_unpacked(size: int, packed: int) -> None:
    """Raise a ValueError for a file of `packed` bytes that unpacks to more than it may."""
    if size > most_unpacked(packed):
        raise ValueError(
            f"its {packed:,} bytes unpack to {size:,} or more: if it is meant to be so, allow it with "
            f"{VARIABLE}={size >> 19}"
        )


def parquet_batches(
    path: Path, rows: int, columns: Sequence[str] | None = None, group: int | None = None
) -> Iterator[pa.RecordBatch]:
    """A parquet file, or one row group of it, some rows at a time, unless it unpacks to more than it may.

    Texts may be stored once and named often: they are read so, counted, and only then written out.
    """
    packed, size = path.stat().st_size, 0
    texts = {f.name for f in pq.read_schema(path) if pa.types.is_string(f.type) or pa.types.is_binary(f.type)}
    with pq.ParquetFile(path, read_dictionary=list(texts), page_checksum_verification=True) as file:
        check_unpacked(_promised(file.metadata, None if columns is None else set(columns)), packed)
        groups = None if group is None else [group]
        for batch in file.iter_batches(rows, groups, None if columns is None else list(columns)):
            arrays = {}
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                size += array.nbytes + _written_out(array)
                check_unpacked(size, packed)
                arrays[name] = array.dictionary_decode() if name in texts else array
            yield pa.record_batch(list(arrays.values()), list(arrays))


def parquet_table(path: Path, group: int | None = None) -> pa.Table:
    """The table of a parquet file, or of a row group, unless it unpacks to too much or has more than plain values."""
    schema = pq.read_schema(path)
    if len(schema) > MOST_COLUMNS:
        raise ValueError(f"it has {len(schema):,} columns, more than {MOST_COLUMNS:,}")
    if len(set(schema.names)) < len(schema):
        raise ValueError(f"it has the column {max(schema.names, key=schema.names.count)!r} twice")
    if nested := [field for field in schema if pa.types.is_nested(field.type)]:
        raise ValueError(f"column {nested[0].name!r} is of type {nested[0].type}")
    schema = schema.remove_metadata()
    return pa.Table.from_batches([b.cast(schema) for b in parquet_batches(path, 1 << 16, group=group)], schema)


_WIDTHS = {"BOOLEAN": 1, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # bytes of a value in memory; of other types at least 4


def _promised(about: pq.FileMetaData, columns: set[str] | None) -> int:
    """The bytes of the values that a file says it has, texts not counted.

    pyarrow ends the process where what a damaged file says of a column of a row group makes no sense, so that is looked
    at for lists only: other columns have a value for each row.
    """
    leaves = [about.schema.column(k) for k in range(about.num_columns)]
    size = 0
    for group in map(about.row_group, range(about.num_row_groups)):
        for k, leaf in enumerate(leaves):
            if columns is None or leaf.path.partition(".")[0] in columns:
                many = group.column(k).num_values if leaf.max_repetition_level else group.num_rows
                size += many * _WIDTHS.get(leaf.physical_type, 4)
    return size


def _written_out(array: pa.Array) -> int:
    """The bytes of texts that are stored once and named often, each time that they are named; 0 for other arrays."""
    if not pa.types.is_dictionary(array.type) or not pa.types.is_string(array.type.value_type):
        return 0
    lengths = pc.fill_null(pc.binary_length(array.dictionary), 0).cast(pa.int64())
    return pc.sum(lengths.take(array.indices)).as_py() or 0
