"""Files of a run folder, which may come from anybody: read within bounds and checked, or refused in one line.

Nothing is opened that is not a file, so no pipe or device is waited for; nothing is read beyond a bound; and what a
file says is what `schemas` asks for. Every error is a `RunError` that names the file and the field.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from personafl.errors import RunError
from personafl.storage.unpacked import parquet_table

if TYPE_CHECKING:  # torch, which whoever only looks at tables does not need
    from personafl.states import State

MOST_TOML = 4 << 20
MOST_JSON = 1 << 30
"""Bytes of a file, beyond which it is not read."""
MOST_DEPTH = 32
"""Tables within tables."""
_LONG_KEY = re.compile(r"(?:[\w\"'\- \t]{0,100}\.){64}")
_UNREADABLE = (OSError, ValueError, RecursionError, MemoryError, pa.ArrowException)


def content(path: Path, most: int = MOST_JSON, start: int = 0) -> bytes:
    """The bytes of a file from `start` on; a FileNotFoundError where there is none."""
    with problems(path), open(path, "rb", opener=_no_waiting) as file:
        about = os.fstat(file.fileno())
        _check_file(path, about)
        if about.st_size > most:
            raise ValueError(f"it has {about.st_size:,} bytes, more than {most:,}")
        file.seek(start)
        return file.read(most)


def existing(path: Path) -> Path:
    """The path of a file that others will open: one that is there, and no pipe, device or folder."""
    try:
        with problems(path):
            _check_file(path, path.stat())
    except FileNotFoundError:
        raise RunError(f"{path} cannot be read: it is not there") from None
    return path


def read_toml(path: Path, kind: Any) -> dict[str, Any]:
    """A TOML file whose content is of a kind that `schemas` has."""
    with problems(path):
        text = content(path, MOST_TOML).decode("utf-8")
        if _LONG_KEY.search(text):  # the time that tomllib takes grows with the square of its length
            raise ValueError(f"it has tables within tables more than {MOST_DEPTH} deep")
        found = _shallow(tomllib.loads(text))
    return checked(found, kind, path)  # type: ignore[no-any-return]


def read_json(path: Path, kind: Any) -> Any:
    """A JSON file whose content is of a kind that `schemas` has."""
    return parsed(content(path), kind, path)


def parsed(text: bytes | str, kind: Any, path: Path) -> Any:
    """The content of JSON that was found in a file, checked like that of `read_json`."""
    with problems(path):
        found = _shallow(json.loads(text))
    return checked(found, kind, path)


def read_lines(path: Path, kind: Any, text: bytes) -> list[dict[str, Any]]:
    """The records of a .jsonl file; a line cut short by a crash, or still being written, is left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(_shallow(json.loads(line)))
        except (ValueError, RecursionError):
            continue
    return checked(found, list[kind], path)  # type: ignore[no-any-return]


def read_table(path: Path, check: Callable[[pa.Table], None], group: int | None = None) -> pa.Table:
    """A parquet file, or a row group of it, if `check` raises no ValueError and it unpacks to no more than it may."""
    with problems(existing(path)):
        table = parquet_table(path, group)
        check(table)
        return table


@contextmanager
def open_tensors(path: Path, framework: str = "pt") -> Iterator[Any]:
    """A safetensors file; what is wrong with it, or with what is done to its tensors, is an error that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with problems(existing(path)), safe_open(path, framework) as file:
            yield file
    except (SafetensorError, RuntimeError, LookupError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {_first_line(error)}") from error


def read_tensors(path: Path) -> State:
    """All tensors of a safetensors file."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}


def checked(value: Any, kind: Any, path: Path, what: str = "") -> Any:
    """The value, if it is of this kind; what is not named there is not looked at."""
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in (*([what] if what else []), *first["loc"]))
        if first["type"] == "missing":
            raise RunError(f"{path} is damaged: it lacks {field}") from None
        said = first["msg"][:1].lower() + first["msg"][1:]
        raise RunError(f"{path} is damaged: {field or 'it'} = {repr(first['input'])[:80]}: {said}") from None
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@contextmanager
def problems(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into one line that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise RunError(f"{path} cannot be read: {_first_line(error)}") from error


def _check_file(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = "a folder" if stat.S_ISDIR(about.st_mode) else "a pipe, a device or a socket"
        raise ValueError(f"it is {kind}, not a file")


def _no_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # nobody may ever write to a pipe


def _shallow(found: Any) -> Any:
    """What was parsed, if it is not nested so deeply that recursion over it would fail."""
    level = [found]
    for _ in range(MOST_DEPTH):
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
                 if isinstance(inner, dict | list)] if isinstance(found, dict | list) else []  # fmt: skip
        if not level:
            return found
    raise ValueError(f"it has tables within tables more than {MOST_DEPTH} deep")


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
