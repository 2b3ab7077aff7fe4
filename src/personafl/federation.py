"""The clients' data as one ragged store: one array for each field, and where each client's samples lie in it.

A batch for many clients is then a single gather, a saved federation is a few `.npy` files, and features
larger than memory are memory-mapped.
"""

import difflib
import json
import os
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.streams import generator, mix, name_key, stream_key

if TYPE_CHECKING:
    from personafl.data.partition import Partition

Split = Literal["train", "val", "test"]
Array = NDArray[Any]
Indices = NDArray[np.int64]
Pair = tuple[Any, Any]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
DEFAULT_SPLITS = (0.7, 0.1, 0.2)
FORMAT = "personafl-federation"
ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of M clients, N samples in all. Usually made by one of the `from_...` constructors.

    Attributes
    ----------
    x : Tensor
        (N, ...) features, client after client, inside a client [train | validation | test]; float32, int64
        or uint8.
    y : Tensor
        int64 (N,) classes, or float32 (N,) or (N, d) regression targets.
    bounds : array
        (M, 4): where a client's training, validation and test samples start, and where they end.
    ids : tuple of str
        The clients' names.
    groups : tuple of str, optional
        The group of each client (a device type, a cluster).
    classes : int, optional
        Number of classes; None for regression. Not given for integer labels, it is the largest label + 1.
    name : str
        What this federation is called in runs and reports.
    truth : dict of arrays
        What is known to be true of each client of synthetic data; first dimension M.
    notes : tuple of str
        What had to be bent to make this federation, for people to read.

    Examples
    --------
    >>> fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])})
    >>> len(fed), fed.sizes("train").tolist(), fed.classes
    (2, [1, 1], 2)
    """

    x: torch.Tensor
    y: torch.Tensor
    bounds: Indices
    ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    classes: int | None = None
    name: str = "federation"
    truth: dict[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # A saved federation was scanned for NaN before it was written; scanning again would read all of x.
    scanned: InitVar[bool] = False

    def __post_init__(self, scanned: bool) -> None:
        object.__setattr__(self, "bounds", np.array(self.bounds, np.int64))
        self.bounds.setflags(write=False)
        _check_structure(self)
        if self.classes is None and not self.y.is_floating_point():
            object.__setattr__(self, "classes", int(self.y.max()) + 1)
        _check_labels(self)
        if not scanned:
            _check_finite(self, self.x, "features")

    def __len__(self) -> int:
        return len(self.ids)

    def starts(self, split: Split) -> Indices:
        """Where each client's samples of a split start, (M,)."""
        return self.bounds[:, _split_index(split)]

    def sizes(self, split: Split) -> Indices:
        """How many samples of a split each client has, (M,)."""
        which = _split_index(split)
        return self.bounds[:, which + 1] - self.bounds[:, which]

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The random-number key of each client, (M,): it depends on the client's name only."""
        return np.array([name_key(client) for client in self.ids], np.uint64)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client: m for m, client in enumerate(self.ids)}

    def index(self, client_id: str) -> int:
        """The position of a client among the ids."""
        if client_id not in self._positions:
            near = difflib.get_close_matches(str(client_id), self.ids, n=1, cutoff=0.0)
            raise DataError(f"no client {client_id!r} among the {len(self)} clients; did you mean {near[0]!r}?")
        return self._positions[client_id]

    def client(self, client_id: str) -> dict[Split, tuple[torch.Tensor, torch.Tensor]]:
        """One client's (x, y) for each split, as views of the store.

        >>> fed = Federation.from_clients({"ann": {"train": ([[0.0]], [0]), "test": ([[5.0]], [1])}})
        >>> fed.client("ann")["test"]
        (tensor([[5.]]), tensor([1]))
        """
        edges = self.bounds[self.index(client_id)].tolist()
        return {
            split: (self.x[edges[s] : edges[s + 1]], self.y[edges[s] : edges[s + 1]]) for s, split in enumerate(SPLITS)
        }

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that training can see; equal for equal data on every machine."""
        return _digest([self.x.numpy(), self.y.numpy(), self.bounds], [self.ids, self.groups, self.classes])

    def summary(self) -> dict[str, Any]:
        """Numbers that describe the federation: how many clients and samples, how they are spread.

        >>> Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1])}).summary()["classes_per_client"]
        {'min': 2, 'median': 2.0, 'max': 2}
        """
        classes = None
        if self.classes is not None:
            pairs = np.unique(_owner(self) * self.classes + self.y.numpy())
            classes = _spread(np.bincount(pairs // self.classes, minlength=len(self)))
        return {
            "name": self.name,
            "clients": len(self),
            "samples": len(self.x),
            "sizes": {split: _spread(self.sizes(split)) for split in SPLITS},
            "classes": self.classes,
            "classes_per_client": classes,
            "groups": None if self.groups is None else dict(Counter(self.groups)),
        }

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        partition: "Partition | None" = None,
        clients: Any = None,
        groups: Any = None,
        splits: Sequence[float] = DEFAULT_SPLITS,
        seed: int = 0,
        classes: int | None = None,
        name: str = "arrays",
        truth: dict[str, Array] | None = None,
        notes: Sequence[str] = (),
    ) -> "Federation":
        """A federation of one pool of samples.

        Parameters
        ----------
        x, y : array-like
            Features (N, ...) and labels (N,) or (N, d). Integer labels are classes, float labels regression
            targets.
        partition : Partition, optional
            Deals the samples to clients named client-0, client-1, …
        clients : array-like, optional
            Instead of a partition: the client of each sample. Clients are put in natural order (2 before 10).
        groups : mapping or array-like, optional
            With `clients`: the group of each client {id: group}, or of each sample.
        splits : three floats
            A client's shares of train, validation and test. At least one sample is for training; where there
            is too little, a test sample comes before a validation sample.
        seed : int
            The partition follows from it, and, for each client apart, the split.
        classes, name, truth, notes
            As in the class; `truth` in the order of the ids.

        Examples
        --------
        >>> fed = Federation.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=["bob", "ann", "bob"])
        >>> fed.ids, fed.sizes("test").tolist()
        (('ann', 'bob'), [0, 1])
        """
        features, targets = _pair(x, y, "the data")
        if len(targets) == 0:
            raise DataError("the federation is empty: x and y hold no sample")
        if (partition is None) == (clients is None):
            raise ConfigError("from_arrays needs exactly one of partition (deals samples) and clients (a key a sample)")
        named_groups: Sequence[str] | None
        if partition is not None:
            if groups is not None:
                raise ConfigError("groups can be given with clients only: a partition makes its own")
            dealt = partition(targets, generator(seed, "partition"))
            samples, owner = _dealt(dealt.parts, len(targets), partition.name)
            ids: Sequence[str] = [f"client-{m}" for m in range(len(dealt.parts))]
            named_groups, notes = dealt.groups, [*notes, *dealt.notes]
        else:
            ids, owner = _natural_clients(clients, len(targets))
            samples = np.arange(len(targets))
            named_groups = _client_groups(groups, ids, owner)
        order, bounds = _split(ids, owner, splits, seed)
        chunks = np.array_split(samples[order], max(1, -(-len(order) // ROWS_AT_ONCE)))
        return cls(
            x=_gather([features] * len(chunks), chunks, _feature_type),
            y=_gather([targets] * len(chunks), chunks, _label_type),
            bounds=bounds,
            ids=tuple(ids),
            groups=None if named_groups is None else tuple(named_groups),
            classes=classes,
            name=name,
            truth=truth or {},
            notes=tuple(notes),
        )

    @classmethod
    def from_clients(
        cls,
        data: Mapping[Any, Pair | Mapping[Split, Pair]],
        *,
        groups: Mapping[str, str] | None = None,
        splits: Sequence[float] = DEFAULT_SPLITS,
        seed: int = 0,
        classes: int | None = None,
        name: str = "clients",
    ) -> "Federation":
        """A federation of clients that each bring their arrays.

        Parameters
        ----------
        data : mapping
            {id: (x, y)}, each then split by `splits`; or {id: {"train": (x, y), "val": (x, y), "test": (x,
            y)}}, used as it is, where val and test may be left out. The order of the mapping is kept.
        groups : mapping, optional
            {id: group}.
        splits, seed, classes, name
            As in `from_arrays`.

        Examples
        --------
        >>> data = {"ann": {"train": ([[0.0], [1.0]], [0, 1]), "test": ([[2.0]], [1])}}
        >>> Federation.from_clients(data).bounds.tolist()
        [[0, 2, 2, 3]]
        """
        if not data:
            raise DataError("the federation is empty: no client was given")
        ids = [str(client) for client in data]
        divided = [isinstance(entry, Mapping) for entry in data.values()]
        if any(divided) and not all(divided):
            raise DataError(
                f"client {ids[divided.index(False)]!r} is one (x, y) and client "
                f"{ids[divided.index(True)]!r} is divided into splits; give all clients the same way"
            )
        pieces: list[tuple[Array, Array]] = []
        counts = np.zeros((len(ids), 3), np.int64)
        for m, entry in enumerate(data.values()):
            for which, where, pair in _pieces_of(ids[m], entry):
                pieces.append(_pair(*pair, where))
                counts[m, which] = len(pieces[-1][0])
                _check_alike(pieces[0], pieces[-1], where, ids[0])
        if divided[0]:
            order, bounds = np.arange(counts.sum()), _bounds(counts)
        else:
            order, bounds = _split(ids, np.repeat(np.arange(len(ids)), counts.sum(axis=1)), splits, seed)
        ends = np.cumsum([len(y) for _, y in pieces])
        # Samples change places inside a piece only, so each piece is copied once, straight to its place.
        rows = [order[end - len(y) : end] - (end - len(y)) for (_, y), end in zip(pieces, ends, strict=True)]
        return cls(
            x=_gather([x for x, _ in pieces], rows, _feature_type),
            y=_gather([y for _, y in pieces], rows, _label_type),
            bounds=bounds,
            ids=tuple(ids),
            groups=None if groups is None else tuple(_client_groups(groups, ids, None) or ()),
            classes=classes,
            name=name,
        )

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike[str],
        *,
        splits: Sequence[float] = DEFAULT_SPLITS,
        seed: int = 0,
        classes: int | None = None,
        name: str | None = None,
    ) -> "Federation":
        """A federation of a folder with one `.npz` file a client; the file's stem is the client's id.

        A file holds the arrays `x` and `y`, or `x_train`, `y_train` and where there are any `x_val`, `y_val`,
        `x_test`, `y_test`; optionally the string `group`. Nothing in a file is executed: pickled objects are
        refused. Other files of the folder are left alone.

        Parameters
        ----------
        path : path
            The folder.
        splits, seed, classes, name
            As in `from_arrays`; the name is the folder's unless given.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for client in ("phone-10", "phone-2"):
        ...         np.savez(Path(folder, client), x=np.ones((4, 3)), y=np.array([0, 1, 0, 1]))
        ...     Federation.from_folder(folder).ids
        ('phone-2', 'phone-10')
        """
        folder = Path(path)
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give a folder with one .npz file a client")
        files = sorted(folder.glob("*.npz"), key=lambda file: _natural(file.stem))
        if not files:
            raise DataError(f"{folder} holds no .npz file; put one file a client there, with the arrays x and y")
        data: dict[str, Any] = {}
        groups: dict[str, str] = {}
        for file in files:
            data[file.stem], group = _read_client(file)
            if group is not None:
                groups[file.stem] = group
        return cls.from_clients(
            data,
            groups=groups or None,
            splits=splits,
            seed=seed,
            classes=classes,
            name=name or folder.resolve().name,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the federation to a new folder, whole or not at all; `load` reads it back."""
        folder = Path(path)
        if folder.exists():
            raise DataError(f"{folder} exists already; save to a path that does not")
        draft = folder.parent / f".{folder.name}.{uuid4().hex}.draft"
        try:
            (draft / "truth").mkdir(parents=True)
            for what, value in {"x": self.x.numpy(), "y": self.y.numpy(), "bounds": self.bounds}.items():
                np.save(draft / f"{what}.npy", value, allow_pickle=False)
            for what, value in self.truth.items():
                np.save(draft / "truth" / f"{what}.npy", value, allow_pickle=False)
            described = {
                "format": FORMAT,
                "version": 1,
                "fingerprint": self.fingerprint,
                "check": self._check,
            }
            described |= self._labels
            (draft / "federation.json").write_text(json.dumps(described, indent=1), "utf-8")
            draft.rename(folder)
        except OSError as error:
            raise DataError(f"cannot save the federation to {folder}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False) -> "Federation":
        """Read a saved federation; the features stay on disk until they are used.

        Parameters
        ----------
        path : path
            A folder that `save` wrote.
        verify : bool
            Read all features too and compare them with the stored fingerprint. Everything else is always
            compared.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1])})
        >>> with TemporaryDirectory() as folder:
        ...     fed.save(Path(folder, "mine"))
        ...     Federation.load(Path(folder, "mine"), verify=True).fingerprint == fed.fingerprint
        True
        """
        folder = Path(path)
        described = _read_description(folder)
        try:
            loaded = cls(
                # Mode "c": a write would go to memory, never to the file.
                x=torch.from_numpy(_read_array(folder / "x.npy", mmap_mode="c")),
                y=torch.from_numpy(_read_array(folder / "y.npy")),
                bounds=_read_array(folder / "bounds.npy"),
                ids=tuple(described["ids"]),
                groups=None if described["groups"] is None else tuple(described["groups"]),
                classes=described["classes"],
                name=described["name"],
                truth={what: _read_array(folder / "truth" / f"{what}.npy") for what in _truth_names(described)},
                notes=tuple(described["notes"]),
                scanned=True,
            )
            intact = loaded._check == described["check"]
            intact = intact and not (verify and loaded.fingerprint != described["fingerprint"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{folder} is damaged: {type(error).__name__}: {error}; save the federation again"
            ) from error
        except DataError as error:
            raise DataError(f"{folder} is damaged: {error}") from error
        if not intact:
            raise DataError(f"{folder} is damaged: its content is not what was saved; save the federation again")
        return loaded

    @property
    def _labels(self) -> dict[str, Any]:
        labels = {what: getattr(self, what) for what in ("name", "ids", "groups", "classes", "notes")}
        return labels | {"truth": sorted(self.truth)}

    @property
    def _check(self) -> str:
        """A SHA-256 of all but the values of x, so that checking it reads nothing large."""
        arrays = [self.y.numpy(), self.bounds, *(self.truth[what] for what in sorted(self.truth))]
        return _digest(arrays, [self._labels, str(self.x.dtype), list(self.x.shape)])


def _split_index(split: Split) -> int:
    if split not in SPLITS:
        raise DataError(f"there is no split {split!r}, only train, val and test")
    return SPLITS.index(split)


def _owner(fed: Federation) -> Indices:
    """The position of each sample's client, (N,)."""
    return np.repeat(np.arange(len(fed)), fed.bounds[:, 3] - fed.bounds[:, 0])


def _spread(values: Indices) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _digest(arrays: Iterable[Array], labels: Any) -> str:
    digest = sha256(json.dumps(labels, sort_keys=True).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# --- checks on construction ---------------------------------------------------------------------------------


def _check_structure(fed: Federation) -> None:
    clients, samples, bounds = len(fed.ids), len(fed.x), fed.bounds
    if clients == 0:
        raise DataError("the federation is empty: no client was given")
    if strangers := [client for client in fed.ids if not isinstance(client, str)]:
        raise DataError(f"client ids must be strings, {strangers[0]!r} is not")
    if repeated := [client for client, times in Counter(fed.ids).items() if times > 1]:
        raise DataError(f"{_many(len(repeated), 'client id')} given twice: {_listing(repeated)}; ids must be unique")
    if fed.x.dtype not in (torch.float32, torch.int64, torch.uint8) or fed.y.dtype not in (
        torch.float32,
        torch.int64,
    ):
        raise DataError(
            f"x is {fed.x.dtype} and y is {fed.y.dtype}; the store holds x as float32, int64 or uint8 and "
            f"y as int64 or float32 (the from_... constructors convert)"
        )
    if len(fed.y) != samples:
        raise DataError(f"x has {samples} samples and y has {len(fed.y)}; they must be as many")
    tiles = (
        bounds.shape == (clients, 4)
        and bounds[0, 0] == 0
        and bounds[-1, 3] == samples
        and bool((bounds[1:, 0] == bounds[:-1, 3]).all())
        and bool((np.diff(bounds, axis=1) >= 0).all())
    )
    if not tiles:
        raise DataError(
            f"bounds of shape {bounds.shape} do not divide {samples} samples among {clients} clients: "
            f"expected ({clients}, 4), each row ascending, starting where the row before ends"
        )
    if (idle := np.flatnonzero(fed.sizes("train") == 0)).size:
        raise DataError(
            f"{_many(len(idle), 'client')} without training data: {_listing([fed.ids[m] for m in idle])}; "
            f"leave them out"
        )
    if fed.groups is not None and len(fed.groups) != clients:
        raise DataError(f"{len(fed.groups)} groups for {clients} clients; give one a client")
    for what, value in fed.truth.items():
        if not what.isidentifier():  # it becomes a file name
            raise DataError(f"truth {what!r} must be named like a variable")
        if value.ndim == 0 or len(value) != clients or value.dtype.kind not in "biuf":
            raise DataError(f"truth {what!r} must be numbers with first dimension {clients}, one row a client")


def _check_labels(fed: Federation) -> None:
    if fed.y.is_floating_point():
        if fed.classes is not None:
            raise DataError(
                f"classes = {fed.classes} was given but the labels are floats; convert them to integers, "
                f"or leave classes out for regression"
            )
        if fed.y.ndim > 2:
            raise DataError(f"regression targets have shape {tuple(fed.y.shape)}; expected (N,) or (N, d)")
        return _check_finite(fed, fed.y, "targets")
    if fed.y.ndim != 1:
        raise DataError(f"class labels have shape {tuple(fed.y.shape)}; expected (N,)")
    labels = fed.y.numpy()
    if (negative := labels < 0).any():
        raise DataError(f"negative labels in {_culprits(fed, negative, 'label')}; classes count from 0")
    if (beyond := labels >= (fed.classes or 0)).any():
        raise DataError(
            f"labels outside 0..{(fed.classes or 0) - 1} in {_culprits(fed, beyond, 'label')}; the largest "
            f"is {labels.max()}, so give classes = {labels.max() + 1} or correct them"
        )


def _check_finite(fed: Federation, values: torch.Tensor, what: str) -> None:
    # One NaN or infinity makes the sum NaN or infinite: the usual case costs one pass and no memory.
    if not values.is_floating_point() or torch.isfinite(values.sum(dtype=torch.float64)):
        return
    bad = ~np.isfinite(values.numpy()).reshape(len(values), -1)
    if bad.any():
        raise DataError(f"NaN or infinite {what} in {_culprits(fed, bad, 'value')}; clean or leave them out")


def _culprits(fed: Federation, wrong: NDArray[np.bool_], unit: str) -> str:
    """Which clients have wrong values, and how many."""
    counts = np.bincount(_owner(fed), weights=wrong.reshape(len(wrong), -1).sum(axis=1), minlength=len(fed)).astype(int)
    clients = np.flatnonzero(counts)
    named = [f"{fed.ids[m]} ({_many(counts[m], unit)})" for m in clients]
    return f"{_many(len(clients), 'client')}: {_listing(named)}"


def _many(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _listing(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- arrays that people bring -------------------------------------------------------------------------------


def _pair(x: Any, y: Any, where: str) -> tuple[Array, Array]:
    features, targets = _numbers(x, f"x of {where}"), _numbers(y, f"y of {where}")
    if len(features) != len(targets):
        raise DataError(f"{where}: x has {len(features)} samples and y has {len(targets)}; they must be as many")
    return features, targets


def _numbers(value: Any, what: str) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} is not one array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} holds {array.dtype} values, not numbers; convert it to an integer or float array")
    if array.ndim == 0:
        raise DataError(f"{what} is a single number; expected one entry a sample")
    return array


def _feature_type(dtype: np.dtype[Any]) -> type[np.generic]:
    if dtype.kind == "f":
        return np.float32
    return np.uint8 if dtype.itemsize == 1 and dtype.kind in "bu" else np.int64


def _label_type(dtype: np.dtype[Any]) -> type[np.generic]:
    return np.float32 if dtype.kind == "f" else np.int64


def _gather(pieces: Sequence[Array], rows: Sequence[Indices], stored_type: Any) -> torch.Tensor:
    """The given rows of each piece, one after another, in the store's type: one copy, whatever came in."""
    dtype = stored_type(np.result_type(*{piece.dtype for piece in pieces}))
    gathered = np.empty((sum(map(len, rows)), *pieces[0].shape[1:]), dtype)
    start = 0
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and the check for that names it
        for piece, row in zip(pieces, rows, strict=True):
            gathered[start : start + len(row)] = piece[row]
            start += len(row)
    return torch.from_numpy(gathered)


def _pieces_of(client: str, entry: Any) -> list[tuple[int, str, Pair]]:
    """(position of the split, what to call it in an error, (x, y)) for each split that a client brings."""
    parts: Mapping[Any, Any] = entry if isinstance(entry, Mapping) else {"train": entry}
    if unknown := [str(part) for part in parts if part not in SPLITS]:
        raise DataError(f"client {client!r} has a split {unknown[0]!r}; there are only train, val and test")
    for pair in parts.values():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"client {client!r} must bring (x, y), or a mapping of splits to (x, y)")
    where = {split: f"client {client!r}" + (f" ({split})" if parts is entry else "") for split in SPLITS}
    return [(s, where[split], parts[split]) for s, split in enumerate(SPLITS) if split in parts]


def _check_alike(first: tuple[Array, Array], other: tuple[Array, Array], where: str, first_client: str) -> None:
    for what, mine, yours in (("features", first[0], other[0]), ("labels", first[1], other[1])):
        if mine.shape[1:] != yours.shape[1:]:
            raise DataError(
                f"{where} has {what} of shape {yours.shape[1:]}, expected {mine.shape[1:]} as in client "
                f"{first_client!r}"
            )
    if (first[1].dtype.kind == "f") != (other[1].dtype.kind == "f"):
        raise DataError(
            f"{where} has {other[1].dtype} labels and client {first_client!r} has {first[1].dtype}; use "
            f"integers for classes or floats for regression everywhere"
        )


# --- who has which sample -----------------------------------------------------------------------------------


def _dealt(parts: Sequence[Indices], samples: int, partition: str) -> tuple[Indices, Indices]:
    """The samples that a partition deals, client after client, and the position of each one's client."""
    if not parts:
        raise DataError(f"partition {partition} made no client")
    dealt = np.concatenate(parts).astype(np.int64)
    if dealt.size and not 0 <= dealt.min() <= dealt.max() < samples:
        raise DataError(f"partition {partition} deals samples outside 0..{samples - 1}")
    if (twice := np.flatnonzero(np.bincount(dealt, minlength=samples) > 1)).size:
        raise DataError(f"partition {partition} deals {_many(len(twice), 'sample')} more than once, such as {twice[0]}")
    return dealt, np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _natural_clients(clients: Any, samples: int) -> tuple[list[str], Indices]:
    """The ids in natural order, and the position of each sample's client."""
    keys = clients.cpu().numpy() if isinstance(clients, torch.Tensor) else np.asarray(clients)
    if keys.shape != (samples,):
        raise DataError(f"clients has shape {keys.shape}, expected ({samples},): the client of each sample")
    if keys.dtype.kind == "f" or any(key is None or key != key for key in (keys if keys.dtype.kind == "O" else ())):
        raise DataError("clients must be strings or integers, one for each sample, none missing")
    names, owner = np.unique(keys.astype(str), return_inverse=True)
    ranked = sorted(range(len(names)), key=lambda k: _natural(str(names[k])))
    return [str(names[k]) for k in ranked], np.argsort(ranked)[owner]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts client-2 before client-10: digits compare as numbers."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", name))], name


def _client_groups(groups: Any, ids: Sequence[str], owner: Indices | None) -> list[str] | None:
    """One group for each client, of a mapping or, where samples have owners, of one entry a sample."""
    if groups is None:
        return None
    if isinstance(groups, Mapping):
        named = {str(client): str(group) for client, group in groups.items()}
        if missing := [client for client in ids if client not in named]:
            raise DataError(f"{_many(len(missing), 'client')} without a group: {_listing(missing)}; give all or none")
        if unknown := sorted(set(named) - set(ids)):
            raise DataError(f"groups for unknown clients: {_listing(unknown)}")
        return [named[client] for client in ids]
    each = np.asarray(groups).astype(str)
    if owner is None or each.shape != owner.shape:
        raise DataError(f"groups has shape {each.shape}: give one entry a sample, or a mapping of client to group")
    pairs = sorted(set(zip(owner.tolist(), each.tolist(), strict=True)))
    if torn := [client for client, count in Counter(client for client, _ in pairs).items() if count > 1]:
        member_of = ", ".join(group for client, group in pairs if client == torn[0])
        raise DataError(
            f"{_many(len(torn), 'client')} in more than one group: {_listing([ids[m] for m in torn])} "
            f"({ids[torn[0]]} is in {member_of})"
        )
    return [group for _, group in pairs]


def _split(ids: Sequence[str], owner: Indices, splits: Sequence[float], seed: int) -> tuple[Indices, Indices]:
    """An order that puts each client's samples as [train | validation | test], and the bounds.

    A sample's place follows from (seed, client id, its position in the client), so a client's split is the
    same whoever else is there.
    """
    sizes = np.bincount(owner, minlength=len(ids)).astype(np.int64)
    counts = _split_counts(sizes, splits)
    by_client = np.argsort(owner, kind="stable")
    position = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    keys = np.array([name_key(client) for client in ids], np.uint64)
    shuffle = mix(np.repeat(mix(keys, stream_key(seed, "split")), sizes), position.astype(np.uint64))
    order = by_client[np.lexsort((shuffle, owner[by_client]))]
    return order, _bounds(counts)


def _split_counts(sizes: Indices, splits: Sequence[float]) -> Indices:
    """How many samples each client has for training, validation and test: (M, 3), by largest remainder."""
    shares = np.asarray(splits, float)
    if shares.shape != (3,) or not (shares >= 0).all() or shares[0] <= 0 or abs(shares.sum() - 1) > 1e-6:
        raise ConfigError(
            f"splits = {splits} must be the shares of train, validation and test: none negative, train above 0, sum 1"
        )
    ideal = np.round(sizes[:, None] * shares, 9)  # 0.7 · 10 is 7, not 6.999…
    counts: Indices = np.floor(ideal).astype(np.int64)
    # Ties go to test, then validation: a client with two samples has one to train and one to test on.
    preferred = (ideal - counts) + np.array([0.0, 1e-10, 2e-10])
    rank = np.argsort(np.argsort(-preferred, axis=1), axis=1)
    counts += rank < (sizes - counts.sum(axis=1))[:, None]
    train, validation, test = 0, 1, 2
    for receiver, giver in ((train, validation), (train, test), (test, validation)):
        lacks = (counts[:, receiver] == 0) & (counts[:, giver] > 0) & (shares[receiver] > 0)
        counts[lacks, giver] -= 1
        counts[lacks, receiver] += 1
    return counts


def _bounds(counts: Indices) -> Indices:
    """(M, 3) sizes to (M, 4) bounds."""
    edges = np.concatenate([[0], np.cumsum(counts.ravel())])
    starts = edges[:-1].reshape(-1, 3)
    return np.asarray(np.concatenate([starts, edges[3::3, None]], axis=1), np.int64)


# --- files --------------------------------------------------------------------------------------------------

UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)


def _read_client(file: Path) -> tuple[Pair | dict[str, Pair], str | None]:
    """A client's (x, y) or its splits, and its group if the file names one."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {str(what): archive[what] for what in archive.files}
    except (*UNREADABLE, AttributeError, TypeError) as error:
        raise DataError(f"cannot read {file}: {error}; expected an .npz of plain number arrays") from error
    named = arrays.pop("group", None)
    if named is not None and (named.ndim > 0 or named.dtype.kind != "U"):
        raise DataError(f"{file}: group must be one string, not {named.dtype} of shape {named.shape}")
    group = None if named is None else str(named)
    if set(arrays) == {"x", "y"}:
        return (arrays["x"], arrays["y"]), group
    pairs = {split: (f"x_{split}", f"y_{split}") for split in SPLITS}
    known = {what for pair in pairs.values() for what in pair}
    whole = all((x in arrays) == (y in arrays) for x, y in pairs.values())
    if not whole or "x_train" not in arrays or set(arrays) - known:
        raise DataError(
            f"{file} holds the arrays {', '.join(sorted(arrays)) or 'none'}; expected x and y, or x_train "
            f"and y_train with x_val, y_val, x_test, y_test where there are any, and nothing else but group"
        )
    return {split: (arrays[x], arrays[y]) for split, (x, y) in pairs.items() if x in arrays}, group


def _read_array(file: Path, mmap_mode: Literal["c"] | None = None) -> Array:
    try:
        array = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except UNREADABLE as error:
        raise DataError(f"cannot read {file.name}: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file.name} is not a single array")
    return array


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / "federation.json"
    if not file.is_file():
        raise DataError(f"{folder} is not a saved federation: it has no federation.json")
    try:
        described = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is damaged: cannot read federation.json: {error}") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise DataError(f"{folder} is not a saved federation: its federation.json is something else")
    if described.get("version") != 1:
        raise DataError(f"{folder} has version {described.get('version')}; this personafl reads version 1")
    return described


def _truth_names(described: dict[str, Any]) -> list[str]:
    names = described["truth"]
    if not all(isinstance(what, str) and what.isidentifier() for what in names):
        raise DataError("truth names must be like variables")  # anything else could lead out of the folder
    return list(names)
