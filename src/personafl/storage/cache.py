"""The cache folder: downloaded files, and arrays that were prepared once and are memory-mapped from then on.

The folder may be deleted at any time; what is needed is made again.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from personafl.errors import RunError
from personafl.files import sync, write_text

log = logging.getLogger("personafl")

VARIABLE = "PERSONAFL_CACHE"
"""The environment variable with the cache folder, where the usual one of the operating system is not wanted."""

Arrays = dict[str, NDArray[Any]]

_CONTENTS = "contents.json"
_ABANDONED = 24 * 3600  # seconds after which a draft belongs to a process that was killed


def cache_dir() -> Path:
    """The cache folder; it need not be there yet."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("personafl"))


def prepared(
    name: str, inputs: Sequence[Path], settings: Mapping[str, Any], make: Callable[[], Mapping[str, NDArray[Any]]]
) -> Arrays:
    """Arrays that are made once and memory-mapped, read-only, from then on.

    Two processes that prepare the same arrays at once do no harm. An entry that is damaged is made again. A cache that
    is full or cannot be written only costs time.

    Parameters
    ----------
    name
        The beginning of the entry's name, such as that of the data source.
    inputs : sequence of paths
        The files that the arrays are made of: with another path, size or time of change, arrays are made anew.
    settings
        What else the arrays follow from, in terms of JSON; with a number "version", to be raised when `make` changes.
    make
        Gives the arrays by their names.

    Examples
    --------
    >>> squares = prepared("squares", [], {"version": 1, "n": 3}, lambda: {"x": np.arange(3) ** 2})
    >>> squares["x"].tolist(), squares["x"].flags.writeable
    ([0, 1, 4], False)
    """
    folder = cache_dir() / "prepared" / f"{name}-{_digest(inputs, settings)}"
    found = _load(folder)
    if found is not None:
        return found
    made = make()
    try:
        _store(folder, lambda draft: _save(draft, made))
    except OSError as error:
        log.info("data %s is not kept in the cache: %s", name, error)
    found = _load(folder)
    return {what: _read_only(array) for what, array in made.items()} if found is None else found


def scattered(
    name: str,
    settings: Mapping[str, Any],
    marks: NDArray[Any],
    pieces: Callable[[], Iterator[tuple[NDArray[np.intp], NDArray[Any]]]],
) -> Path | None:
    """The .npy file of an array that is made some rows at a time, in any order, and so may be larger than the memory.

    Parameters
    ----------
    name, settings
        As in `prepared`; all arrays made with the same ones are given by `entries`.
    marks : array (N, …)
        What each row is known by. An entry is one of these rows in this order.
    pieces
        Gives (places, rows), piece after piece, rows all of one type and shape; each of N places once.

    Returns
    -------
    None where the cache is full or cannot be written.
    """
    order = sha256(np.ascontiguousarray(marks).view(np.uint8).data).hexdigest()[:16]
    folder = cache_dir() / "prepared" / f"{name}-{_digest([], settings)}-{order}"
    if _load(folder) is not None:
        return folder / "x.npy"
    try:
        _store(folder, lambda draft: _scatter(draft, marks, pieces()))
    except OSError as error:
        log.info("%s is not kept in the cache: %s", name, error)
    return folder / "x.npy" if _load(folder) is not None else None


def entries(name: str, settings: Mapping[str, Any]) -> list[tuple[Path, Arrays]]:
    """What `scattered` keeps under these settings: folders with their arrays "x" and "marks"."""
    found = sorted((cache_dir() / "prepared").glob(f"{name}-{_digest([], settings)}-*"))
    return [(folder, arrays) for folder in found if (arrays := _load(folder)) is not None]


def note(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `keep_note` has kept under these settings; nothing where that is damaged or not there."""
    try:
        found = json.loads(_note(name, settings).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep_note(name: str, settings: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    """Keep a few values, in terms of JSON, that were found out under these settings, in terms of JSON.

    Examples
    --------
    >>> keep_note("answers", {"version": 1, "question": "6 · 7"}, {"answer": 42})
    >>> note("answers", {"version": 1, "question": "6 · 7"}), note("answers", {"version": 2})
    ({'answer': 42}, {})
    """
    place = _note(name, settings)
    try:
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        write_text(place, json.dumps(dict(value)))
    except (OSError, RunError) as error:  # a cache that is full or cannot be written only costs time
        log.info("%s is not kept in the cache: %s", name, error)


def _note(name: str, settings: Mapping[str, Any]) -> Path:
    return cache_dir() / "notes" / f"{name}-{_digest([], settings)}.json"


def forget(folder: Path) -> None:
    """Remove an entry that is of no use any more."""
    shutil.rmtree(folder, ignore_errors=True)


def _scatter(folder: Path, marks: NDArray[Any], pieces: Iterator[tuple[NDArray[np.intp], NDArray[Any]]]) -> list[str]:
    """Write a .npy file by its rows: a mapped file would end the process where the disk is full."""
    np.save(folder / "marks.npy", marks, allow_pickle=False)
    with open(folder / "x.npy", "wb") as opened:
        begin = 0
        for places, rows in pieces:
            if not begin:
                header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (len(marks), *rows.shape[1:])}
                np.lib.format.write_array_header_1_0(opened, header)
                begin = opened.tell()
            for place, row in zip(places.tolist(), np.ascontiguousarray(rows), strict=True):
                opened.seek(begin + place * row.nbytes)
                opened.write(row.data)
    return ["x", "marks"]


def sweep(drafts: Sequence[Path]) -> None:
    """Remove the unfinished files and folders that killed processes left behind."""
    for draft in drafts:
        try:
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
        except OSError:
            pass  # another process was faster, or it is not ours to remove


def _digest(inputs: Sequence[Path], settings: Mapping[str, Any]) -> str:
    files = [[str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns] for file in inputs]
    return sha256(json.dumps([files, dict(settings)], sort_keys=True).encode()).hexdigest()[:16]


def _load(folder: Path) -> Arrays | None:
    """The arrays of an entry, or None where it is not there or not as it was stored."""
    try:
        contents = json.loads((folder / _CONTENTS).read_text("utf-8"))
        loaded = {}
        for what, stored in contents.items():
            file = folder / f"{what}.npy"
            if stored != _state(file):
                return None
            loaded[what] = _read_only(np.load(file, mmap_mode="r", allow_pickle=False))
        return loaded
    except (OSError, ValueError, EOFError, TypeError, AttributeError):
        return None


def _save(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    for what, array in arrays.items():
        np.save(folder / f"{what}.npy", array, allow_pickle=False)
    return list(arrays)


def _store(folder: Path, write: Callable[[Path], list[str]]) -> None:
    """Write an entry beside its place, then rename it: it is there whole or not at all. `write` says its arrays."""
    draft = folder.with_name(f".{folder.name}.{uuid4().hex}.draft")
    sweep(list(folder.parent.glob(".*.draft")))
    try:
        draft.mkdir(0o700, parents=True)  # it may hold what users brought
        files = {what: draft / f"{what}.npy" for what in write(draft)}
        for file in files.values():
            sync(file)  # the name must not reach the disk before the content, or a power cut leaves arrays of zeros
        (draft / _CONTENTS).write_text(json.dumps({what: _state(file) for what, file in files.items()}), "utf-8")
        if folder.exists() and _load(folder) is None:
            folder.rename(aside := draft.with_suffix(".damaged.draft"))
            shutil.rmtree(aside, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _state(file: Path) -> list[int]:
    """What changes when a file is cut or written to."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
