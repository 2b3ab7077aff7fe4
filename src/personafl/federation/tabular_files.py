"""Tables as batches of rows, whatever they come as: CSV and parquet files, pyarrow tables, dataframes.

Nothing in a file is executed, and a file is read in pieces: what a header promises takes no memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.storage.unpacked import VARIABLE, check_unpacked, parquet_batches

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
"""How the name of a file that is a table ends."""

ROWS_AT_ONCE = 65_536
_BLOCK = 8 << 20  # bytes of a CSV file that are looked at to tell numbers from text, and the longest row
_UNREADABLE = (OSError, ValueError, MemoryError, EOFError, pa.ArrowException)


@dataclass(frozen=True, eq=False)
class Table:
    """A table that can be read piece by piece.

    Attributes
    ----------
    where
        What it is called in an error.
    schema : pa.Schema
        Its columns. Those of a CSV file have the types that its first rows suggest.
    read
        Iterates over the rows, given the columns that are wanted and which of them are numbers.
    typed
        False for a CSV file, where 3 may be a number or a name.
    split : str, optional
        The split that all rows belong to.
    decoders : dict
        For columns whose values are more than arrow knows (pictures): what makes arrays of them; it is also given the
        `Place` to name in an error.
    class_names : tuple of str, optional
        The names of the classes that the label numbers.
    """

    where: str
    schema: pa.Schema
    read: Callable[[Sequence[str], Sequence[str]], Iterator[pa.RecordBatch]]
    typed: bool = True
    split: str | None = None
    decoders: dict[str, Callable[[pa.Array, Any], NDArray[np.float32]]] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None


def open_table(source: Any) -> Table:
    """A CSV or parquet file, a pyarrow table, a dataframe or a mapping of columns, ready to be read."""
    if isinstance(source, str | os.PathLike):
        return _open_file(Path(source).expanduser())
    try:
        table = pa.table(source)
    except (*_UNREADABLE, TypeError) as error:
        raise DataError(
            f"a {type(source).__name__} cannot be read as a table: {_first_line(error)}; give the path of a CSV or "
            f"parquet file, a pyarrow table, a dataframe or a mapping of column names to columns"
        ) from error
    return Table("the table", table.schema, lambda columns, _: iter(table.select(columns).to_batches(ROWS_AT_ONCE)))


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the name of a table."""
    return str(path).lower().endswith(SUFFIXES)


def _open_file(path: Path) -> Table:
    if not is_table(path):
        raise DataError(f"{path} is not named like a table; expected a name that ends with {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"there is no file {path}; a relative path starts at the working directory")
    with _named(path):
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty; expected a table with a row a sample")
        return _open_csv(path) if ".csv" in path.name.lower()[-7:] else _open_parquet(path)


def _open_parquet(path: Path) -> Table:
    def read(columns: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _named(path):
            yield from parquet_batches(path, ROWS_AT_ONCE, columns)

    with pq.ParquetFile(path) as file:
        return Table(str(path), file.schema_arrow, read)


def _open_csv(path: Path) -> Table:
    with open(path, "rb") as raw:
        compression = "gzip" if raw.read(2) == b"\x1f\x8b" else None  # by its content: names lie
    with pa.input_stream(str(path), compression=compression) as stream:
        beginning = stream.read(65_536)
    if b"\0" in beginning[:4096]:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV with the encoding UTF-8")
    delimiter, decimal_point = _dialect(beginning)

    def start(**conversion: Any) -> csv.CSVStreamingReader:
        return csv.open_csv(
            pa.input_stream(str(path), compression=compression),
            # With threads the errors do not say in which row.
            csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            csv.ConvertOptions(
                strings_can_be_null=True, quoted_strings_can_be_null=False, decimal_point=decimal_point, **conversion
            ),
        )

    with start() as reader:
        schema = reader.schema
        header = list(schema.names)

    def read(columns: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        types = {name: pa.float64() if name in numbers else pa.string() for name in columns}
        types |= {name: pa.bool_() for name in numbers if pa.types.is_boolean(schema.field(name).type)}
        packed, size = path.stat().st_size, 0
        with _named(path, header), start(include_columns=list(columns), column_types=types) as reader:
            for batch in reader:
                size += batch.nbytes
                check_unpacked(size, packed)
                yield batch

    return Table(str(path), schema, read, typed=False)


def _dialect(beginning: bytes) -> tuple[str, str]:
    r"""What separates the columns and what the decimals: commas and points, unless the first lines say otherwise.

    >>> _dialect(b"age;dose\n31;0,5\n"), _dialect(b"age;dose\n31;0.5\n"), _dialect(b"age,dose\n31,0.5\n")
    ((';', ','), (';', '.'), (',', '.'))
    """
    header, _, rest = beginning.decode("utf-8", "replace").partition("\n")
    delimiter = next((mark for mark in ";\t|" if mark in header and "," not in header), ",")
    decimals = Counter(
        found[1] for found in re.finditer(r"(?:^|[;\t|])\s*-?\d+([.,])\d+(?=\s*(?:[;\t|]|$))", rest, re.M)
    )
    return delimiter, "," if delimiter != "," and decimals[","] > decimals["."] else "."


@contextmanager
def _named(path: Path, header: Sequence[str] = ()) -> Iterator[None]:
    """What goes wrong with a file, as one line that says where."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the header is not UTF-8 text; save it with the encoding UTF-8") from error
    except _UNREADABLE as error:
        raise DataError(_explained(path, _first_line(error), header)) from error


def _explained(path: Path, message: str, header: Sequence[str]) -> str:
    """What pyarrow says of a CSV file, in terms of its columns and of rows that are counted after the header."""
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
    if ragged:
        row = f"row {int(ragged[1]) - 1}" if ragged[1] else "a row"
        return f"{path}: {row} has {ragged[3]} values, expected {ragged[2]} as in the header; correct the row"
    wrong = re.search(r"In CSV column #(\d+): Row #(\d+): .*?(?:invalid value (.*)|(invalid UTF8))", message)
    if wrong and int(wrong[1]) < len(header):
        where = f"{path}: column {header[int(wrong[1])]!r} in row {int(wrong[2]) - 1}"
        if wrong[4]:
            return f"{where} is not UTF-8 text; save the file with the encoding UTF-8"
        return f"{where} is {wrong[3]}, not a number; correct it, or leave the column out of features"
    if "straddl" in message:
        return f"{path} has a row of more than {_BLOCK >> 20} MB, or a quote that is never closed; expected a CSV table"
    if "Empty CSV file" in message:
        return f"{path} has no row; expected a line with the names of the columns, then a row a sample"
    if VARIABLE in message:
        return f"cannot read {path}: {message}"
    return f"cannot read {path}: {message}; expected {'a CSV' if '.csv' in path.name else 'a parquet'} table"


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    return plain if len(plain) <= 200 else f"{plain[:200]}…"
