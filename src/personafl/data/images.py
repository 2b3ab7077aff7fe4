"""Images in the format of MNIST: the files of a pool, and the papers' normalizations of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from personafl.data.fetch import Remote, fetch
from personafl.data.readers import Bytes, data_dirs, read_idx
from personafl.errors import ConfigError, DataError
from personafl.federation.npz import read_npz
from personafl.storage.cache import Arrays, prepared

Normalization = Literal["fedprox", "unit", "leaf"]
"""fedprox: (x − mean)/(std + 0.001), each pixel by its mean and standard deviation over the pool; unit: x/255; leaf:
1 − x/255, dark ink on a bright ground, as LEAF's code and FedProx's have FEMNIST."""

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ROWS_AT_ONCE = 4096
VERSION = 1
"""Of what `normalized` gives: to be raised when that changes, so that what is in the cache is made again."""


@dataclass(frozen=True)
class MnistFormat:
    """A data set that is published as the four idx files of MNIST, or lies in one .npz.

    Attributes
    ----------
    source
        The name of the data source.
    npz
        The .npz with x_train, y_train, x_test and y_test.
    folders : tuple of str
        Where the idx files may lie besides the data directory itself.
    others : dict
        Data sets with the same file names and shapes, by the first labels of their training file: only these tell
        them apart.
    remotes : tuple of Remote
        Where the idx files can be had.
    most
        No file has more images.
    """

    source: str
    npz: str
    folders: tuple[str, ...]
    others: dict[str, tuple[int, ...]]
    remotes: tuple[Remote, ...]
    most: int = 70_000

    def pool(self, normalize: Normalization) -> Arrays:
        """x (N, 1, 28, 28) and y (N,), first the training images."""
        files = self.files()
        return prepared(
            self.source, files, {"version": VERSION, "normalize": normalize}, lambda: self._make(files, normalize)
        )

    def files(self) -> list[Path]:
        """The .npz or the four idx files; where neither is there, the latter are downloaded."""
        lacking = ""
        for folder in data_dirs():
            for place in (*(folder / name for name in self.folders), folder):
                if place == folder and (npz := folder / self.npz).is_file():
                    return [npz]
                files, lack = find_idx(place, IDX_FILES)
                if files:
                    return files
                lacking = lacking or lack
        wanted = (
            f"{self.npz} or the four files {', '.join(IDX_FILES)} (with or without .gz; these also in "
            f"{' or '.join(self.folders)})"
        )
        return fetch(self.source, self.remotes, wanted, lacking)

    def _make(self, files: Sequence[Path], normalize: Normalization) -> Arrays:
        arrays, names = self._read_npz(files[0]) if len(files) == 1 else self._read_idx(files)
        check_pairs(arrays, names, 10)
        for other, first in self.others.items():
            if arrays[1][: len(first)].tolist() == list(first):
                raise DataError(f"{names[1]} is of {other}, not of {self.source}; put each into a folder of its own")
        y = np.concatenate([arrays[1], arrays[3]]).astype(np.int64)
        return {"x": normalized(np.concatenate([arrays[0], arrays[2]]), normalize), "y": y}

    def _read_idx(self, files: Sequence[Path]) -> tuple[list[Bytes], list[str]]:
        shapes = [(None, 28, 28) if "images" in file.name else (None,) for file in files]
        arrays = [read_idx(file, shape, self.most) for file, shape in zip(files, shapes, strict=True)]
        return arrays, [str(file) for file in files]

    def _read_npz(self, file: Path) -> tuple[list[NDArray[Any]], list[str]]:
        shapes: dict[str, tuple[int | None, ...]] = {"x_train": (None, 28, 28), "y_train": (None,)}
        shapes |= {"x_test": (None, 28, 28), "y_test": (None,)}
        arrays = read_npz(file, shapes)
        return list(arrays.values()), [f"{file}: {name}" for name in arrays]


MNIST_FIRST = (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7)
FMNIST_FIRST = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9)


def _remotes(folder: str, mirror: str, checksums: Sequence[tuple[str, float]]) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{folder}/{name}.gz", f"{mirror}/{name}.gz", f"sha256:{checksum}", megabytes)
        for name, (checksum, megabytes) in zip(IDX_FILES, checksums, strict=True)
    )


MNIST_FILES = MnistFormat(
    "mnist",
    "mnist.npz",
    ("MNIST/raw", "mnist"),
    {"fmnist": FMNIST_FIRST},
    _remotes(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9.912),
            ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 0.029),
            ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1.649),
            ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 0.005),
        ),
    ),
)
FMNIST_FILES = MnistFormat(
    "fmnist",
    "fashion_mnist.npz",
    ("FashionMNIST/raw", "fashion_mnist"),
    {"mnist": MNIST_FIRST},
    _remotes(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26.422),
            ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 0.030),
            ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4.422),
            ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 0.005),
        ),
    ),
)


def find_idx(place: Path, names: Sequence[str]) -> tuple[list[Path], str]:
    """The idx files of these names, with or without .gz, if all are there; else what to say if only some are."""
    files = [_with_or_without_gz(place / name) for name in names]
    if all(files):
        return [file for file in files if file], ""
    lacking = ", ".join(name for name, file in zip(names, files, strict=True) if not file)
    return [], f" ({place} lacks {lacking})" if any(files) else ""


def check_pairs(arrays: Sequence[NDArray[Any]], names: Sequence[str], classes: int) -> None:
    """Images and labels, in turns, are as many, and of the right kind."""
    for images, labels in ((k, k + 1) for k in range(0, len(arrays), 2)):
        if len(arrays[images]) != len(arrays[labels]):
            raise DataError(
                f"{names[images]} has {len(arrays[images])} images and {names[labels]} has "
                f"{len(arrays[labels])} labels; they must be as many"
            )
        if arrays[images].dtype != np.uint8:
            raise DataError(f"{names[images]} holds {arrays[images].dtype} values, expected uint8")
        check_classes(names[labels], arrays[labels], classes)


def normalized(images: Bytes, how: Normalization) -> NDArray[np.float32]:
    """Images (N, height, width) as float32 (N, 1, height, width).

    >>> normalized(np.array([[[0, 255]], [[0, 0]]], np.uint8), "fedprox").ravel().round(3).tolist()
    [0.0, 1.0, 0.0, -1.0]
    >>> normalized(np.array([[[0, 255]]], np.uint8), "leaf").ravel().tolist()
    [1.0, 0.0]
    """
    out = np.empty(images.shape, np.float32)
    if how in ("unit", "leaf"):
        np.divide(images, np.float32(255), out=out)
        if how == "leaf":
            np.subtract(np.float32(1), out, out=out)
    else:
        mean, std = _pixel_statistics(images)
        np.subtract(images, mean.astype(np.float32), out=out)
        out /= (std + 0.001).astype(np.float32)
    return out[:, None]


def check_normalization(source: str, how: Normalization) -> None:
    """Refuse a normalization that is not known."""
    if how not in get_args(Normalization):
        known = " or ".join(get_args(Normalization))
        raise ConfigError(f"data {source}: normalize = {how!r} must be {known}")


def check_classes(what: str, labels: NDArray[Any], classes: int) -> None:
    """Refuse labels that are not in 0 to `classes` - 1."""
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
