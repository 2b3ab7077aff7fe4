"""Handwritten lower-case letters, small enough to be at hand everywhere (Kassel 1995)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.data.base import Samples, Structure
from personafl.data.images import check_classes
from personafl.data.readers import Bytes, find, missing, read_lines
from personafl.errors import ConfigError, DataError
from personafl.federation.npz import read_npz
from personafl.storage.cache import Arrays, prepared

PACKED = "ocr_letters.npz"
ORIGINAL = ("letter.data.gz", "letter.data")
HOME = "http://ai.stanford.edu/~btaskar/ocr"

_VERSION = 1
_FIELDS = ("id", "letter", "next_id", "word_id", "position", "fold")
_PIXELS = 16 * 8
_MOST_BYTES = 32_000_000  # about twice the original, unpacked


@dataclass(frozen=True)
class Letters:
    """52,152 handwritten letters a to z of 16 by 8 black or white pixels, x of shape (N, 1, 16, 8), 0 or 1.

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: the original
    letter.data.gz, plain or gzip, or ocr_letters.npz. Nothing is downloaded, because no checksum is published. The
    letters are as frequent as in words: 5,024 times n, 189 times j.

    Parameters
    ----------
    classes
        Only the first so many letters: 10 for a to j, as FedProx has of FEMNIST.
    """

    name: ClassVar[str] = "letters"
    default_model: ClassVar[str] = "mclr"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    classes: int = 26

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= 26:
            raise ConfigError(f"data letters: classes = {self.classes} must be in 2 to 26: the letters from a on")

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        file = next((found for name in (PACKED, *ORIGINAL) if (found := find(name))), None)
        if file is None:
            wanted = f"{ORIGINAL[0]} of {HOME} or {PACKED} (x: 16 bytes a letter, a bit a pixel; y: 0 to 25)"
            raise missing(self.name, wanted)
        settings = {"version": _VERSION, "classes": self.classes}
        arrays = prepared(self.name, [file], settings, lambda: _make(file, self.classes))
        return Samples(x=arrays["x"], y=arrays["y"], classes=self.classes)


def _make(file: Path, classes: int) -> Arrays:
    bits, y = _read_packed(file) if file.name == PACKED else _read_original(file)
    kept = y < classes
    return {"x": bits[kept].astype(np.float32).reshape(-1, 1, 16, 8), "y": y[kept]}


def _read_packed(file: Path) -> tuple[Bytes, NDArray[np.int64]]:
    arrays = read_npz(file, {"x": (None, 16), "y": (None,)})
    x, y = arrays["x"], arrays["y"]
    if len(x) != len(y):
        raise DataError(f"{file}: x has {len(x)} letters and y has {len(y)} labels; they must be as many")
    if x.dtype != np.uint8:
        raise DataError(f"{file}: x holds {x.dtype} values, expected uint8")
    check_classes(f"{file}: y", y, 26)
    return np.unpackbits(x, axis=1), y.astype(np.int64)


def _read_original(file: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """A line a letter: six fields and 128 pixels with tabs between them, and after the last in some copies."""
    labels, pixels = bytearray(), bytearray()
    for number, line in enumerate(read_lines(file, _MOST_BYTES), 1):
        fields = line.removesuffix(b"\t").split(b"\t")
        if len(fields) != len(_FIELDS) + _PIXELS:
            raise DataError(
                f"{file}, line {number}: has {len(fields)} fields, expected {', '.join(_FIELDS)} and {_PIXELS} pixels, "
                f"with tabs between them; get the file again"
            )
        letter, row = fields[1], fields[len(_FIELDS) :]
        if len(letter) != 1 or not b"a" <= letter <= b"z":
            raise DataError(f"{file}, line {number}: the letter must be one of a to z; get the file again")
        if b"" in row or len(picture := b"".join(row)) != _PIXELS or picture.strip(b"01"):
            raise DataError(f"{file}, line {number}: each pixel must be 0 or 1; get the file again")
        labels += letter
        pixels += picture
    if not labels:
        raise DataError(f"{file} is empty; get the file again")
    y = np.frombuffer(labels, np.uint8).astype(np.int64) - ord("a")
    return np.frombuffer(pixels, np.uint8).reshape(-1, _PIXELS) - np.uint8(ord("0")), y
