"""Where data sets lie, and strict readers of their files.

Nothing in a file is executed, and no memory is taken on the word of a header: what a header promises is compared with
the length of the file first.
"""

import gzip
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from personafl.errors import DataError

VARIABLE = "PERSONAFL_DATA"
"""The environment variable with the directory of the user's data sets; `--data-dir` on the command line sets it."""

Bytes = NDArray[np.uint8]
Shape = tuple[int | None, ...]
"""The shape that an array must have; None stands for any length of at least 1."""

_UNREADABLE = (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile)
# What a damaged .npz makes numpy and zipfile raise besides: encryption, unknown versions, headers that are no Python.
_UNREADABLE_NPZ = (*_UNREADABLE, RuntimeError, TypeError, AttributeError, SyntaxError, tokenize.TokenError)
_MOST_INFLATION = 1032  # deflate makes no byte of a file into more bytes than this
_KINDS = {"u": "unsigned integers", "i": "integers"}
_IDX_TYPES = {8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}


def data_dirs() -> list[Path]:
    """Where data sets are looked for: the directory that PERSONAFL_DATA names, then the cache."""
    import pooch

    dirs = [Path(pooch.os_cache("personafl"))]
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
        where += f", or into a directory of your own that the environment variable {VARIABLE} names"
    return DataError(f"data {source} is not in {' or '.join(map(str, dirs))}{why}; put {wanted} {where}")


def read_idx(file: Path, shape: Shape) -> Bytes:
    """The uint8 array of an idx file, plain or gzip by its content, if it has this shape."""
    try:
        with open(file, "rb") as raw:
            length = os.fstat(raw.fileno()).st_size
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed:
                return _read_idx(file, raw, shape, length, packed)
            with gzip.open(raw) as unpacked:
                return _read_idx(file, unpacked, shape, length, packed)  # type: ignore[arg-type]
    except _UNREADABLE as error:
        raise DataError(f"cannot read {file}: {error or type(error).__name__}; get the file again") from error


def read_npz(file: Path, arrays: Mapping[str, Shape], kinds: str = "u") -> dict[str, NDArray[Any]]:
    """These arrays of an .npz file, if they have these shapes and a dtype of one of these kinds."""
    try:
        with zipfile.ZipFile(file) as archive:
            held = {info.filename: info for info in archive.infolist()}
            if lacking := [name for name in arrays if f"{name}.npy" not in held]:
                found = ", ".join(name.removesuffix(".npy") for name in held) or "none"
                raise DataError(f"{file} has no array {lacking[0]!r}; expected {', '.join(arrays)}, found {found}")
            return {
                name: _read_npy(f"{file}: {name}", archive, held[f"{name}.npy"], shape, kinds)
                for name, shape in arrays.items()
            }
    except _UNREADABLE_NPZ as error:
        raise DataError(f"cannot read {file}: {error or type(error).__name__}; get the file again") from error


def _read_idx(file: Path, stream: BinaryIO, shape: Shape, length: int, packed: bool) -> Bytes:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
        raise DataError(f"{file} is not an idx file: it starts with the bytes {magic.hex(' ') or 'of nothing'}")
    if _IDX_TYPES[magic[2]] != "uint8":
        raise DataError(f"{file} holds {_IDX_TYPES[magic[2]]} values, expected uint8")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{file} is truncated: it ends inside its header; get the file again")
    found = tuple(np.frombuffer(sizes, ">u4").tolist())
    _check_shape(str(file), found, shape)
    promised = math.prod(found)
    present = length * _MOST_INFLATION if packed else length - 4 - 4 * magic[3]
    content = stream.read(promised + 1) if promised <= present else b""
    if len(content) < promised:
        raise DataError(f"{file} is truncated: its header promises {promised} bytes that are not there; get it again")
    if len(content) > promised:
        raise DataError(f"{file} is longer than the {promised} bytes that its header promises; get the file again")
    return np.frombuffer(content, np.uint8).reshape(found)


def _read_npy(what: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, shape: Shape, kinds: str) -> NDArray[Any]:
    """Compare an array's header with what is expected and with the length of its entry; only then read the values."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{what} is compressed in a way that numpy does not write; save it with numpy.savez_compressed")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise DataError(f"{what} has the unknown npy version {version}")
        found, _, dtype = read_header(stream)
        start = stream.tell()
    if dtype.kind not in kinds:
        raise DataError(f"{what} holds {dtype} values, expected {' or '.join(_KINDS[kind] for kind in kinds)}")
    _check_shape(what, found, shape)
    promised = start + math.prod(found) * dtype.itemsize
    if promised != info.file_size or info.file_size > max(info.compress_size, 1) * _MOST_INFLATION:
        raise DataError(f"{what} is {info.file_size} bytes long and its header promises {promised}; get the file again")
    with archive.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _check_shape(what: str, found: Sequence[int], shape: Shape) -> None:
    fits = len(found) == len(shape) and all(
        have == want or (want is None and have >= 1) for have, want in zip(found, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("N" if size is None else str(size) for size in shape)
        raise DataError(f"{what} has shape {tuple(found)}, expected ({expected}{',' if len(shape) == 1 else ''})")
