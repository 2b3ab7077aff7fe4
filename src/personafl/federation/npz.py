"""A strict reader of .npz files.

Nothing in a file is executed, and no memory is taken on the word of a header: what a header promises is compared with
the length of the file first.
"""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.storage.unpacked import VARIABLE, check_unpacked

Shape = tuple[int | None, ...]
"""The shape that an array must have; None stands for any length of at least 1."""
UNREADABLE = (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile)
UNREADABLE_ZIP = (*UNREADABLE, RuntimeError)  # encryption, compression that zipfile does not know
# What a damaged .npz makes numpy raise besides: unknown versions, headers that are no Python.
_UNREADABLE_NPZ = (*UNREADABLE_ZIP, TypeError, AttributeError, SyntaxError, tokenize.TokenError)
MOST_INFLATION = 1032  # deflate makes no byte of a file into more bytes than this
_MOST_PICKLED = 1 << 32  # bytes of a pickled client, unpacked
_KINDS = {"u": "unsigned integers", "i": "integers", "f": "floats", "S": "bytes", "b": "booleans", "U": "text"}


def npz_names(file: Path) -> list[str]:
    """What an .npz file calls its arrays."""
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except _UNREADABLE_NPZ as error:
        raise damaged(file, error) from error


def read_npz(file: Path, arrays: Mapping[str, Shape | None], kinds: str = "u") -> dict[str, NDArray[Any]]:
    """These arrays of an .npz file, if they have these shapes (None: any) and a dtype of one of these kinds."""
    try:
        with zipfile.ZipFile(file) as archive:
            held = {info.filename: info for info in archive.infolist()}
            if lacking := [name for name in arrays if f"{name}.npy" not in held]:
                found = ", ".join(name.removesuffix(".npy") for name in held) or "none"
                raise DataError(f"{file} has no array {lacking[0]!r}; expected {', '.join(arrays)}, found {found}")
            if any(held[f"{name}.npy"].compress_size > file.stat().st_size for name in arrays):
                raise DataError(f"{file} claims to hold more bytes than it has; get the file again")
            check_unpacked(sum(held[f"{name}.npy"].file_size for name in arrays), file.stat().st_size)
            return {
                name: _read_npy(f"{file}: {name}", archive, held[f"{name}.npy"], shape, kinds)
                for name, shape in arrays.items()
            }
    except _UNREADABLE_NPZ as error:
        raise damaged(file, error) from error


def read_npz_pickle(file: Path, name: str) -> bytes:
    """The pickle of an array that holds one object, as `np.savez(file, name={…})` writes it; for `pickles`."""
    try:
        with zipfile.ZipFile(file) as archive:
            held = {info.filename: info for info in archive.infolist()}
            if f"{name}.npy" not in held:
                found = ", ".join(each.removesuffix(".npy") for each in held)[:100] or "none"
                raise DataError(f"{file} has no array {name!r}; found {found}")
            info, what = held[f"{name}.npy"], f"{file}: {name}"
            check_member(what, info)
            check_unpacked(info.file_size, file.stat().st_size)
            if info.compress_size > file.stat().st_size or info.file_size > _MOST_PICKLED:
                raise DataError(f"{what} claims {info.file_size} bytes, more than {_MOST_PICKLED} or than there are")
            with archive.open(info) as stream:
                found_shape, _, dtype = _header(what, stream)
                if dtype != np.dtype(object) or found_shape != ():
                    raise DataError(
                        f"{what} is an array {found_shape} of {dtype}, expected one pickled dict of x and y"
                    )
                return stream.read()
    except _UNREADABLE_NPZ as error:
        raise damaged(file, error) from error


def _header(what: str, stream: Any) -> tuple[Any, bool, np.dtype[Any]]:
    """Shape, order and dtype of an array in the npy format."""
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise DataError(f"{what} has the unknown npy version {version}")
    return read_header(stream)


def _read_npy(
    what: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, shape: Shape | None, kinds: str
) -> NDArray[Any]:
    """Compare an array's header with what is expected and with the length of its entry; only then read the values."""
    check_member(what, info)
    with archive.open(info) as stream:
        found, _, dtype = _header(what, stream)
        start = stream.tell()
    if dtype.kind not in kinds:
        raise DataError(f"{what} holds {dtype} values, expected {' or '.join(_KINDS[kind] for kind in kinds)}")
    check_shape(what, found, shape)
    promised = start + math.prod(found) * dtype.itemsize
    if promised != info.file_size:
        raise DataError(f"{what} is {info.file_size} bytes long and its header promises {promised}; get the file again")
    with archive.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def check_member(what: str, info: zipfile.ZipInfo) -> None:
    """Refuse a member of an archive that is packed in an unusual way, or claims too many bytes."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{what} is compressed in an unusual way; pack it with deflate, as numpy.savez_compressed does")
    if info.file_size > max(info.compress_size, 1) * MOST_INFLATION:
        raise DataError(f"{what} claims {info.file_size} bytes in {info.compress_size} packed ones; get the file again")


def check_shape(what: str, found: Sequence[int], shape: Shape | None) -> None:
    """Refuse an array of another shape; None stands for any size of at least 1."""
    if shape is None and min(found, default=0) >= 0:
        return
    shape = shape or ()
    fits = len(found) == len(shape) and all(
        have == want or (want is None and have >= 1) for have, want in zip(found, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("N" if size is None else str(size) for size in shape)
        raise DataError(f"{what} has shape {tuple(found)}, expected ({expected}{',' if len(shape) == 1 else ''})")


def damaged(file: Path, error: BaseException) -> DataError:
    """The error for a file that cannot be read."""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return DataError(f"cannot read {file}: {reason[:200]}{'' if VARIABLE in reason else '; get the file again'}")
