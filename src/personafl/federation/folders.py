"""Federations on disk: a folder of one `.npz` a client, and the format of `Federation.save`."""

from __future__ import annotations

import json
import mmap
import shutil
import sys
import tokenize
import zipfile
from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from personafl.errors import DataError
from personafl.federation.arrays import SPLITS, Array, Pair, Stored
from personafl.federation.checks import listing
from personafl.federation.npz import npz_names, read_npz
from personafl.federation.ragged import LENGTHS, checked_ragged
from personafl.federation.splits import natural_order
from personafl.files import sync
from personafl.inputs import Inputs, as_state, part_name

FORMAT = "personafl-federation"
FILE = "federation.json"
"""What a folder that `save` wrote is known by."""
# What a damaged .npy makes numpy raise: besides the usual, headers that are no Python and sizes that no machine has.
UNREADABLE = (
    OSError, ValueError, EOFError, OverflowError, MemoryError, TypeError, SyntaxError, tokenize.TokenError,
    zipfile.BadZipFile,
)  # fmt: skip

_LINUX = sys.platform == "linux"
_MAP_PRIVATE, _MAP_NORESERVE = 2, 0x4000  # Python names the second from 3.13 on


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


def save(fed: Stored, folder: Path) -> None:
    """Write a federation to a new folder, whole or not at all."""
    if folder.exists():
        raise DataError(f"{folder} exists already; save to a path that does not")
    draft = folder.parent / f".{folder.name}.{uuid4().hex}.draft"
    try:
        (draft / "truth").mkdir(parents=True)
        inputs = {what: value.numpy() for what, value in as_state(fed.x).items()}
        for what, value in {**inputs, "y": fed.y.numpy(), "bounds": fed.bounds}.items():
            np.save(draft / f"{what}.npy", value, allow_pickle=False)
        for what, value in fed.truth.items():
            np.save(draft / "truth" / f"{what}.npy", value, allow_pickle=False)
        if fed.constants:
            (draft / "tables").mkdir()
        for what, constant in fed.constants.items():
            np.save(draft / "tables" / f"{what}.npy", constant.numpy(), allow_pickle=False)
        described = {"format": FORMAT, "version": 1, "fingerprint": fed.fingerprint, "check": _check(fed)}
        described |= _labels(fed)
        (draft / FILE).write_text(json.dumps(described, indent=1), "utf-8")
        # The name must not reach the disk before the content does, or a power cut leaves a damaged federation.
        for written in [*draft.rglob("*"), draft]:
            sync(written)
        draft.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise DataError(f"cannot save the federation to {folder}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load(make: Any, folder: Path, verify: bool) -> Any:
    """Read what `save` wrote. The features are mapped, and read only to verify them."""
    described = _read_description(folder)
    try:
        loaded = make(
            x=_read_inputs(folder, described.get("inputs")),
            y=torch.from_numpy(_read_array(folder / "y.npy")),
            bounds=_read_array(folder / "bounds.npy"),
            ids=tuple(described["ids"]),
            groups=None if described["groups"] is None else tuple(described["groups"]),
            classes=described["classes"],
            name=described["name"],
            truth={what: _read_array(folder / "truth" / f"{what}.npy") for what in _names("truth", described["truth"])},
            notes=tuple(described["notes"]),
            class_names=None if described.get("labels") is None else tuple(described["labels"]),
            constants={
                what: torch.from_numpy(_read_array(folder / "tables" / f"{what}.npy"))
                for what in _names("constant", described.get("tables", []))
            },
            scanned=True,
        )
        intact = _check(loaded) == described["check"]
        intact = intact and not (verify and loaded.fingerprint != described["fingerprint"])
        # Features that are mapped are not read to know their fingerprint: what was saved is what is trusted.
        loaded.__dict__["fingerprint"] = str(described["fingerprint"])
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


def constants_of(fed: Stored) -> list[Array]:
    """The constants in the order of their names."""
    return [fed.constants[what].numpy() for what in sorted(fed.constants)]


def _labels(fed: Stored) -> dict[str, Any]:
    labels = {what: getattr(fed, what) for what in ("name", "ids", "groups", "classes", "notes")}
    # Only where there are any, so that federations saved before there were constants or class names stay readable.
    labels |= {"truth": sorted(fed.truth)} | ({"tables": sorted(fed.constants)} if fed.constants else {})
    labels |= {"inputs": list(fed.x)} if isinstance(fed.x, dict) else {}
    return labels | ({} if fed.class_names is None else {"labels": fed.class_names})


def _check(fed: Stored) -> str:
    """A SHA-256 of all but the values of x, so that checking it reads nothing large."""
    arrays = [fed.y.numpy(), fed.bounds, *(fed.truth[what] for what in sorted(fed.truth)), *constants_of(fed)]
    if isinstance(fed.x, dict):
        return digest(arrays, [_labels(fed), {n: [str(v.dtype), list(v.shape)] for n, v in fed.x.items()}])
    return digest(arrays, [_labels(fed), str(fed.x.dtype), list(fed.x.shape)])


def _read_inputs(folder: Path, names: list[Any] | None) -> Inputs:
    """The features, mapped: x.npy, or x.NAME.npy for each input."""
    if names is None:
        return torch.from_numpy(_read_array(folder / "x.npy"))
    return {
        name: torch.from_numpy(_read_array(folder / f"{part_name(name)}.npy")) for name in _names("input", list(names))
    }


def read_client(file: Path) -> tuple[Pair | dict[str, Pair], str | None]:
    """A client's (x, y) or its splits, and its group if the file names one."""
    names = set(npz_names(file))
    values = names - {"group"}
    parts: tuple[str, ...] = ("", *SPLITS)
    pairs = {part: _arrays_of(f"_{part}" if part else "", values) for part in parts}
    whole = bool(pairs[""][0]) and pairs[""][1] and not any(x or y for x, y in list(pairs.values())[1:])
    divided = all(bool(x) == y for x, y in pairs.values()) and not pairs[""][0] and pairs["train"][1]
    known = {what for part in parts for what in _known(f"_{part}" if part else "", values)}
    if not (whole or divided) or values - known:
        raise DataError(
            f"{file} holds the arrays {listing(sorted(values), 10) or 'none'}; expected x and y, or x_train "
            f"and y_train with x_val, y_val, x_test, y_test where there are any, and nothing else but group; several "
            f"inputs are x.NAME, x_train.NAME, …"
        )
    arrays = read_npz(file, dict.fromkeys(sorted(values)), kinds="biuf")
    group = str(read_npz(file, {"group": ()}, kinds="U")["group"]) if "group" in names else None
    order = {name: place for place, name in enumerate(npz_names(file))}
    if whole:
        return _pair_of("", arrays, order, file), group
    return {split: _pair_of(f"_{split}", arrays, order, file) for split in SPLITS if pairs[split][1]}, group


def _known(suffix: str, names: set[str]) -> set[str]:
    """The arrays of a split: x or several x.NAME, y, and lengths where samples are of unequal length."""
    return {n for n in names if n == f"y{suffix}" or n.partition(".")[0] == f"x{suffix}" or n == f"y{suffix}{LENGTHS}"}


def _arrays_of(suffix: str, names: set[str]) -> tuple[list[str], bool]:
    """The arrays of x of a split, without their lengths, and whether y is there."""
    x = [name for name in names if name.partition(".")[0] == f"x{suffix}"]
    return [name for name in x if not _is_lengths(name, names)], f"y{suffix}" in names


def _is_lengths(name: str, names: Container[str]) -> bool:
    return name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in names


def _pair_of(suffix: str, arrays: Mapping[str, Array], order: Mapping[str, int], file: Path) -> Pair:
    """(x, y) of a split; x by name where there are names, in the order of the file."""

    def read(name: str) -> Any:
        lengths = arrays.get(f"{name}{LENGTHS}")
        return arrays[name] if lengths is None else checked_ragged(arrays[name], lengths, f"{file}: {name}")

    inputs = sorted(_arrays_of(suffix, set(arrays))[0], key=order.__getitem__)
    if inputs == [f"x{suffix}"]:
        return read(inputs[0]), read(f"y{suffix}")
    if f"x{suffix}" in inputs:
        raise DataError(f"{file} holds x{suffix} and {', '.join(inputs[1:])}; give x, or inputs by name, not both")
    return {name.partition(".")[2]: read(name) for name in inputs}, read(f"y{suffix}")


def _read_array(file: Path) -> Array:
    """The array of a .npy file, mapped: so its length is compared with what its header promises."""
    try:
        return map_array(file)
    except UNREADABLE as error:
        raise DataError(f"cannot read {file.name}: {error}") from error


def map_array(file: Path) -> Array:
    """The array of a .npy file, mapped so that a write goes to memory and never to the file.

    That is numpy's mode "c", which however reserves memory for the whole file, in case all of it is written to: Linux
    refuses a file that is larger than the memory.
    """
    found = np.load(file, mmap_mode="r" if _LINUX else "c", allow_pickle=False)
    if not isinstance(found, np.memmap):
        raise DataError(f"{file.name} is not a single array")
    if not _LINUX:
        return found
    with open(file, "rb") as opened:
        pages = mmap.mmap(opened.fileno(), 0, _MAP_PRIVATE | _MAP_NORESERVE)
    order: Any = "C" if found.flags.c_contiguous else "F"
    return np.ndarray(found.shape, found.dtype, pages, found.offset, order=order)


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / FILE
    if not file.is_file():
        raise DataError(f"{folder} is not a saved federation: it has no federation.json")
    try:
        described = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder} is damaged: cannot read federation.json: {error}") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise DataError(f"{folder} is not a saved federation: its federation.json is something else")
    if described.get("version") != 1:
        raise DataError(f"{folder} has version {described.get('version')}; this personafl reads version 1")
    return described


def _names(kind: str, names: list[Any]) -> list[str]:
    if not all(isinstance(what, str) and what.isidentifier() for what in names):
        raise DataError(f"{kind} names must be like variables")  # anything else could lead out of the folder
    return list(names)
