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

__all__ = [
    "EMNIST", "FEMNIST", "FMNIST", "IID", "MNIST", "PARTITIONS", "SOURCES", "Assignment", "Digits", "Dirichlet",
    "Files", "Lognormal", "Natural", "Owned", "Partition", "Pathological", "PowerLaw", "Samples", "Source", "Structure",
    "build",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """CIFAR as before it moved to the package personafl-papers."""
    if name not in ("CIFAR10", "CIFAR100"):
        raise AttributeError(f"module 'personafl.data' has no attribute {name!r}")
    if name.lower() not in SOURCES:
        raise AttributeError(f"personafl.data.{name} is now in the package personafl-papers, which is not installed")
    return SOURCES[name.lower()]
