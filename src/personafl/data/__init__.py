"""Data: where samples come from (`SOURCES`), who gets them (`PARTITIONS`), and `build`, which joins the two."""

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
from personafl.data.sources import CIFAR10, CIFAR100, EMNIST, FMNIST, MNIST, SOURCES, Digits, Files
from personafl.registry import old_spellings

__all__ = [
    "CIFAR10", "CIFAR100", "EMNIST", "FMNIST", "IID", "MNIST", "PARTITIONS", "SOURCES", "Assignment", "Digits",
    "Dirichlet", "Files", "Lognormal", "Natural", "Owned", "Partition", "Pathological", "PowerLaw", "Samples", "Source",
    "Structure", "build",
]  # fmt: skip

__getattr__ = old_spellings(
    __name__,
    {
        "Cifar10": "CIFAR10",
        "Cifar100": "CIFAR100",
        "Emnist": "EMNIST",
        "Fmnist": "FMNIST",
        "Iid": "IID",
        "Mnist": "MNIST",
    },
)
