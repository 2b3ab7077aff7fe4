"""FEMNIST: handwritten digits and letters by writer (Caldas et al. 2018, LEAF)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from personafl.data.base import Samples, Structure
from personafl.data.images import VERSION, Normalization, check_normalization, check_pairs, normalized
from personafl.data.readers import find, missing
from personafl.data.sources.emnist import CHARACTERS, kept_characters, places_of
from personafl.errors import DataError
from personafl.federation.npz import read_npz
from personafl.storage.cache import Arrays, prepared

PACKED = "femnist_writers.npz"
KNOWN = CHARACTERS["byclass"]


@dataclass(frozen=True)
class FEMNIST:
    """Characters of 62 classes with the people who wrote them as clients, x of shape (N, 1, 28, 28).

    LEAF scales NIST's images, 128 by 128 pixels, down as they are: a letter is about 9 pixels high, where EMNIST crops
    it and scales it to 20. FedProx's code does as LEAF's.

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: femnist_writers.npz,
    which has x (N, 28, 28), y, the number of each image's writer, and for each writer an id and whether its training
    part is there in full (complete_writer). Nothing is downloaded: LEAF makes its data from NIST's, and publishes no
    file of it.

    Parameters
    ----------
    normalize : {"unit", "fedprox", "leaf"}
        "unit" is x/255, the ink bright. "fedprox" standardizes each pixel over all images that are kept: (x −
        mean)/(std + 0.001). "leaf" is 1 − x/255, dark ink on a bright ground, as LEAF's code gives it.
    complete
        Only writers whose training part is there in full.
    classes : str, optional
        Only these characters, whose labels are then their places in this text, such as "abcdefghij".
    """

    name: ClassVar[str] = "femnist"
    default_model: ClassVar[str] = "mclr"
    structure: ClassVar[Structure] = "natural"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    normalize: Normalization = "unit"
    complete: bool = True
    classes: str | None = None

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)
        kept_characters(self.name, self.classes, KNOWN)

    @property
    def _kept(self) -> str:
        return kept_characters(self.name, self.classes, KNOWN)

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        file = find(PACKED)
        if file is None:
            raise missing(self.name, f"{PACKED} (x, y, writer, writer_id, complete_writer)")
        settings = {
            "version": VERSION, "normalize": self.normalize, "complete": self.complete, "classes": self._kept
        }  # fmt: skip
        arrays = prepared(self.name, [file], settings, lambda: self._make(file))
        return Samples(x=arrays["x"], y=arrays["y"], classes=len(self._kept), clients=arrays["clients"])

    def _make(self, file: Path) -> Arrays:
        images = read_npz(file, {"x": (None, 28, 28), "y": (None,), "writer": (None,)})
        x, y, writer = images.values()
        names = read_npz(file, {"writer_id": (None,), "complete_writer": (None,)}, kinds="Ub")
        ids, complete = names.values()
        check_pairs([x, y], [f"{file}: x", f"{file}: y"], len(KNOWN))
        if len(writer) != len(y) or len(complete) != len(ids) or writer.max(initial=0) >= len(ids):
            raise DataError(f"{file}: writer must have a number for each image, of one of the {len(ids)} writers")
        kept = complete[writer] if self.complete else np.ones(len(y), bool)
        if not kept.any():
            raise DataError(f"{file}: no writer is there in full; set complete = false")
        places = places_of(self._kept, KNOWN)[y]
        kept &= places >= 0
        if not kept.any():
            raise DataError(f"{file}: there is no image of the classes {self._kept}")
        return {"x": normalized(x[kept], self.normalize), "y": places[kept], "clients": ids[writer[kept]]}
