"""Data sets, one file each. A package of yours adds more by the entry points `personafl.data`."""

from personafl.data.sources.digits import Digits
from personafl.data.sources.emnist import EMNIST
from personafl.data.sources.femnist import FEMNIST
from personafl.data.sources.fmnist import FMNIST
from personafl.data.sources.mnist import MNIST
from personafl.data.sources.own_files import Files
from personafl.registry import Registry

SOURCES = Registry(
    "data",
    "personafl.data",
    [Digits, MNIST, FMNIST, EMNIST, FEMNIST, Files],
    needs=("structure", "splits", "load"),
)

__all__ = ["EMNIST", "FEMNIST", "FMNIST", "MNIST", "SOURCES", "Digits", "Files"]
