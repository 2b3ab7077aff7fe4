"""Data: where samples come from (`SOURCES`), who gets them (`PARTITIONS`), and `build`, which joins the two."""

from typing import Any

from personafl.data.base import Owned, Samples, Source, Structure
from personafl.data.build import build
from personafl.data.partitions import (
    IID,
    PARTITIONS,
    Assignment,
    Dirichlet,
    Lognormal,
    Natural,
    Partition,
    Pathological,
    PowerLaw,
)  # fmt: skip
from personafl.data.sources import EMNIST, FEMNIST, FMNIST, MNIST, SOURCES, Digits, Files
from personafl.registry import old_spellings

__all__ = [
    "EMNIST", "FEMNIST", "FMNIST", "IID", "MNIST", "PARTITIONS", "SOURCES", "Assignment", "Digits", "Dirichlet",
    "Files", "Lognormal", "Natural", "Owned", "Partition", "Pathological", "PowerLaw", "Samples", "Source", "Structure",
    "build",
]  # fmt: skip

_old_spelling = old_spellings(__name__, {"Emnist": "EMNIST", "Fmnist": "FMNIST", "Iid": "IID", "Mnist": "MNIST"})


def __getattr__(name: str) -> Any:
    """CIFAR as before it moved to the package personafl-papers, and old spellings."""
    if name not in ("CIFAR10", "CIFAR100"):
        return _old_spelling(name)
    if name.lower() not in SOURCES:
        raise AttributeError(f"personafl.data.{name} is now in the package personafl-papers, which is not installed")
    return SOURCES[name.lower()]
