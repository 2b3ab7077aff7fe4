"""CIFAR-10 and CIFAR-100: the forms that their files come in, strict readers of each, and the papers' normalizations.

No file is unpacked to disk and nothing in it is executed; what an archive may unpack to is bounded.
"""

import gzip
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from personafl.data.fetch import Remote, fetch
from personafl.data.images import ROWS_AT_ONCE, check_classes
from personafl.data.readers import Bytes, data_dirs
from personafl.errors import ConfigError, DataError
from personafl.federation.npz import read_npz
from personafl.federation.pickles import read_pickle
from personafl.storage.cache import prepared

Normalization = Literal["half", "unit"]
"""half: x/127.5 − 1, from −1 to 1; unit: x/255, from 0 to 1."""

Batch = tuple[str, Bytes, Bytes]
"""What to call it in an error, images (N, 3, 32, 32) and labels (N,)."""

PIXELS = 3 * 32 * 32
CIFAR10_FIRST = (6, 9, 9, 4, 1, 1, 2, 7, 8, 3)
_MOST_BYTES = 1 << 28  # of a batch, and of an unpacked archive; the longest of CIFAR's are 155 and 187 million
_PIECE = 1 << 20
_EMPTY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
_UNREADABLE = (OSError, ValueError, EOFError, zlib.error, tarfile.TarError)


@dataclass(frozen=True)
class Form(ABC):
    """A form that the images come in: an archive, or the folder that is in it, with the batches as files."""

    archive: str
    folder: str
    batches: tuple[str, ...]  # the test images last

    @abstractmethod
    def decode(self, what: str, content: bytes) -> tuple[Bytes, Bytes]:
        """Images (N, 3, 32, 32) and labels (N,) of a batch."""


@dataclass(frozen=True)
class Pickles(Form):
    """The python version: each batch is a pickled dict with "data" (N, 3072) and a list of labels."""

    labels: str

    def decode(self, what: str, content: bytes) -> tuple[Bytes, Bytes]:
        batch = read_pickle(content, what, ("data", self.labels))
        images, labels = batch["data"], batch[self.labels]
        if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS:
            found = f"shape {images.shape}" if isinstance(images, np.ndarray) else "no array"
            raise DataError(f"{what}: 'data' has {found}, expected (N, {PIXELS})")
        if images.dtype != np.uint8:
            raise DataError(f"{what}: 'data' holds {images.dtype} values, expected uint8")
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 255 for label in labels):
            raise DataError(f"{what}: {self.labels!r} is not a list of class numbers")
        return images.reshape(len(images), 3, 32, 32), np.array(labels, np.uint8)


@dataclass(frozen=True)
class Records(Form):
    """The binary version: for each image its labels, the finest last, a byte each, then 3072 pixels."""

    labels: int

    def decode(self, what: str, content: bytes) -> tuple[Bytes, Bytes]:
        width = self.labels + PIXELS
        if len(content) % width:
            raise DataError(
                f"{what} is {len(content)} bytes long, no multiple of the {width} of an image and its label"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, width)
        return records[:, self.labels :].reshape(-1, 3, 32, 32), records[:, self.labels - 1]


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets.

    Attributes
    ----------
    source
        The name of the data source.
    classes
        How many there are.
    forms : tuple of Form
        What is looked for besides {source}.npz; the first is what `remote` gives.
    remote : Remote
        The archive to download.
    """

    source: str
    classes: int
    forms: tuple[Form, ...]
    remote: Remote

    def load(self, normalize: Normalization) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Normalized images (N, 3, 32, 32) and labels (N,), training images first, memory-mapped where possible."""
        files, form = self._find()
        settings = {"version": 1, "normalize": normalize}
        arrays = prepared(self.source, files, settings, lambda: self._make(files, form, normalize))
        return arrays["x"], arrays["y"]

    def _find(self) -> tuple[Sequence[Path], Form | None]:
        """An .npz (no form), an archive or all batches of a folder."""
        lacks = ""
        for folder in data_dirs():
            if (npz := folder / f"{self.source}.npz").is_file():
                return [npz], None
            for form in self.forms:
                batches = [folder / form.folder / batch for batch in form.batches]
                exist = [batch.is_file() for batch in batches]
                if all(exist):
                    return batches, form
                if (archive := folder / form.archive).is_file():
                    return [archive], form
                if any(exist) and not lacks:
                    lacking = ", ".join(batch.name for batch, found in zip(batches, exist, strict=True) if not found)
                    lacks = f" ({batches[0].parent} lacks {lacking})"
        archives = " or ".join(form.archive for form in self.forms)
        folders = " or ".join(form.folder for form in self.forms)
        wanted = f"{self.source}.npz or {archives} or its folder {folders}"
        return fetch(self.source, [self.remote], wanted, lacks), self.forms[0]

    def _make(self, files: Sequence[Path], form: Form | None, normalize: Normalization) -> dict[str, NDArray[Any]]:
        batches = self._npz(files[0]) if form is None else _batches(files, form)
        for what, images, labels in batches:
            if len(images) != len(labels) or not len(labels):
                raise DataError(f"{what} has {len(images)} images and {len(labels)} labels; they must be as many")
            check_classes(what, labels, self.classes)
        what, _, labels = batches[0]
        if self.source != "cifar10" and labels[: len(CIFAR10_FIRST)].tolist() == list(CIFAR10_FIRST):
            raise DataError(f"{what} is of cifar10, not of {self.source}")
        x = np.empty((sum(len(labels) for _, _, labels in batches), 3, 32, 32), np.float32)
        start = 0
        for _, images, _ in batches:
            normalized(images, normalize, x[start : start + len(images)])
            start += len(images)
        return {"x": x, "y": np.concatenate([labels for _, _, labels in batches]).astype(np.int64)}

    def _npz(self, file: Path) -> list[Batch]:
        arrays = read_npz(file, {f"{a}_{split}": s for split in ("train", "test") for a, s in _NPZ_SHAPES.items()})
        for name, array in arrays.items():
            if array.dtype != np.uint8:
                raise DataError(f"{file}: {name} holds {array.dtype} values, expected uint8")
        return [
            (f"{file} ({split})", arrays[f"x_{split}"].transpose(0, 3, 1, 2), arrays[f"y_{split}"])
            for split in ("train", "test")
        ]


_NPZ_SHAPES: dict[str, tuple[int | None, ...]] = {"x": (None, 32, 32, 3), "y": (None,)}
_TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR10_FILES = Cifar(
    "cifar10",
    10,
    (
        Pickles("cifar-10-python.tar.gz", "cifar-10-batches-py", _TEN, "labels"),
        Records("cifar-10-binary.tar.gz", "cifar-10-batches-bin", tuple(f"{batch}.bin" for batch in _TEN), 1),
    ),
    Remote(
        "cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        170.5,
    ),
)
CIFAR100_FILES = Cifar(
    "cifar100",
    100,
    (
        Pickles("cifar-100-python.tar.gz", "cifar-100-python", ("train", "test"), "fine_labels"),
        Records("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin", "test.bin"), 2),
    ),
    Remote(
        "cifar-100-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        169.0,
    ),
)


def normalized(images: Bytes, how: Normalization, out: NDArray[np.float32]) -> None:
    """Images as float32, bit for bit what torchvision's ToTensor and, for "half", Normalize(0.5, 0.5) give.

    >>> out = np.empty(2, np.float32)
    >>> normalized(np.array([0, 255], np.uint8), "half", out)
    >>> out.tolist()
    [-1.0, 1.0]
    """
    table = np.arange(256, dtype=np.float32) / np.float32(255)
    if how == "half":
        table = 2 * table - 1
    for start in range(0, len(images), ROWS_AT_ONCE):
        out[start : start + ROWS_AT_ONCE] = table[images[start : start + ROWS_AT_ONCE]]


def check_normalization(source: str, how: Normalization) -> None:
    if how not in get_args(Normalization):
        raise ConfigError(f"data {source}: normalize = {how!r} must be {' or '.join(get_args(Normalization))}")


def _batches(files: Sequence[Path], form: Form) -> list[Batch]:
    """The batches of a form in their order, of its files or of the one archive."""
    contents = _unpacked(files) if len(files) == len(form.batches) else _members(files[0], form)
    batches = {name: (what, *form.decode(what, content)) for name, what, content in contents}
    if lacking := [name for name in form.batches if name not in batches]:
        raise DataError(f"{files[0]} has no file {form.folder}/{lacking[0]}; get the file again")
    return [batches[name] for name in form.batches]


def _unpacked(files: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    for file in files:
        try:
            _check_size(str(file), file.stat().st_size)
            yield file.name, str(file), file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {file}: {error}; get the file again") from error


def _members(archive: Path, form: Form) -> Iterator[tuple[str, str, bytes]]:
    """A form's batches as they come by in a .tar.gz; whatever else is in there is passed over."""
    wanted = {f"{form.folder}/{batch}": batch for batch in form.batches}
    try:
        with gzip.open(archive) as unpacked:
            stream = _Stream(archive, unpacked)
            # tarfile.open would take memory for long names and extended headers on the word of the archive.
            while (header := stream.read(tarfile.BLOCKSIZE)).strip(b"\0"):
                member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                padding = -member.size % tarfile.BLOCKSIZE
                if batch := wanted.pop(member.name, ""):
                    what = f"{archive}: {member.name}"
                    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                        raise DataError(f"{what} is not a plain file; get the archive again")
                    _check_size(what, member.size)
                    yield batch, what, stream.read(member.size, whole=True)
                    stream.skip(padding)
                elif member.type not in _EMPTY:
                    stream.skip(member.size + padding)
            while stream.read(_PIECE):
                pass  # gzip's checksum comes at the end
    except _UNREADABLE as error:
        raise DataError(f"cannot read {archive}: {error or type(error).__name__}; get the file again") from error


class _Stream:
    """What an archive unpacks to, up to a bound."""

    def __init__(self, archive: Path, unpacked: gzip.GzipFile) -> None:
        self.archive, self.unpacked, self.left = archive, unpacked, _MOST_BYTES

    def read(self, size: int, whole: bool = False) -> bytes:
        piece = self.unpacked.read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise DataError(f"{self.archive} unpacks to more than {_MOST_BYTES} bytes, unlike CIFAR; get it again")
        if whole and len(piece) < size:
            raise EOFError("it ends inside a file")
        return piece

    def skip(self, size: int) -> None:
        for start in range(0, size, _PIECE):
            self.read(min(_PIECE, size - start), whole=True)


def _check_size(what: str, size: int) -> None:
    if not 0 < size <= _MOST_BYTES:
        raise DataError(f"{what} is {size} bytes long, expected 1 to {_MOST_BYTES}; get the file again")
