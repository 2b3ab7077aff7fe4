"""EMNIST: 814,255 handwritten digits and letters (Cohen et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from personafl.data.base import Samples, Structure
from personafl.data.fetch import Remote, fetch
from personafl.data.images import VERSION, Normalization, check_normalization, check_pairs, find_idx, normalized
from personafl.data.readers import Bytes, data_dirs, find, read_idx, read_zipped_idx
from personafl.errors import ConfigError, DataError
from personafl.federation.npz import read_npz
from personafl.storage.cache import Arrays, prepared

Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

_MERGED = digits + ascii_uppercase + "abdefghnqrt"  # the lower-case letters that do not look like their capitals
CHARACTERS: dict[str, str] = {
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": ascii_lowercase,
    "digits": digits,
    "mnist": digits,
}
"""The classes of each split in the order of their labels; "letters" has capitals and small letters in one class."""

PACKED = "emnist_byclass_test.npz"
"""The 116,323 test images of "byclass" alone, upright: x (N, 28, 28) and y."""

ZIPS = ("gzip.zip", "emnist.zip")
FOLDERS = ("EMNIST/raw", "emnist", "gzip")
REMOTE = Remote(
    "emnist/gzip.zip",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    561.8,
)
_MOST = 814_255


@dataclass(frozen=True)
class EMNIST:
    """Up to 814,255 handwritten digits and letters, training and test images in one pool, x of shape (N, 1, 28, 28).

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: the official
    gzip.zip, or the split's four idx files with or without gzip, there or in its folder EMNIST/raw, emnist or gzip.
    Of "byclass", emnist_byclass_test.npz with its test images alone is taken as well: 116,323, a seventh of all. Where
    there are none, gzip.zip is downloaded to the cache (562 MB). The images lie on their side in NIST's files, and are
    put upright.

    Parameters
    ----------
    split : {"byclass", "bymerge", "balanced", "letters", "digits", "mnist"}
        "byclass" has the 62 classes 0–9, A–Z, a–z in this order. "bymerge" and "balanced" have 47: small letters that
        look like their capitals are one class with them. "letters" has 26, "digits" and "mnist" have 10.
    normalize : {"unit", "fedprox", "leaf"}
        "unit" is x/255. "fedprox" standardizes each pixel over all images that are kept: (x − mean)/(std + 0.001).
        "leaf" is 1 − x/255, dark ink on a bright ground.
    classes : str, optional
        Only these characters, whose labels are then their places in this text: "abcdefghij" is FedProx's FEMNIST. (Its
        images are made from NIST's in another way, see `FEMNIST`.)
    """

    name: ClassVar[str] = "emnist"
    default_model: ClassVar[str] = "mclr"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    split: Split = "byclass"
    normalize: Normalization = "unit"
    classes: str | None = None

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)
        if self.split not in get_args(Split):
            raise ConfigError(f"data emnist: split = {self.split!r} must be {', '.join(get_args(Split))}")
        kept_characters(self.name, self.classes, CHARACTERS[self.split])

    @property
    def _kept(self) -> str:
        return kept_characters(self.name, self.classes, CHARACTERS[self.split])

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        files = _find(self.split)
        settings = {"version": VERSION, "split": self.split, "normalize": self.normalize, "classes": self._kept}
        arrays = prepared(self.name, files, settings, lambda: self._make(files))
        return Samples(x=arrays["x"], y=arrays["y"], classes=len(self._kept))

    def _make(self, files: Sequence[Path]) -> Arrays:
        first = 1 if self.split == "letters" else 0  # that split counts its classes from 1
        places = np.concatenate([np.full(first, -1), places_of(self._kept, CHARACTERS[self.split])])
        images, labels = [], []
        packed = files[0].name == PACKED
        for part in ("test",) if packed else ("train", "test"):
            pair, where = _read_packed(files[0]) if packed else _read(files, _names(self.split, part))
            check_pairs(pair, where, len(places))
            if pair[1].min() < first:
                raise DataError(f"{where[1]}: label {pair[1].min()} must be in {first} to {len(places) - 1}")
            wanted = places[pair[1]] >= 0
            images.append(pair[0] if wanted.all() else pair[0][wanted])
            labels.append(places[pair[1]][wanted])
        # NIST's files hold columns where MNIST's hold rows.
        upright = np.concatenate(images) if packed else np.concatenate(images).transpose(0, 2, 1)
        if not len(upright):
            raise DataError(f"{files[0]}: there is no image of the classes {self._kept}")
        return {"x": normalized(upright, self.normalize), "y": np.concatenate(labels)}


def kept_characters(source: str, classes: str | None, known: str) -> str:
    """The characters that a source keeps: those that are asked for, or all."""
    kept = known if classes is None else classes
    if len(kept) < 2 or len(set(kept)) < len(kept) or set(kept) - set(known):
        raise ConfigError(f"data {source}: classes = {classes!r} must be two or more different characters of {known}")
    return kept


def places_of(kept: str, known: str) -> NDArray[np.int64]:
    """The label of each character that is known: its place among those that are kept, -1 where it is not.

    >>> places_of("ca", "abcd").tolist()
    [1, -1, 0, -1]
    """
    return np.array([kept.find(character) for character in known], np.int64)


def _names(split: str, part: str) -> list[str]:
    return [f"emnist-{split}-{part}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")]


def _find(split: str) -> list[Path]:
    """The four idx files of a split, the .zip of all, or `PACKED`; where none is there, the .zip is downloaded."""
    names = [*_names(split, "train"), *_names(split, "test")]
    lacking = ""
    for folder in data_dirs():
        for place in (*(folder / name for name in FOLDERS), folder):
            files, lack = find_idx(place, names)
            if found := files or [place / name for name in ZIPS if (place / name).is_file()][:1]:
                return found
            lacking = lacking or lack
    if split == "byclass" and (packed := find(PACKED)):
        return [packed]
    wanted = (
        f"gzip.zip or the four files {', '.join(names)} (with or without .gz; these also in {' or '.join(FOLDERS)})"
    )
    return fetch("emnist", [REMOTE], wanted, lacking)


def _read(files: Sequence[Path], names: Sequence[str]) -> tuple[list[Bytes], list[str]]:
    """Images and labels of these names, and where they were."""
    pair, where = [], []
    for name, shape in zip(names, ((None, 28, 28), (None,)), strict=True):
        if len(files) == 1:
            where.append(f"{files[0]}: {name}.gz")
            pair.append(read_zipped_idx(files[0], f"{name}.gz", shape, _MOST))
        else:
            file = next(file for file in files if file.name in (name, f"{name}.gz"))
            where.append(str(file))
            pair.append(read_idx(file, shape, _MOST))
    return pair, where


def _read_packed(file: Path) -> tuple[list[Bytes], list[str]]:
    """Images and labels of `PACKED`, and where they were."""
    arrays = read_npz(file, {"x": (None, 28, 28), "y": (None,)})
    return [*arrays.values()], [f"{file}: {name}" for name in arrays]
