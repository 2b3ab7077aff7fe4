"""The arrays that people bring (lists, numpy, torch), and how they get into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation.ragged import Features, Part, Ragged, ragged
from personafl.inputs import Inputs, check_names, part_name, parts, whole

Split = Literal["train", "val", "test"]
Array = NDArray[Any]
Indices = NDArray[np.int64]
Pair = tuple[Any, Any]

SPLITS: tuple[Split, ...] = ("train", "val", "test")


class Stored(Protocol):
    """The fields of a federation, for functions that its class itself is made of."""

    @property
    def x(self) -> Inputs:
        """All clients' samples, end to end."""

    @property
    def y(self) -> torch.Tensor:
        """Their labels."""

    @property
    def bounds(self) -> Indices:
        """Where each client's splits begin and end, (M, 4)."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients' names."""

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The group of each client, where they have any."""

    @property
    def classes(self) -> int | None:
        """How many classes there are; None in a regression."""

    @property
    def name(self) -> str:
        """What the data is called."""

    @property
    def truth(self) -> dict[str, Array]:
        """What is known to be true of each client of synthetic data."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be bent to make this federation, for people to read."""

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Constants that all clients share, such as word vectors or the means of a standardization."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, where that is known."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything, by which runs tell data apart."""

    @property
    def multi_label(self) -> bool:
        """Whether samples have several labels each."""

    def __len__(self) -> int: ...

    def starts(self, split: Split) -> Indices:
        """Where the split of each client begins, (M,)."""

    def sizes(self, split: Split) -> Indices:
        """How many samples each client has in a split, (M,)."""


def split_index(split: Split) -> int:
    """Where a split comes in a client's samples."""
    if split not in SPLITS:
        raise DataError(f"there is no split {split!r}, only train, val and test")
    return SPLITS.index(split)


def pair(x: Any, y: Any, where: str) -> tuple[Features, Part]:
    """Features and labels as numpy arrays, uncopied where possible; `where` names them in an error."""
    if isinstance(x, Mapping):
        check_names(list(x))
    given = dict(x) if isinstance(x, Mapping) else {"": x}
    features = {name: numbers(value, f"{part_name(name)} of {where}") for name, value in given.items()}
    targets = numbers(y, f"y of {where}")
    (first, samples), *others = [(name, len(value)) for name, value in features.items()]
    for name, many in others:
        if many != samples:
            raise DataError(f"{where}: {part_name(name)} has {many} samples, {part_name(first)} {samples}")
    if samples != len(targets):
        raise DataError(
            f"{where}: {part_name(first)} has {samples} samples and y has {len(targets)}; they must be as many"
        )
    return whole(features), targets


def client_pieces(ids: Sequence[str], entries: Sequence[Any]) -> tuple[list[tuple[Features, Part]], Indices, bool]:
    """The (x, y) that clients bring, one after another; their sizes, (M, 3); whether they come divided into splits."""
    divided = [isinstance(entry, Mapping) for entry in entries]
    if any(divided) and not all(divided):
        raise DataError(
            f"client {ids[divided.index(False)]!r} is one (x, y) and client "
            f"{ids[divided.index(True)]!r} is divided into splits; give all clients the same way"
        )
    pieces: list[tuple[Features, Part]] = []
    counts = np.zeros((len(ids), 3), np.int64)
    for m, entry in enumerate(entries):
        for which, where, pair_of_split in _pieces_of(ids[m], entry):
            pieces.append(pair(*pair_of_split, where))
            counts[m, which] = len(pieces[-1][1])
            _check_alike(pieces[0], pieces[-1], where, ids[0])
    return pieces, counts, divided[0]


def stored_features(pieces: Sequence[Array | dict[str, Array]], rows: Sequence[Indices]) -> Inputs:
    """The given rows of each piece, one after another, as float32, int64 or uint8."""
    named = [parts(piece) for piece in pieces]
    return whole({name: _stored([piece[name] for piece in named], rows) for name in named[0]})


def _stored(pieces: Sequence[Array], rows: Sequence[Indices]) -> torch.Tensor:
    dtype = np.result_type(*{piece.dtype for piece in pieces})
    if dtype.kind == "f":
        return _gather(pieces, rows, np.float32)
    return _gather(pieces, rows, np.uint8 if dtype.itemsize == 1 and dtype.kind in "bu" else np.int64)


def stored_labels(pieces: Sequence[Array], rows: Sequence[Indices]) -> torch.Tensor:
    """The given rows of each piece, one after another, as int64 classes or float32 targets."""
    dtype = np.result_type(*{piece.dtype for piece in pieces})
    return _gather(pieces, rows, np.float32 if dtype.kind == "f" else np.int64)


def _gather(pieces: Sequence[Array], rows: Sequence[Indices], dtype: type[np.generic]) -> torch.Tensor:
    """One copy, whatever came in."""
    gathered = np.empty((sum(map(len, rows)), *pieces[0].shape[1:]), dtype)
    start = 0
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and the check for that names it
        for piece, row in zip(pieces, rows, strict=True):
            gathered[start : start + len(row)] = piece[row]
            start += len(row)
    return torch.from_numpy(gathered)


def numbers(value: Any, what: str) -> Part:
    """An array of numbers, or samples of unequal length where it is a list of such."""
    if isinstance(value, Ragged):
        return value
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    listed = isinstance(value, list | tuple) or getattr(value, "dtype", None) == np.dtype(object)
    lengths = {_length(each) for each in value} if listed else set()
    if len(lengths) > 1 and None not in lengths:
        return ragged(value, what)
    if listed:
        value = [each.detach().cpu().numpy() if isinstance(each, torch.Tensor) else each for each in value]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} is not one array: {error}") from error
    if array.dtype.kind in "US" and what.startswith("y "):
        raise DataError(
            f"{what} holds text such as {str(array.flat[0])!r}; give the number of each class, 0, 1, …, as in "
            "names, y = np.unique(y, return_inverse=True)"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} holds {array.dtype} values, not numbers; convert it to an integer or float array")
    if array.ndim == 0:
        raise DataError(f"{what} is a single number; expected one entry a sample")
    return array


def _length(value: Any) -> int | None:
    """How long a sample is; None for a number or a text."""
    if isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return None
    return len(value)


def _pieces_of(client: str, entry: Any) -> list[tuple[int, str, Pair]]:
    """(position of the split, what to call it in an error, (x, y)) for each split that a client brings."""
    parts: Mapping[Any, Any] = entry if isinstance(entry, Mapping) else {"train": entry}
    if unknown := [str(part) for part in parts if part not in SPLITS]:
        instead = "; give the tuple (x, y)" if set(parts) == {"x", "y"} else ""
        raise DataError(f"client {client!r} has a split {unknown[0]!r}; there are only train, val and test{instead}")
    for brought in parts.values():
        if not isinstance(brought, tuple | list) or len(brought) != 2:
            raise DataError(f"client {client!r} must bring (x, y), or a mapping of splits to (x, y)")
    where = {split: f"client {client!r}" + (f" ({split})" if parts is entry else "") for split in SPLITS}
    return [(s, where[split], parts[split]) for s, split in enumerate(SPLITS) if split in parts]


def _check_alike(first: tuple[Features, Part], other: tuple[Features, Part], where: str, first_client: str) -> None:
    mine: dict[str, Any] = parts(first[0])
    yours: dict[str, Any] = parts(other[0])
    if mine.keys() != yours.keys():
        names = [", ".join(filter(None, each)) or "no named ones" for each in (yours, mine)]
        raise DataError(f"{where} has the inputs {names[0]}, and client {first_client!r} {names[1]}; give all the same")
    for name in mine:
        what = f"features {part_name(name)}" if name else "features"
        _check_shapes(what, mine[name], yours[name], where, first_client)
    _check_shapes("labels", first[1], other[1], where, first_client)
    if (first[1].dtype.kind == "f") != (other[1].dtype.kind == "f"):
        raise DataError(
            f"{where} has {other[1].dtype} labels and client {first_client!r} has {first[1].dtype}; use "
            f"integers for classes or floats for regression everywhere"
        )


def _check_shapes(what: str, mine: Part, yours: Part, where: str, first_client: str) -> None:
    """Samples have equal shapes, but for the length of what will be padded."""
    unequal = isinstance(mine, Ragged) or isinstance(yours, Ragged)
    if mine.shape[1 + unequal :] != yours.shape[1 + unequal :]:
        raise DataError(
            f"{where} has {what} of shape {yours.shape[1:]}, expected {mine.shape[1:]} as in client {first_client!r}"
        )
