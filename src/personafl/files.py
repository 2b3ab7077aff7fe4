"""Files that are either whole or not there, and disk errors in one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from personafl.algorithms.base import State
from personafl.errors import RunError


@contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an error of the disk into a RunError that says what happened to which file and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "; free some space, then continue with --resume" if full else ""
        raise RunError(f"{doing} {path} failed: {os.strerror(number) if number else error}{advice}") from error


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write(temporary)`, then put the temporary file in the place of `path`, all or nothing.

    A process killed at any moment leaves the old file or the new one, and at most a `.partial` beside it.
    """
    partial = path.with_name(f"{path.name}.partial")
    with disk_errors(path, "writing"):
        try:
            write(partial)
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""

    def write(to: Path) -> None:
        to.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_tensors(path: Path, tensors: State, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with disk_errors(path.parent, "cleaning"):
        for rest in path.parent.glob(".tmp*"):  # what safetensors leaves when it is killed
            rest.unlink(missing_ok=True)
    saved = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_atomically(path, lambda to: save_file(saved, to, metadata))


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))  # safetensors has it in its text only
    return int(found[1]) if found else None


def _sync_folder(path: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
