"""Federations of tables: a row is a sample, and columns say whose it is and what its label is."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import SPLITS, Indices, stored_features, stored_labels
from personafl.federation.checks import listing
from personafl.federation.labels import LabelType, check_label_type, label_notes, typed_labels
from personafl.federation.missing import Feature, Missing, check_missing, filled
from personafl.federation.partition import Partition
from personafl.federation.ragged import equal_length, padding_notes
from personafl.federation.splits import bounds_of, dealt_clients, groups_of_clients, sample_ranks, split_samples
from personafl.federation.tabular_columns import (
    Place,
    described,
    encoded,
    innermost,
    is_numeric,
    label,
    labels_of_columns,
    matrix,
    moments,
    text,
)
from personafl.federation.tabular_files import ROWS_AT_ONCE, Table
from personafl.federation.tabular_inputs import (
    Choice,
    Group,
    all_inputs,
    bytes_of,
    code_columns,
    filled_features,
    input_groups,
    number_columns,
)
from personafl.inputs import parts, whole

Normalization = Literal["none", "standard"]
"""standard: (x − mean)/std, each feature by the mean and standard deviation of all clients' training samples."""

_SPLIT_NAMES = {"train": 0, "val": 1, "validation": 1, "test": 2}
_MOST_CATEGORIES = 1_000
_MANY_CLASSES = 20  # above this, whole numbers may well be measurements


@runtime_checkable
class Selection(Protocol):
    """A partition that leaves samples with their owners and only picks among these, such as `Natural`."""

    def keep(self, owners: NDArray[Any]) -> tuple[NDArray[np.bool_], list[str]]: ...


@dataclass(frozen=True)
class Columns:
    """Which column of a table is what; see `Federation.from_table`."""

    label: str | Sequence[str]
    client: str | None = None
    features: str | Sequence[str] | Choice | None = None
    categorical: Sequence[str] = ()
    group: str | None = None
    split: str | None = None
    time: str | None = None
    label_type: LabelType = "auto"
    missing: Missing = "error"
    length: int | None = None

    def __post_init__(self) -> None:
        check_label_type(self.label_type)
        check_missing(self.missing)
        if not self.label:
            raise ConfigError("label is empty: name the column that holds the labels")
        if isinstance(self.categorical, str):
            raise ConfigError(f"categorical = {self.categorical!r}: must be a list of columns, [{self.categorical!r}]")
        if self.time is not None and self.split is not None:
            raise ConfigError(f"time = {self.time!r} and split = {self.split!r}: only one can say what is for testing")
        if self.client is None and (self.group is not None or self.split is not None):
            which = "group" if self.group is not None else "split"
            raise ConfigError(f"{which} = {getattr(self, which)!r} needs client: only clients have groups and splits")
        if isinstance(self.features, str) and self.categorical:
            raise ConfigError(
                f"features = {self.features!r} is one column: give a list to have categorical ones besides"
            )
        if self.features is not None and not self.features and not self.categorical:
            raise ConfigError("features = []: name at least one column, or leave it out for all columns of numbers")

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of labels."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)


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
        made = made if self.fill is None else filled(made, self.fill)
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
    _check_columns(tables[0], columns, ())
    groups: list[Group] = []
    if isinstance(columns.features, Mapping):
        groups = input_groups(columns.features, columns.categorical, tables[0])
        columns = replace(columns, features=number_columns(groups), categorical=code_columns(groups))
    features, notes = _chosen_features(tables[0], columns)
    named = [name for name in (columns.client, columns.group, columns.split, *columns.categorical) if name is not None]
    x: list[dict[str, Any]] = []
    texts: dict[str, list[pa.Array]] = {name: [] for name in (*named, *columns.labels)}
    times: list[pa.Array] = []
    part: list[Indices] = []
    may_lack = columns.categorical if columns.missing == "fill" else ()
    room = _memory()
    for table in tables:
        _check_columns(table, columns, features)
        row = 0
        for batch in table.read([*features, *texts, *([columns.time] if columns.time else [])], features):
            if len(batch) == 0:
                continue
            if groups:
                read = (group for group in groups if group.kind != "codes")
                x.append({group.name: group.read(batch, table, row, columns.missing == "fill") for group in read})
            else:
                places = [Place(table, name, row) for name in features]
                x.append({"": matrix(batch, places, isinstance(columns.features, str), columns.missing == "fill")})
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
    y, names, label_note = _labels(columns, [texts.pop(name) for name in columns.labels], tables[0])
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
        fill=made_of if columns.missing == "fill" else None,
        notes=[*notes, *label_note],
    )


def _labels(
    columns: Columns, pieces: Sequence[Sequence[pa.Array]], table: Table
) -> tuple[NDArray[Any], tuple[str, ...] | None, list[str]]:
    """The labels of one column, or of several side by side; names of classes; what one should know of them."""
    y, names = labels_of_columns(pieces, columns.labels, table)
    if names is not None and columns.label_type in ("numbers", "multilabel"):
        raise DataError(
            f"{table.where}: column {columns.labels[0]!r} holds text ({listing(names, 3)}), and label_type = "
            f"{columns.label_type!r} wants numbers; leave label_type out for classes"
        )
    several = y.ndim == 2 and y.dtype.kind != "f" and not ((y == 0) | (y == 1)).all()
    if several and columns.label_type == "auto":
        raise DataError(
            f"{table.where}: the columns {listing(columns.labels)} hold whole numbers up to {y.max()}; give label_type "
            "= 'numbers' for a regression, 'classes' for a class in each column"
        )
    [y] = typed_labels([y], columns.label_type) if names is None else [y]
    different = len(np.unique(y)) if names is None and y.ndim == 1 and y.dtype.kind != "f" else 0
    if columns.label_type == "auto" and different > _MANY_CLASSES:
        return y, names, [
            f"the {different} different whole numbers of {columns.labels[0]!r} were taken as classes; label_type = "
            "'numbers' makes them targets of a regression"
        ]  # fmt: skip
    return y, names, []


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


def _chosen_features(table: Table, columns: Columns) -> tuple[list[str], list[str]]:
    """The columns that are features, and what to say about those that are not."""
    if columns.features is not None and not isinstance(columns.features, Mapping):
        return [columns.features] if isinstance(columns.features, str) else list(columns.features), []
    used = {*columns.labels, columns.client, columns.group, columns.split, columns.time, *columns.categorical}
    used |= _index(table.schema)
    others = [field for field in table.schema if field.name not in used]
    numeric = [field.name for field in others if is_numeric(field.type)]
    rest = [field.name for field in others if not is_numeric(field.type)]
    if not numeric and not columns.categorical:
        raise DataError(
            f"{table.where} has no columns of numbers that could be features; its columns: {_some(table.schema.names)}"
        )
    return numeric, [f"columns that are not numbers were left out of the features: {_some(rest)}"] if rest else []


def _index(schema: pa.Schema) -> set[str]:
    """The columns that are a dataframe's index: never features, unless they are named."""
    try:
        columns = (schema.pandas_metadata or {})["index_columns"]
        return {column for column in columns if isinstance(column, str)}
    except (ValueError, KeyError, TypeError):
        return set()


def _check_columns(table: Table, columns: Columns, features: Sequence[str]) -> None:
    """Every column is there, once, has one use and a type that suits it."""
    names = table.schema.names
    roles = {"client": columns.client, "group": columns.group, "split": columns.split, "time": columns.time}
    uses = [(role, name) for role, name in roles.items() if name is not None]
    uses += [("label", name) for name in columns.labels]
    uses += [("features", name) for name in features] + [("categorical", name) for name in columns.categorical]
    seen: dict[str, str] = {}
    for role, name in uses:
        if not isinstance(name, str):
            raise ConfigError(f"{role} = {name!r}: columns have names, such as {names[0]!r}")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"{table.where} has no column {name!r} ({role}); {hint}its columns: {_some(names)}")
        if names.count(name) > 1:
            raise DataError(f"{table.where} has {names.count(name)} columns {name!r}; give each a name of its own")
        if name in seen:
            raise ConfigError(f"column {name!r} is named as {seen[name]} and as {role}; it can be one of them only")
        seen[name] = role
        kind = table.schema.field(name).type
        if role == "features" and not (name in table.decoders or is_numeric(innermost(kind))):
            raise DataError(
                f"{table.where}: column {name!r} holds {described(kind)}, not numbers; leave it out of features, or "
                f"name it in categorical, which makes a feature of each of its values"
            )


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


def _some(names: Sequence[str]) -> str:
    return listing([name if len(name) < 60 else f"{name[:60]}…" for name in names], 10)


def _memory() -> float:
    """The memory of this machine in bytes, where it can be asked."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
