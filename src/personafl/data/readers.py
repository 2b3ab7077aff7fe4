"""Where data sets lie, and strict readers of their files.

Nothing in a file is executed, and no memory is taken on the word of a header: what a header promises is compared with
the length of the file first.
"""

import gzip
import math
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation.npz import (
    MOST_INFLATION,
    UNREADABLE,
    UNREADABLE_ZIP,
    Shape,
    check_member,
    check_shape,
    damaged,
)
from personafl.storage.cache import cache_dir

VARIABLE = "PERSONAFL_DATA"
"""The environment variable with the directory of the user's data sets; `--data-dir` on the command line sets it."""

Bytes = NDArray[np.uint8]
_PIECE = 1 << 20
_IDX_TYPES = {8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}


def data_dirs() -> list[Path]:
    """Where data sets are looked for: the directory that PERSONAFL_DATA names, then the cache."""
    dirs = [cache_dir()]
    if named := os.environ.get(VARIABLE):
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise DataError(f"{VARIABLE} names {folder}, which is not a directory")
        dirs.insert(0, folder)
    return dirs


def find(file: str) -> Path | None:
    """The first file of this name in the data directories."""
    return next((folder / file for folder in data_dirs() if (folder / file).is_file()), None)


def missing(source: str, wanted: str, why: str = "") -> DataError:
    """The error for data that is not there: which files are wanted, and where to put them."""
    dirs = data_dirs()
    where = f"into {dirs[0]}"
    if len(dirs) == 1:
        where += f", or into a directory of your own that --data-dir or the environment variable {VARIABLE} names"
    return DataError(f"data {source} is not in {' or '.join(map(str, dirs))}{why}; put {wanted} {where}")


def read_idx(file: Path, shape: Shape, most: int) -> Bytes:
    """The uint8 array of an idx file, plain or gzip by its content, if it has this shape and at most so many rows."""
    try:
        with open(file, "rb") as stream:
            return _unpack_idx(str(file), stream, os.fstat(stream.fileno()).st_size, shape, most)
    except UNREADABLE as error:
        raise damaged(file, error) from error


def read_zipped_idx(file: Path, member: str, shape: Shape, most: int) -> Bytes:
    """As `read_idx`, the member of a .zip, in whichever folder it is there; nothing is unpacked to the disk."""
    try:
        with zipfile.ZipFile(file) as archive:
            named = [info for info in archive.infolist() if PurePosixPath(info.filename).name == member]
            if not named:
                raise DataError(f"{file} has no member {member}; is it another .zip?")
            check_member(f"{file}: {member}", named[0])
            with archive.open(named[0]) as stream:
                return _unpack_idx(f"{file}: {member}", stream, named[0].file_size, shape, most)
    except UNREADABLE_ZIP as error:
        raise damaged(file, error) from error


def read_lines(file: Path, most: int) -> list[bytes]:
    """The lines of a text file, plain or gzip by its content, if it has at most so many bytes."""
    try:
        with open(file, "rb") as stream, _unpacked(stream)[0] as text:
            content = text.read(most + 1)
    except UNREADABLE as error:
        raise damaged(file, error) from error
    if len(content) > most:
        raise DataError(f"{file} is longer than the expected {most} bytes at most, so it is another file")
    return content.splitlines()


def _unpacked(stream: IO[bytes]) -> tuple[IO[bytes], bool]:
    """What the stream holds, and whether it was packed with gzip."""
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    return (gzip.GzipFile(fileobj=stream), True) if packed else (stream, False)  # type: ignore[return-value]


def _unpack_idx(what: str, packed: IO[bytes], length: int, shape: Shape, most: int) -> Bytes:
    """Compare an array's header with what is expected and with the length of its file; only then read the values."""
    stream, is_packed = _unpacked(packed)
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
        raise DataError(f"{what} is not an idx file: it starts with the bytes {magic.hex(' ') or 'of nothing'}")
    if _IDX_TYPES[magic[2]] != "uint8":
        raise DataError(f"{what} holds {_IDX_TYPES[magic[2]]} values, expected uint8")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{what} is truncated: it ends inside its header; get the file again")
    found = tuple(np.frombuffer(sizes, ">u4").tolist())
    check_shape(what, found, shape)
    promised = math.prod(found)
    present = length * MOST_INFLATION if is_packed else length - 4 - 4 * magic[3]
    if promised > present:
        raise DataError(f"{what} is truncated: its header promises {promised} bytes that are not there; get it again")
    if found[0] > most:
        raise DataError(f"{what} has {found[0]} rows, more than the {most} that there are; it is another file")
    array = np.empty(promised, np.uint8)
    read = 0
    while read < promised and (piece := stream.read(min(promised - read, _PIECE))):
        array[read : read + len(piece)] = np.frombuffer(piece, np.uint8)
        read += len(piece)
    if read < promised:
        raise DataError(f"{what} is truncated: its header promises {promised} bytes that are not there; get it again")
    if stream.read(1):
        raise DataError(f"{what} is longer than the {promised} bytes that its header promises; get the file again")
    return array.reshape(found)
