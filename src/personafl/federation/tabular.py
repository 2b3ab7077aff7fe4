"""Federations of tables: a row is a sample, and columns say whose it is and what its label is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import SPLITS, Indices, stored_features, stored_labels
from personafl.federation.labels import label_notes
from personafl.federation.missing import Feature, Missing, filled
from personafl.federation.partition import Partition
from personafl.federation.ragged import equal_length, padding_notes
from personafl.federation.splits import bounds_of, dealt_clients, groups_of_clients, sample_ranks, split_samples
from personafl.federation.tabular_columns import (
    Place,
    encoded,
    label,
    matrix,
    moments,
    text,
)
from personafl.federation.tabular_files import ROWS_AT_ONCE, Table
from personafl.federation.tabular_inputs import (
    Group,
    all_inputs,
    bytes_of,
    code_columns,
    filled_features,
    input_groups,
    number_columns,
)
from personafl.federation.tabular_roles import Columns, check_columns, chosen_features, read_labels
from personafl.inputs import parts, whole

Normalization = Literal["none", "standard"]
"""standard: (x − mean)/std, each feature by the mean and standard deviation of all clients' training samples."""

_SPLIT_NAMES = {"train": 0, "val": 1, "validation": 1, "test": 2}
_MOST_CATEGORIES = 1_000


@runtime_checkable
class Selection(Protocol):
    """A partition that leaves samples with their owners and only picks among these, such as `Natural`."""

    def keep(self, owners: NDArray[Any]) -> tuple[NDArray[np.bool_], list[str]]:
        """Which samples stay, given the owner of each, and notes on what was left out."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table holds: N samples, and where there is a client column, whose they are.

    Attributes
    ----------
    x, y : arrays
        Features (N, ...), or several inputs by name, NaN where a value is missing that is to be filled in; int64
        classes or float32 targets (N,), or (N, d) of several columns.
    class_names : tuple of str, optional
        The names of the classes, where the table has names for them.
    ids : list of str
        The clients in natural order.
    owner : array
        The position of each sample's client, (N,).
    groups : list of str, optional
        The group of each client.
    part : array, optional
        The split of each sample: 0 train, 1 validation, 2 test.
    time : array, optional
        What orders the samples of a client, (N,).
    fill : dict of lists of Feature, optional
        The columns that each input is made of, where what is missing is filled in.
    notes : list of str
        What was left out, for people to read.
    missing
        How what is missing is filled in.
    """

    x: NDArray[Any] | dict[str, NDArray[Any]]
    y: NDArray[Any]
    class_names: tuple[str, ...] | None
    ids: list[str]
    owner: Indices
    groups: list[str] | None
    part: Indices | None
    time: NDArray[Any] | None
    fill: dict[str, list[Feature]] | None
    notes: list[str]
    missing: Missing = "error"

    def federation(
        self,
        make: Any,
        partition: Partition | None,
        splits: Sequence[float],
        seed: int,
        classes: int | None,
        name: str,
        normalize: Normalization,
        splitting: str = "random",
    ) -> Any:
        """The federation of these rows: by a partition, by a split column, or by shares."""
        check_normalization(normalize)
        if partition is None and not self.ids:
            raise ConfigError("a table needs client (the column of client ids), or a partition that deals its rows")
        if isinstance(partition, Selection):
            return self._kept(*partition.keep(np.array(self.ids)[self.owner])).federation(
                make, None, splits, seed, classes, name, normalize, splitting
            )
        notes = [*self.notes, *([] if self.class_names else label_notes([self.y], classes))]
        ids, owner, groups, samples = self.ids, self.owner, self.groups, np.arange(len(self.y))
        rank = sample_ranks(splitting, self.time, len(self.y))
        if partition is not None:
            ids, samples, owner, groups, dealt_notes = dealt_clients(partition, self.y, seed)
            notes += dealt_notes
        if partition is not None or self.part is None:
            order, bounds = split_samples(ids, owner, splits, seed, None if rank is None else rank[samples])
        else:
            place = owner * len(SPLITS) + self.part
            counts = np.bincount(place, minlength=len(ids) * len(SPLITS)).reshape(-1, len(SPLITS))
            order, bounds = np.argsort(place, kind="stable"), bounds_of(counts)
        chunks = np.array_split(samples[order], max(1, -(-len(order) // ROWS_AT_ONCE)))
        made = make(
            x=stored_features([self.x] * len(chunks), chunks),
            y=stored_labels([self.y] * len(chunks), chunks),
            bounds=bounds,
            ids=tuple(ids),
            groups=None if groups is None else tuple(groups),
            classes=classes,
            class_names=self.class_names,
            name=name,
            notes=tuple(notes),
            scanned=self.fill is not None,
        )
        made = made if self.fill is None else filled(made, self.fill, self.missing)
        return made.standardized() if normalize == "standard" else made

    def _kept(self, kept: NDArray[np.bool_], notes: Sequence[str]) -> Rows:
        """Only some of the rows, and only the clients who have any of them."""
        stay, owner = np.unique(self.owner[kept], return_inverse=True)
        return replace(
            self,
            x=whole({name: value[kept] for name, value in parts(self.x).items()}),
            y=self.y[kept],
            ids=[self.ids[m] for m in stay],
            owner=owner,
            groups=None if self.groups is None else [self.groups[m] for m in stay],
            part=None if self.part is None else self.part[kept],
            time=None if self.time is None else self.time[kept],
            notes=[*self.notes, *notes],
        )


def check_normalization(normalize: str) -> None:
    """Refuse what is neither none nor standard."""
    if normalize not in ("none", "standard"):
        raise ConfigError(f"normalize = {normalize!r}: must be none or standard")


def read_rows(tables: Sequence[Table], columns: Columns) -> Rows:
    """Read the columns of one table, or of one for each split, and check every value on the way."""
    check_columns(tables[0], columns, ())
    groups: list[Group] = []
    if isinstance(columns.features, Mapping):
        groups = input_groups(columns.features, columns.categorical, tables[0])
        columns = replace(columns, features=number_columns(groups), categorical=code_columns(groups))
    features, notes = chosen_features(tables[0], columns)
    named = [name for name in (columns.client, columns.group, columns.split, *columns.categorical) if name is not None]
    x: list[dict[str, Any]] = []
    texts: dict[str, list[pa.Array]] = {name: [] for name in (*named, *columns.labels)}
    times: list[pa.Array] = []
    part: list[Indices] = []
    may_lack = columns.categorical if columns.missing != "error" else ()
    room = _memory()
    for table in tables:
        check_columns(table, columns, features)
        row = 0
        for batch in table.read([*features, *texts, *([columns.time] if columns.time else [])], features):
            if len(batch) == 0:
                continue
            if groups:
                read = (group for group in groups if group.kind != "codes")
                x.append({group.name: group.read(batch, table, row, columns.missing != "error") for group in read})
            else:
                places = [Place(table, name, row) for name in features]
                x.append({"": matrix(batch, places, isinstance(columns.features, str), columns.missing != "error")})
                if x[-1][""].shape[1:] != x[0][""].shape[1:]:
                    raise DataError(
                        f"{table.where}: features have shape {x[-1][''].shape[1:]} from row {row + 1} on, expected "
                        f"{x[0][''].shape[1:]} as before; make all rows alike"
                    )
            for name, pieces in texts.items():
                place = Place(table, name, row)
                values = batch.column(name)
                pieces.append(label(values, place) if name in columns.labels else text(values, place, name in may_lack))
                room -= pieces[-1].nbytes
            if columns.time is not None:
                times.append(moments(batch.column(columns.time), Place(table, columns.time, row)))
            row += len(batch)
            room -= 2 * sum(map(bytes_of, x[-1].values()))  # once as it is read, once in the federation
            if room < 0:
                raise DataError(f"{table.where} does not fit into the memory of this machine, from row {row} on")
        part.append(np.full(row, _SPLIT_NAMES.get(table.split or "train", 0)))
    if not x:
        raise DataError(f"{tables[0].where} has no row; expected a row a sample")
    y, names, label_note = read_labels(columns, [texts.pop(name) for name in columns.labels], tables[0])
    codes = {name: encoded(pieces) for name, pieces in texts.items()}
    ids, owner = codes[columns.client] if columns.client is not None else ([], np.zeros(0, np.int64))
    found: Any
    if groups:
        inputs, code_notes = all_inputs(groups, x, codes)
        [(found, _)] = equal_length([(inputs, y)], columns.length)
        notes = [*notes, *code_notes, *padding_notes([(inputs, y)], [(found, y)])]
        made_of = filled_features(groups)
    else:
        one_hot = [_one_hot(tables[0], name, *codes[name]) for name in columns.categorical]
        plain = np.concatenate([batch[""] for batch in x])
        found = np.concatenate([plain, *one_hot], axis=1) if one_hot else plain
        made_of = {"": _made_of(features, plain, columns.categorical, one_hot)}
    return Rows(
        x=found,
        y=y,
        class_names=names,
        ids=ids,
        owner=owner,
        groups=None if columns.group is None else _groups(ids, owner, *codes[columns.group]),
        part=np.concatenate(part) if tables[0].split else _parts(columns.split, codes, tables[0]),
        time=None if columns.time is None else np.concatenate(times),
        fill=made_of if columns.missing != "error" else None,
        notes=[*notes, *label_note],
        missing=columns.missing,
    )


def _made_of(
    features: Sequence[str], x: NDArray[Any], categorical: Sequence[str], one_hot: Sequence[NDArray[Any]]
) -> list[Feature]:
    """The columns of numbers, one feature each unless one column alone holds arrays, and the categories."""
    wide = x.shape[1] if x.ndim == 2 else 0
    numbers = list(features) if wide == len(features) else [f"{features[0]}[{j}]" for j in range(wide)]
    return [
        *(Feature(name) for name in numbers),
        *(Feature(name, made.shape[1]) for name, made in zip(categorical, one_hot, strict=True)),
    ]


def _one_hot(table: Table, column: str, names: Sequence[str], codes: Indices) -> NDArray[np.float32]:
    if len(names) > _MOST_CATEGORIES:
        raise DataError(
            f"{table.where}: column {column!r} has {len(names)} different values, too many to make a feature of each; "
            f"leave it out of categorical (at most {_MOST_CATEGORIES})"
        )
    missing = np.full((1, len(names)), np.nan, np.float32)  # the last row: the code -1
    return np.concatenate([np.eye(len(names), dtype=np.float32), missing])[codes]


def _groups(ids: Sequence[str], owner: Indices, groups: Sequence[str], codes: Indices) -> list[str] | None:
    pairs = np.unique(owner * len(groups) + codes)
    return groups_of_clients(np.array(groups)[pairs % len(groups)], ids, pairs // len(groups))


def _parts(split: str | None, codes: Mapping[str, tuple[list[str], Indices]], table: Table) -> Indices | None:
    if split is None:
        return None
    names, position = codes[split]
    if unknown := [name for name in names if name not in _SPLIT_NAMES]:
        row = int(np.flatnonzero(position == names.index(unknown[0]))[0]) + 1
        raise DataError(
            f"{table.where}: column {split!r} in row {row} is {unknown[0]!r}, expected {', '.join(_SPLIT_NAMES)}"
        )
    return np.array([_SPLIT_NAMES[name] for name in names])[position]


def _memory() -> float:
    """The memory of this machine in bytes, where it can be asked."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
