"""Data folders of FLamby that hold tables: Fed-Heart-Disease and Fed-TCGA-BRCA, with FLamby's clients and splits.

FLamby's other data sets are images and volumes in the formats of their hospitals: its own Datasets open these, and
`Federation.from_datasets` takes them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from personafl.errors import DataError
from personafl.federation.arrays import Array, Pair

HEART = ("cleveland", "hungarian", "switzerland", "va")
_HEART_COLUMNS = 14
_MOSTLY_MISSING = (10, 11, 12)  # FLamby leaves them out, and then patients of whom something is missing
_CATEGORIES = {2: (2, 3, 4), 6: (1, 2)}  # kind of chest pain, ECG at rest: a column for each value but the first
_TCGA_COLUMNS = 39
_SPLIT = "dataset_creation_scripts/train_test_split.csv"


def read_flamby(folder: Path) -> tuple[dict[str, Any], int | None]:
    """What each center brings for each split, and the number of classes where there are classes."""
    if (folder / "brca.csv").exists():
        return _tcga(folder), None
    if found := sorted(folder.glob("processed.*.data")):
        return _heart(found), 2
    raise DataError(
        f"{folder} has neither processed.*.data (fed_heart_disease) nor brca.csv (fed_tcga_brca): what can be "
        "read of FLamby; open other data sets with FLamby and give its Datasets to Federation.from_datasets"
    )


def _heart(files: list[Path]) -> dict[str, Any]:
    """Label 1 is any disease; 13 features, of which the last five are indicators."""
    data = {}
    for file in files:
        center = file.name.split(".")[1]
        if center not in HEART:
            raise DataError(f"{file} is of no center of FLamby; expected processed.NAME.data of {', '.join(HEART)}")
        rows = [row for row in _rows(file) if row]
        if wrong := [row for row in rows if len(row) != _HEART_COLUMNS]:
            raise DataError(f"{file}: a row has {len(wrong[0])} columns, expected {_HEART_COLUMNS}")
        kept = [place for place in range(_HEART_COLUMNS) if place not in _MOSTLY_MISSING]
        whole = [[row[place] for place in kept] for row in rows]
        values = _numbers([row for row in whole if "?" not in row], file)
        x, y = values[:, :-1], (values[:, -1] > 0).astype(np.int64)
        data[center] = _as_flamby_splits(_with_indicators(x), y, file)
    return {center: data[center] for center in HEART if center in data}


def _with_indicators(x: Array) -> Array:
    plain = [place for place in range(x.shape[1]) if place not in _CATEGORIES]
    indicators = [x[:, place] == value for place, values in _CATEGORIES.items() for value in values]
    return np.column_stack([x[:, plain], *indicators]).astype(np.float32)


def _as_flamby_splits(x: Array, y: Array, file: Path) -> dict[str, Pair]:
    """Two thirds for training, chosen by scikit-learn from seed 43, which gives the patients that FLamby chooses."""
    from sklearn.model_selection import train_test_split  # here, because it takes long to import

    counts = np.bincount(y, minlength=2)
    stratify = y if (counts > 2).all() else None
    try:
        train, test = train_test_split(
            np.arange(len(y)), train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=stratify
        )
    except ValueError as error:
        raise DataError(
            f"{file}: {len(y)} patients of whom nothing is missing are too few to divide: {error}"
        ) from error
    train, test = np.sort(train), np.sort(test)
    return {"train": (x[train], y[train]), "test": (x[test], y[test])}


def _tcga(folder: Path) -> dict[str, Any]:
    """Labels are time and event, as the tasks `cox` and `hazard` want them; the file has the event first."""
    table, split = folder / "brca.csv", folder / _SPLIT
    header, *rows = _rows(table)
    if len(header) != _TCGA_COLUMNS + 3 or header[0] != "pid" or header[-2:] != ["E", "T"]:
        raise DataError(f"{table} has not the columns pid, {_TCGA_COLUMNS} features, E and T")
    place = {row[0]: m for m, row in enumerate(rows)}
    values = _numbers([row[1:] for row in rows], table)
    named, *folds = _rows(split)
    if named != ["pid", "fold", "fold2"]:
        raise DataError(f"{split} has the columns {', '.join(named)[:60]}, expected pid, fold, fold2")
    chosen: dict[str, dict[str, list[int]]] = {}
    for row in folds:
        part, _, center = row[-1].partition("_")
        if len(row) != len(named) or part not in ("train", "test") or row[0] not in place:
            raise DataError(f"{split}: the row {','.join(row)[:60]!r} names no patient of brca.csv or no fold")
        chosen.setdefault(center, {}).setdefault(part, []).append(place[row[0]])
    x, y = values[:, :_TCGA_COLUMNS], values[:, [-1, -2]]
    return {
        center: {part: (x[sorted(parts[part])], y[sorted(parts[part])]) for part in ("train", "test") if part in parts}
        for center, parts in sorted(chosen.items())
    }


def _rows(file: Path) -> list[list[str]]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {str(error)[:200]}; get the file again") from error
    if not rows:
        raise DataError(f"{file} is empty; get the file again")
    return rows


def _numbers(rows: list[list[str]], file: Path) -> Array:
    try:
        values = np.array(rows, np.float32)
    except ValueError as error:
        raise DataError(f"{file}: {str(error)[:100]}: what is not a number cannot be read") from error
    if values.ndim != 2:
        raise DataError(f"{file} has no patient of whom nothing is missing")
    return values
