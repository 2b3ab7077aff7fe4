"""Files that are either whole or not there and that only their owner can read, and disk errors in one line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from personafl.errors import RunError

if TYPE_CHECKING:  # torch, which whoever writes no tensors does not need
    from personafl.states import State

# The types that rows may have, as numpy and as safetensors call them.
_KINDS = {"float64": "F64", "int64": "I64", "float32": "F32", "int32": "I32", "float16": "F16", "uint8": "U8",
          "bool": "BOOL"}  # fmt: skip

NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an error of the disk into a RunError that says what happened to which file and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "; free some space, then continue with resume=True (--resume)" if full else ""
        raise RunError(f"{doing} {path} failed: {os.strerror(number) if number else error}{advice}") from error


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can look into; one that is there stays as it is."""
    with disk_errors(path, "creating"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """For `open(…, opener=…)`: a file that is made is for its owner alone, and is not elsewhere by way of a link."""
    return os.open(path, flags | NO_LINKS, 0o600)


def write_atomically(path: Path, write: Callable[[Path], None], private: bool = True) -> None:
    """Call `write(temporary)`, then put the temporary file in the place of `path`, all or nothing.

    A process killed at any moment leaves the old file or the new one, and at most a `.partial` beside it. Unless it is
    not `private`, as what users ask for under a name of their own, nobody but its owner can read it.
    """
    partial = path.with_name(f"{path.name}.partial")
    with disk_errors(path, "writing"):
        try:
            if partial.is_symlink():  # it would lead somewhere else
                partial.unlink()
            if private:
                partial.touch(0o600)
            write(partial)
            with open(partial, "rb+") as file:
                if private:  # some writers put a file of their own there
                    os.fchmod(file.fileno(), 0o600)
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync(path.parent)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str, private: bool = True) -> None:
    """Write a text file atomically."""

    def write(to: Path) -> None:
        to.write_text(text, encoding="utf-8")

    write_atomically(path, write, private)


def write_tensors(path: Path, tensors: State, metadata: dict[str, str] | None = None, private: bool = True) -> None:
    """Write a safetensors file atomically."""
    from safetensors.torch import save_file

    with disk_errors(path.parent, "cleaning"):
        for rest in path.parent.glob(".tmp*"):  # what safetensors leaves when it is killed
            rest.unlink(missing_ok=True)
    saved = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_atomically(path, lambda to: save_file(saved, to, metadata), private)


def write_rows(path: Path, count: int, parts: Iterable[dict[str, Any]], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically whose tensors are too large to be in memory at once.

    Parameters
    ----------
    count
        The length of every tensor's first axis.
    parts
        Each has the next rows of every tensor (or array), until there are `count`.
    """

    def write(to: Path) -> None:
        with open(to, "wb") as file:
            places: dict[str, int] = {}
            for part in parts:
                arrays: dict[str, NDArray[Any]] = {
                    name: np.ascontiguousarray(v if isinstance(v, np.ndarray) else v.detach().cpu().numpy())
                    for name, v in part.items()
                }
                if not places:
                    places = _write_header(file, count, arrays, metadata)
                for name, array in arrays.items():
                    file.seek(places[name])
                    file.write(array.reshape(-1).view(np.uint8).data)
                    places[name] += array.nbytes

    write_atomically(path, write)


def _write_header(
    file: Any, count: int, arrays: dict[str, NDArray[Any]], metadata: dict[str, str] | None
) -> dict[str, int]:
    """Write what a safetensors file starts with; gives where each tensor is to begin."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):  # all are aligned then
        array = arrays[name]
        begin, end = end, end + count * array[:1].nbytes
        header[name] = {
            "dtype": _KINDS[array.dtype.name],
            "shape": [count, *array.shape[1:]],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in arrays}


def checksum(path: Path) -> str:
    """The SHA-256 of a file; a pipe or a device, which may have no end, is an OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "it is not a file", str(path))
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))  # safetensors has it in its text only
    return int(found[1]) if found else None


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
