"""Which column of a table is what: label, client, features, …; checked against the columns that are there."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.checks import listing
from personafl.federation.labels import LabelType, check_label_type, typed_labels
from personafl.federation.missing import Missing, check_missing
from personafl.federation.tabular_columns import described, innermost, is_numeric, labels_of_columns
from personafl.federation.tabular_files import Table
from personafl.federation.tabular_inputs import Choice

_MANY_CLASSES = 20  # above this, whole numbers may well be measurements


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


def chosen_features(table: Table, columns: Columns) -> tuple[list[str], list[str]]:
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


def check_columns(table: Table, columns: Columns, features: Sequence[str]) -> None:
    """Every column is there, once, has one use and a type that suits it."""
    names = table.schema.names
    times = Counter(names)
    roles = {"client": columns.client, "group": columns.group, "split": columns.split, "time": columns.time}
    uses = [(role, name) for role, name in roles.items() if name is not None]
    uses += [("label", name) for name in columns.labels]
    uses += [("features", name) for name in features] + [("categorical", name) for name in columns.categorical]
    seen: dict[str, str] = {}
    for role, name in uses:
        if not isinstance(name, str):
            raise ConfigError(f"{role} = {name!r}: columns have names, such as {names[0]!r}")
        if name not in times:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"{table.where} has no column {name!r} ({role}); {hint}its columns: {_some(names)}")
        if times[name] > 1:
            raise DataError(f"{table.where} has {times[name]} columns {name!r}; give each a name of its own")
        if name in seen:
            raise ConfigError(f"column {name!r} is named as {seen[name]} and as {role}; it can be one of them only")
        seen[name] = role
        kind = table.schema.field(name).type
        if role == "features" and not (name in table.decoders or is_numeric(innermost(kind))):
            raise DataError(
                f"{table.where}: column {name!r} holds {described(kind)}, not numbers; leave it out of features, or "
                f"name it in categorical, which makes a feature of each of its values"
            )


def read_labels(
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


def _some(names: Sequence[str]) -> str:
    return listing([name if len(name) < 60 else f"{name[:60]}…" for name in names], 10)
