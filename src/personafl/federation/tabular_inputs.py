"""Several inputs by name from the columns of a table: numbers side by side, categories as codes, columns of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import Array, Indices
from personafl.federation.checks import listing
from personafl.federation.missing import Feature
from personafl.federation.ragged import Part, Ragged, checked_ragged, lengths_of
from personafl.federation.tabular_columns import Place, innermost, is_list, is_text, matrix
from personafl.federation.tabular_files import Table
from personafl.inputs import check_names, part_name

Choice = Mapping[str, str | Sequence[str]]
"""The columns of each input: several side by side, or one as it is."""


@dataclass(frozen=True)
class Group:
    """An input and its columns.

    `numbers` are float32 (N, d); `codes` int64 (N, d), the place of a value among all values of its column; `alone` is
    one column with the shape and the kind of number that it has.
    """

    name: str
    columns: tuple[str, ...]
    kind: Literal["numbers", "codes", "alone"]

    def read(self, batch: pa.RecordBatch, table: Table, row: int, may_lack: bool) -> Part:
        """The input's samples of a batch whose first row is this one of the table."""
        places = [Place(table, column, row) for column in self.columns]
        if self.kind == "numbers":
            return matrix(batch, places, False, may_lack)
        return _as_it_is(batch, places[0])


def input_groups(choice: Choice, categorical: Sequence[str], table: Table) -> list[Group]:
    """What `features = {name: columns}` asks for."""
    check_names(list(choice))
    groups = []
    for name, asked in choice.items():
        columns = (asked,) if isinstance(asked, str) else tuple(asked)
        if not columns:
            raise ConfigError(f"features.{name} = []: name at least one column")
        coded = [column for column in columns if column in categorical or _is_text(table, column)]
        if coded and len(coded) < len(columns):
            other = next(column for column in columns if column not in coded)
            raise ConfigError(
                f"features.{name} has categories ({coded[0]}) and numbers ({other}): make an input of each, or name "
                f"{other} in categorical too"
            )
        kind: Literal["numbers", "codes", "alone"] = "alone" if isinstance(asked, str) else "numbers"
        groups.append(Group(name, columns, "codes" if coded else kind))
    used = {column for group in groups for column in group.columns}
    if lost := [column for column in categorical if column not in used]:
        raise ConfigError(f"categorical = {lost[0]!r} is in none of the inputs of features: {', '.join(choice)}")
    return groups


def code_columns(groups: Sequence[Group]) -> tuple[str, ...]:
    """The columns that are read as text and become codes."""
    return tuple(column for group in groups if group.kind == "codes" for column in group.columns)


def number_columns(groups: Sequence[Group]) -> tuple[str, ...]:
    """The others."""
    return tuple(column for group in groups if group.kind != "codes" for column in group.columns)


def all_inputs(
    groups: Sequence[Group], batches: Sequence[Mapping[str, Part]], codes: Mapping[str, tuple[list[str], Indices]]
) -> tuple[dict[str, Part], list[str]]:
    """The inputs of all rows, and a note that says what the codes stand for."""
    made: dict[str, Part] = {}
    notes = []
    for group in groups:
        if group.kind != "codes":
            made[group.name] = joined([batch[group.name] for batch in batches])
            continue
        columns = []
        for column in group.columns:
            values, found = codes[column]
            lacks = bool((found < 0).any())
            columns.append(np.where(found < 0, len(values), found))
            known = listing([f"{k} {value}" for k, value in enumerate(values)], 8)
            last = f", {len(values)} is missing" if lacks else ""
            notes.append(f"{part_name(group.name)}: {column} has {len(values) + lacks} codes, {known}{last}")
        made[group.name] = np.stack(columns, axis=1)
    return made, notes


def filled_features(groups: Sequence[Group]) -> dict[str, list[Feature]]:
    """The columns of the inputs in which missing values are filled in."""
    return {group.name: [Feature(column) for column in group.columns] for group in groups if group.kind == "numbers"}


def joined(pieces: Sequence[Part]) -> Part:
    """Batches one after another; of unequal length where any of them is, or where they differ."""
    alike = len({piece.shape[1:] for piece in pieces}) == 1
    if alike and not any(isinstance(piece, Ragged) for piece in pieces):
        return np.concatenate(pieces)  # type: ignore[arg-type]
    values = [piece.values if isinstance(piece, Ragged) else piece.reshape(-1, *piece.shape[2:]) for piece in pieces]
    return Ragged(np.concatenate(values), np.concatenate([lengths_of(piece) for piece in pieces]))


def bytes_of(part: Part) -> int:
    """The memory that it takes."""
    return int(part.values.nbytes if isinstance(part, Ragged) else part.nbytes)


def _is_text(table: Table, column: str) -> bool:
    if column not in table.schema.names or column in table.decoders:
        return False  # another check names it
    kind = table.schema.field(column).type
    return is_text(kind) or pa.types.is_dictionary(kind)


def _as_it_is(batch: pa.RecordBatch, place: Place) -> Part:
    """One column: integers stay integers, and lists may be of unequal length."""
    array = batch.column(place.column)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    whole = pa.types.is_integer(innermost(array.type)) and place.column not in place.table.decoders
    if place.column in place.table.decoders or (is_list(array.type) and is_list(array.type.value_type)):
        made = matrix(batch, [place], True)
        return made.astype(np.int64) if whole else made
    if not is_list(array.type):
        return _whole(array, place, np.arange(len(array) + 1)) if whole else matrix(batch, [place], True)[:, 0]
    if array.null_count:
        missing = int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise DataError(f"{place.row(missing)} has no value; fill it in, or leave out the row")
    lengths = np.asarray(pc.list_value_length(array)).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    values = _whole(array.flatten(), place, ends) if whole else _floats(array.flatten(), place, ends)
    if len(set(lengths.tolist())) == 1:
        return values.reshape(len(array), -1)
    return checked_ragged(values, lengths, f"{place.table.where}: column {place.column!r}")


def _whole(array: pa.Array, place: Place, ends: NDArray[np.int64]) -> Array:
    if array.null_count:
        _refuse(place, ends, int(np.flatnonzero(np.asarray(array.is_null()))[0]))
    return np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _floats(array: pa.Array, place: Place, ends: NDArray[np.int64]) -> Array:
    values = np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)).astype(np.float32)
    if (wrong := np.flatnonzero(~np.isfinite(values))).size:
        _refuse(place, ends, int(wrong[0]))
    return values


def _refuse(place: Place, ends: NDArray[np.int64], position: int) -> None:
    row = int(np.searchsorted(ends, position, side="right")) - 1
    raise DataError(f"{place.row(row)} has a value that is missing or not finite; fill it in, or leave out the row")
