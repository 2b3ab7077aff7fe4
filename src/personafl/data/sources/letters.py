"""Handwritten lower-case letters, small enough to be at hand everywhere (Kassel 1995)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from personafl.data import Samples, Structure
from personafl.data.files import find, missing, read_npz
from personafl.data.images import check_classes
from personafl.errors import ConfigError, DataError

FILE = "ocr_letters.npz"


@dataclass(frozen=True)
class Letters:
    """52,152 handwritten letters a to z of 16 by 8 black or white pixels, x of shape (N, 1, 16, 8), 0 or 1.

    Read from ocr_letters.npz in the directory that the environment variable PERSONAFL_DATA names, or in the cache.
    The letters are as frequent as in words: 5,024 times n, 189 times j.

    Parameters
    ----------
    classes : int
        Only the first so many letters: 10 for a to j, as FedProx has of FEMNIST.
    """

    name: ClassVar[str] = "letters"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    classes: int = 26

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= 26:
            raise ConfigError(f"data letters: classes = {self.classes} must be in 2 to 26: the letters from a on")

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        file = find(FILE)
        if file is None:
            raise missing(self.name, f"{FILE} (x: 16 bytes a letter, a bit a pixel; y: 0 to 25)")
        arrays = read_npz(file, {"x": (None, 16), "y": (None,)})
        x, y = arrays["x"], arrays["y"]
        if len(x) != len(y):
            raise DataError(f"{file}: x has {len(x)} letters and y has {len(y)} labels; they must be as many")
        if x.dtype != np.uint8:
            raise DataError(f"{file}: x holds {x.dtype} values, expected uint8")
        check_classes(f"{file}: y", y, 26)
        kept = y < self.classes
        pixels = np.unpackbits(x[kept], axis=1).astype(np.float32).reshape(-1, 1, 16, 8)
        return Samples(x=pixels, y=y[kept].astype(np.int64), classes=self.classes)
