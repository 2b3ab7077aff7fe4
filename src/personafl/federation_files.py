"""Federations on disk: a folder of one `.npz` a client, and the format of `Federation.save`."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import torch

from personafl.arrays import SPLITS, Array, Pair
from personafl.errors import DataError
from personafl.splits import natural_order

if TYPE_CHECKING:
    from personafl.federation import Federation

FORMAT = "personafl-federation"
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What each client of a folder of `.npz` files brings, and the groups that files name."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give a folder with one .npz file a client")
    files = sorted(folder.glob("*.npz"), key=lambda file: natural_order(file.stem))
    if not files:
        raise DataError(f"{folder} holds no .npz file; put one file a client there, with the arrays x and y")
    data: dict[str, Any] = {}
    groups: dict[str, str] = {}
    for file in files:
        data[file.stem], group = read_client(file)
        if group is not None:
            groups[file.stem] = group
    return data, groups


def save(fed: Federation, folder: Path) -> None:
    """Write a federation to a new folder, whole or not at all."""
    if folder.exists():
        raise DataError(f"{folder} exists already; save to a path that does not")
    draft = folder.parent / f".{folder.name}.{uuid4().hex}.draft"
    try:
        (draft / "truth").mkdir(parents=True)
        for what, value in {"x": fed.x.numpy(), "y": fed.y.numpy(), "bounds": fed.bounds}.items():
            np.save(draft / f"{what}.npy", value, allow_pickle=False)
        for what, value in fed.truth.items():
            np.save(draft / "truth" / f"{what}.npy", value, allow_pickle=False)
        described = {
            "format": FORMAT,
            "version": 1,
            "fingerprint": fed.fingerprint,
            "check": _check(fed),
        }
        described |= _labels(fed)
        (draft / "federation.json").write_text(json.dumps(described, indent=1), "utf-8")
        # The name must not reach the disk before the content does, or a power cut leaves a damaged federation.
        for written in [*draft.rglob("*"), draft]:
            _sync(written)
        draft.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise DataError(f"cannot save the federation to {folder}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load(make: type[Federation], folder: Path, verify: bool) -> Federation:
    """Read what `save` wrote. The features are mapped, and read only to verify them."""
    described = _read_description(folder)
    try:
        loaded = make(
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
        intact = _check(loaded) == described["check"]
        intact = intact and not (verify and loaded.fingerprint != described["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder} is damaged: {type(error).__name__}: {error}; save the federation again") from error
    except DataError as error:
        raise DataError(f"{folder} is damaged: {error}") from error
    if not intact:
        raise DataError(f"{folder} is damaged: its content is not what was saved; save the federation again")
    return loaded


def digest(arrays: Iterable[Array], labels: Any) -> str:
    """A SHA-256 of arrays and of labels that JSON can hold."""
    digest = sha256(json.dumps(labels, sort_keys=True).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _labels(fed: Federation) -> dict[str, Any]:
    labels = {what: getattr(fed, what) for what in ("name", "ids", "groups", "classes", "notes")}
    return labels | {"truth": sorted(fed.truth)}


def _check(fed: Federation) -> str:
    """A SHA-256 of all but the values of x, so that checking it reads nothing large."""
    arrays = [fed.y.numpy(), fed.bounds, *(fed.truth[what] for what in sorted(fed.truth))]
    return digest(arrays, [_labels(fed), str(fed.x.dtype), list(fed.x.shape)])


def _sync(path: Path) -> None:
    """Make a file or folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_client(file: Path) -> tuple[Pair | dict[str, Pair], str | None]:
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
