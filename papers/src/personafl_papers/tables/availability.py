"""Whether the data of a table is here, without loading or downloading it: the sources' own finders are asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from personafl.data import images, readers
from personafl.data.fetch import OFFLINE
from personafl.data.sources import emnist
from personafl.errors import DataError
from personafl_papers.data import cifar, letters, sent140, speech, vectors


def _letters() -> None:
    if not any(readers.find(name) for name in (letters.PACKED, *letters.ORIGINAL)):
        raise DataError("letters are not here")


FINDERS: dict[str, Callable[[], Any]] = {
    "mnist": images.MNIST_FILES.files,
    "fmnist": images.FMNIST_FILES.files,
    "emnist": lambda: emnist._find("byclass"),
    "letters": _letters,
    "cifar10": cifar.CIFAR10_FILES._find,
    "cifar100": cifar.CIFAR100_FILES._find,
    "sent140": lambda: (sent140._file(), vectors.find_vectors("auto", "sent140")),
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
