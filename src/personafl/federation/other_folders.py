"""Data folders of other libraries: PFLlib, LEAF, FL-bench; FLamby's are in `flamby`.

Nothing in a folder is executed: pickles are read by `pickles`, which knows arrays and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import SPLITS, Array, Pair, Split
from personafl.federation.checks import listing
from personafl.federation.flamby import read_flamby
from personafl.federation.folders import UNREADABLE, map_array, read_folder
from personafl.federation.npz import read_npz_pickle
from personafl.federation.pickles import plain, read_pickle
from personafl.federation.splits import natural_order

Format = Literal["npz", "pfllib", "leaf", "flbench", "flamby"]
"""npz: one file a client, as docs/your-data.md has it; the others: as that library writes them."""
_MOST_PARTITION = 1 << 28  # bytes of FL-bench's partition.pkl; a million samples take 8 of them each


@dataclass(frozen=True)
class FolderContent:
    """What a folder holds.

    Attributes
    ----------
    data
        What each client brings: (x, y), or that for each split.
    groups
        The group of each client, where the folder has groups.
    classes
        How many there are, where the folder says so.
    class_names
        What they are called, where that is known.
    """

    data: dict[str, Pair | Mapping[Split, Pair]]
    groups: Mapping[str, str] | None = None
    classes: int | None = None
    class_names: tuple[str, ...] | None = None


def check_format(value: str) -> None:
    """Refuse a format that is not known."""
    if value not in get_args(Format):
        raise ConfigError(f"format = {value!r} must be {', '.join(get_args(Format)[:-1])} or {get_args(Format)[-1]}")


def read_as(folder: Path, format: Format) -> FolderContent:
    """What the clients of a folder bring."""
    check_format(format)
    return _READERS[format](folder)


def _npz(folder: Path) -> FolderContent:
    data, groups = read_folder(folder)
    return FolderContent(data, groups or None)


def _pfllib(folder: Path) -> FolderContent:
    """`train/N.npz` and `test/N.npz`, each a pickled dict of x and y; the number of classes is in config.json."""
    files = {split: _numbered(folder / split, ".npz") for split in ("train", "test")}
    if not files["train"]:
        raise DataError(
            f"{folder} is not a folder of PFLlib: it has no train/0.npz; give dataset/NAME, made by its script"
        )
    _check_trained(files["test"], files["train"], f"{folder}/test")
    data: dict[str, Any] = {client: {} for client in files["train"]}
    for split, of_split in files.items():
        for client, file in of_split.items():
            entries = read_pickle(read_npz_pickle(file, "data"), f"{file}: data", ("x", "y"))
            data[client][split] = entries["x"], entries["y"]
    config = folder / "config.json"
    classes = _read_json(config).get("num_classes") if config.exists() else None
    if classes is not None and (type(classes) is not int or classes < 1):
        raise DataError(f"{config}: num_classes = {str(classes)[:50]} is not a number of classes")
    return FolderContent(data, classes=classes)


def _leaf(folder: Path) -> FolderContent:
    """`train/*.json` and `test/*.json`, each user's samples as lists of numbers, or as text and next letter."""
    folder = folder / "data" if (folder / "data" / "train").is_dir() else folder
    data: dict[str, Any] = {}
    for split in ("train", "test"):
        for user, pair in _users(folder / split):
            if split == "test" and user not in data:
                raise _only_tested(user, f"{folder}/test", "-t sample")
            if split in data.setdefault(user, {}):
                raise DataError(f"{folder}/{split} has user {user!r} twice; leave one of the files out")
            data[user][split] = pair
    if not data:
        raise DataError(
            f"{folder} is not a folder of LEAF: it has no train/*.json; give data/NAME/data, made by its script"
        )
    return _letters(data) if isinstance(_first(data)[0], list) else FolderContent(data)


def _users(folder: Path) -> Iterator[tuple[str, Pair]]:
    for file in sorted(folder.glob("*.json"), key=lambda file: natural_order(file.stem)):
        held = _read_json(file)
        users, samples = held.get("users"), held.get("user_data")
        if not isinstance(users, list) or not isinstance(samples, dict):
            raise DataError(f"{file} is not a file of LEAF: it has no list users and no table user_data")
        for user in users:
            pair = samples.get(user) if isinstance(user, str) else None
            if not isinstance(pair, dict) or not {"x", "y"} <= pair.keys():
                raise DataError(f"{file}: user_data has no x and y of user {str(user)[:50]!r}")
            yield user, (_leaf_x(pair["x"], f"{file}: x of user {user!r}"), pair["y"])


def _leaf_x(x: Any, what: str) -> Any:
    """An array of numbers; texts stay a list."""
    if not isinstance(x, list) or not x:
        raise DataError(f"{what} is not a list of samples")
    if all(isinstance(sample, str) for sample in x) and len({len(sample) for sample in x}) == 1 and len(x[0]) > 1:
        return x
    try:
        array = np.asarray(x)
    except ValueError:
        array = np.asarray("")
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{what} holds {type(x[0]).__name__}s such as {str(x[0])[:40]!r}, and only numbers and texts of equal "
            "length (shakespeare) can be read; make arrays of them and give these to Federation.from_clients"
        )
    return array


def _letters(data: dict[str, Any]) -> FolderContent:
    """Texts of equal length and the letter that follows, as numbers: the places of letters among all that occur."""
    pairs = [pair for splits in data.values() for pair in splits.values()]
    letters = sorted({letter for x, y in pairs for text in (*x, *y) for letter in str(text)})
    number = {letter: place for place, letter in enumerate(letters)}
    for user, splits in data.items():
        for split, (x, y) in splits.items():
            if not isinstance(x, list) or not all(isinstance(letter, str) and len(letter) == 1 for letter in y):
                raise DataError(f"user {user!r} ({split}) has not a letter for each text, as LEAF's shakespeare has")
            coded = np.array([[number[letter] for letter in text] for text in x], np.int64)
            splits[split] = coded, np.array([number[letter] for letter in y], np.int64)
    return FolderContent(data, class_names=tuple(letters))


def _flbench(folder: Path) -> FolderContent:
    """`partition.pkl` says which rows of `data.npy` and `targets.npy` a client has, for each split."""
    file = folder / "partition.pkl"
    x, y = _flbench_samples(folder)
    try:
        if file.stat().st_size > _MOST_PARTITION:
            raise DataError(f"{file} is {file.stat().st_size} bytes long, more than {_MOST_PARTITION}: no partition")
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{folder} is not a folder of FL-bench: cannot read partition.pkl: {error.strerror}") from error
    indices = read_pickle(content, str(file), ("data_indices",))["data_indices"]
    if not isinstance(indices, list) or not indices:
        raise DataError(f"{file}: data_indices is not a list with an entry a client")
    data: dict[str, Any] = {}
    for client, entry in enumerate(indices):
        rows = _rows(entry, len(y), f"{file}: client {client}")
        if not len(rows.get("train", ())):
            raise _only_tested(str(client), str(file), "--split sample")
        data[str(client)] = {split: (x[row], y[row]) for split, row in rows.items() if len(row)}
    return FolderContent(data)


def _flbench_samples(folder: Path) -> tuple[Array, Array]:
    for x, y in ((folder / "data.npy", folder / "targets.npy"), (folder / "raw/xdata.npy", folder / "raw/ydata.npy")):
        if x.exists() and y.exists():
            try:
                features, targets = map_array(x), map_array(y)
            except UNREADABLE as error:
                raise DataError(f"cannot read {x} and {y.name}: {error}") from error
            if len(features) != len(targets) or targets.size != len(targets):
                raise DataError(f"{x} has {len(features)} samples, and {y.name} the shape {targets.shape}")
            return features, targets.reshape(-1)
    raise DataError(
        f"{folder} has no data.npy and targets.npy (nor raw/xdata.npy and raw/ydata.npy): FL-bench leaves this set "
        "in the files of torchvision; save its dataset.data and dataset.targets there with np.save"
    )


def _rows(entry: Any, samples: int, what: str) -> dict[str, Any]:
    """The rows of a client's samples, for each split."""
    if not isinstance(entry, dict) or not entry.keys() <= set(SPLITS):
        raise DataError(f"{what} is not a table of the rows for train, val and test")
    rows: dict[str, Any] = {}
    for split in (split for split in SPLITS if split in entry):
        try:
            row = np.asarray(plain(entry[split]))
        except ValueError as error:
            raise DataError(f"{what} ({split}): {error}") from error
        row = row.astype(np.int64) if row.size == 0 else row
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise DataError(f"{what} ({split}) is not a list of rows")
        if row.size and not (0 <= int(row.min()) and int(row.max()) < samples):
            raise DataError(f"{what} ({split}) has row {int(row.max())}, and there are {samples} samples")
        rows[split] = row
    return rows


def _numbered(folder: Path, suffix: str) -> dict[str, Path]:
    files = sorted(folder.glob(f"*{suffix}"), key=lambda file: natural_order(file.stem))
    return {file.stem: file for file in files}


def _check_trained(tested: Mapping[str, Any], trained: Mapping[str, Any], where: str) -> None:
    if alone := [client for client in tested if client not in trained]:
        raise DataError(f"{where} has {listing(alone, 3)}, of whom there is nothing in train")


def _only_tested(client: str, where: str, option: str) -> DataError:
    return DataError(
        f"{where}: client {client!r} has test data and no training data, so the split was by user; make it by sample "
        f"({option})"
    )


def _first(data: Mapping[str, Any]) -> Pair:
    return next(iter(next(iter(data.values())).values()))  # type: ignore[no-any-return]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        held = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {file}: {str(error)[:200]}; get the file again") from error
    if not isinstance(held, dict):
        raise DataError(f"{file} holds a {type(held).__name__}, expected a table")
    return held


def _flamby(folder: Path) -> FolderContent:
    data, classes = read_flamby(folder)
    return FolderContent(data, classes=classes)


_READERS: dict[str, Callable[[Path], FolderContent]] = {
    "npz": _npz, "pfllib": _pfllib, "leaf": _leaf, "flbench": _flbench, "flamby": _flamby,
}  # fmt: skip
