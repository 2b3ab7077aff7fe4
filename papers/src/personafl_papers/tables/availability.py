"""Whether the data of a table is here, without loading or downloading it: the sources' own finders are asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from personafl.data import images, readers
from personafl.data.fetch import OFFLINE
from personafl.data.sources import emnist, femnist
from personafl.errors import DataError
from personafl_papers.data import cifar, letters, sent140, speech, vectors


def _letters() -> None:
    if not any(readers.find(name) for name in (letters.PACKED, *letters.ORIGINAL)):
        raise DataError("letters are not here")


def _femnist() -> None:
    if not readers.find(femnist.PACKED):
        raise DataError("femnist is not here")


MINILM = "all-MiniLM-L6-v2"
"""The folder in a data directory that has the model as Hugging Face has it: config, safetensors, tokenizer."""

EMBEDDING = ("speech-embedding/embedding_model.onnx", "speech-embedding/melspectrogram.onnx")
"""Google's speech embedding, and what it hears: files in a data directory."""

EFFICIENTNET = "efficientnet-lite0/efficientnet-lite0-57934424.pth"
"""EfficientNet-lite0's state dict, trained on ImageNet, in a data directory."""


def weights(*files: str) -> tuple[Path, ...]:
    """Where files of weights are, in one of the data directories; a DataError where there are none."""
    for folder in readers.data_dirs():
        if all((folder / file).is_file() for file in files):
            return tuple(folder / file for file in files)
    raise DataError(f"there is no {files[0]}")


def weights_or_names(*files: str) -> tuple[str, ...]:
    """The same as text, for a config; without them their names, so that a table can be planned anywhere."""
    try:
        return tuple(str(path) for path in weights(*files))
    except DataError:
        return files


FINDERS: dict[str, Callable[[], Any]] = {
    "mnist": images.MNIST_FILES.files,
    "fmnist": images.FMNIST_FILES.files,
    "emnist": lambda: emnist._find("byclass"),
    "femnist": _femnist,
    "letters": _letters,
    "cifar10": cifar.CIFAR10_FILES._find,
    "cifar100": cifar.CIFAR100_FILES._find,
    "sent140": lambda: (sent140._file(), vectors.find_vectors("auto", "sent140")),
    "minilm": lambda: weights(f"{MINILM}/model.safetensors", f"{MINILM}/config.json"),
    "speech-embedding": lambda: weights(*EMBEDDING),
    "efficientnet-lite0": lambda: weights(EFFICIENTNET),
    "wakeword": lambda: speech.find_corpus("wakeword"),
}
"""By the name of the source; each raises a DataError where its files are not here."""


def available(source: str) -> bool:
    """Whether the files of a source are in the data directory or in the cache."""
    try:
        with _offline():
            FINDERS[source]()
    except DataError:
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before
