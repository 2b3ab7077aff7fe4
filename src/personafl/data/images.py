"""Images in the format of MNIST: the files of a pool, and the papers' normalizations of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from personafl.data.files import Bytes, data_dirs, missing, read_idx, read_npz
from personafl.errors import ConfigError, DataError

Normalization = Literal["fedprox", "unit"]
"""fedprox: (x − mean)/(std + 0.001), each pixel by its mean and standard deviation over the pool; unit: x/255."""

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class MnistFormat:
    """A data set that is published as the four idx files of MNIST, or lies in one .npz.

    Attributes
    ----------
    source : str
        The name of the data source.
    npz : str
        The .npz with x_train, y_train, x_test and y_test.
    folders : tuple of str
        Where the idx files may lie besides the data directory itself.
    others : dict
        Data sets with the same file names and shapes, by the first labels of their training file: only these tell
        them apart.
    """

    source: str
    npz: str
    folders: tuple[str, ...]
    others: dict[str, tuple[int, ...]]

    def read(self) -> tuple[Bytes, NDArray[np.int64], int]:
        """Images (N, 28, 28) and labels (N,), first the training images, and how many of these there are."""
        train_x, train_y, test_x, test_y = self._arrays()
        y = np.concatenate([train_y, test_y]).astype(np.int64)
        return np.concatenate([train_x, test_x]), y, len(train_y)

    def _arrays(self) -> Sequence[Bytes]:
        partial = ""
        for folder in data_dirs():
            for place in (*(folder / name for name in self.folders), folder):
                if place == folder and (npz := folder / self.npz).is_file():
                    return self._read_npz(npz)
                files = [_with_or_without_gz(place / name) for name in IDX_FILES]
                if all(files):
                    return self._read_idx([file for file in files if file])
                if any(files) and not partial:
                    lacking = ", ".join(name for name, file in zip(IDX_FILES, files, strict=True) if not file)
                    partial = f" ({place} lacks {lacking})"
        # A download of the four files into the cache, with their checksums, belongs here.
        raise missing(
            self.source,
            f"{self.npz} or the four files {', '.join(IDX_FILES)} (with or without .gz; these also in "
            f"{' or '.join(self.folders)})",
            partial,
        )

    def _read_idx(self, files: Sequence[Path]) -> Sequence[Bytes]:
        arrays = [read_idx(file, (None, 28, 28) if "images" in file.name else (None,)) for file in files]
        self._check(arrays, [str(file) for file in files])
        return arrays

    def _read_npz(self, file: Path) -> Sequence[Bytes]:
        shapes: dict[str, tuple[int | None, ...]] = {"x_train": (None, 28, 28), "y_train": (None,)}
        shapes |= {"x_test": (None, 28, 28), "y_test": (None,)}
        arrays = read_npz(file, shapes)
        self._check(list(arrays.values()), [f"{file}: {name}" for name in arrays])
        return list(arrays.values())

    def _check(self, arrays: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
        for images, labels in ((0, 1), (2, 3)):
            if len(arrays[images]) != len(arrays[labels]):
                raise DataError(
                    f"{names[images]} has {len(arrays[images])} images and {names[labels]} has "
                    f"{len(arrays[labels])} labels; they must be as many"
                )
            if arrays[images].dtype != np.uint8:
                raise DataError(f"{names[images]} holds {arrays[images].dtype} values, expected uint8")
            check_classes(names[labels], arrays[labels], 10)
        for other, first in self.others.items():
            if arrays[1][: len(first)].tolist() == list(first):
                raise DataError(f"{names[1]} is of {other}, not of {self.source}; put each into a folder of its own")


MNIST_FIRST = (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7)
FMNIST_FIRST = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9)
MNIST = MnistFormat("mnist", "mnist.npz", ("MNIST/raw", "mnist"), {"fmnist": FMNIST_FIRST})
FMNIST = MnistFormat("fmnist", "fashion_mnist.npz", ("FashionMNIST/raw", "fashion_mnist"), {"mnist": MNIST_FIRST})


def normalized(images: Bytes, how: Normalization) -> NDArray[np.float32]:
    """Images (N, height, width) as float32 (N, 1, height, width).

    >>> normalized(np.array([[[0, 255]], [[0, 0]]], np.uint8), "fedprox").ravel().round(3).tolist()
    [0.0, 1.0, 0.0, -1.0]
    """
    out = np.empty(images.shape, np.float32)
    if how == "unit":
        np.divide(images, np.float32(255), out=out)
    else:
        mean, std = _pixel_statistics(images)
        np.subtract(images, mean.astype(np.float32), out=out)
        out /= (std + 0.001).astype(np.float32)
    return out[:, None]


def check_normalization(source: str, how: Normalization) -> None:
    if how not in get_args(Normalization):
        known = " or ".join(get_args(Normalization))
        raise ConfigError(f"data {source}: normalize = {how!r} must be {known}")


def check_classes(what: str, labels: NDArray[Any], classes: int) -> None:
    if (wrong := np.flatnonzero(labels >= classes)).size:
        raise DataError(f"{what}: label {labels[wrong[0]]} of sample {wrong[0]} must be in 0 to {classes - 1}")


def _with_or_without_gz(file: Path) -> Path | None:
    return next((path for path in (file, file.with_name(f"{file.name}.gz")) if path.is_file()), None)


def _pixel_statistics(images: Bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each pixel, of sums without rounding: the order of the images has no effect."""
    total = np.zeros(images.shape[1:], np.int64)
    squares = np.zeros(images.shape[1:], np.int64)
    for start in range(0, len(images), ROWS_AT_ONCE):
        # 4096 squares of at most 255² fit into 32 bits, which are faster than 64.
        some = images[start : start + ROWS_AT_ONCE].astype(np.uint32)
        total += some.sum(axis=0, dtype=np.uint32)
        some *= some
        squares += some.sum(axis=0, dtype=np.uint32)
    mean = total / len(images)
    return mean, np.sqrt(np.maximum(squares / len(images) - mean**2, 0.0))
