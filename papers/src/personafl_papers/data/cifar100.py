"""CIFAR-100: 60,000 small colour photographs of 100 classes (Krizhevsky 2009)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from personafl.data.base import Samples, Structure
from personafl.errors import ConfigError
from personafl_papers.data.cifar import CIFAR100_FILES, Normalization, check_normalization

# fmt: off
SUPERCLASSES = np.array([
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
])
"""The superclass of each class, as published with the data; each has five classes."""
# fmt: on


@dataclass(frozen=True)
class CIFAR100:
    """60,000 photographs of 100 classes, training and test images in one pool, x of shape (N, 3, 32, 32).

    There are 600 of each class; the first 50,000 are the training images. Read from the directory that the environment
    variable PERSONAFL_DATA names, or from the cache: cifar-100-python.tar.gz or cifar-100-binary.tar.gz, the folder
    cifar-100-python or cifar-100-binary that is in it, or cifar100.npz (x_train, y_train, x_test, y_test; images
    (N, 32, 32, 3), fine labels). What is not there is downloaded. FedAMP does not say how it divides a client's data
    into train and test; the default is as the data set itself does it, 5 to 1.

    Parameters
    ----------
    labels : {"fine", "coarse"}
        "fine": the 100 classes, such as maple; "coarse": the 20 superclasses, such as trees.
    normalize : {"half", "unit"}
        "half" is x/127.5 − 1, from −1 to 1. "unit" is x/255.
    """

    name: ClassVar[str] = "cifar100"
    default_model: ClassVar[str] = "cnn"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (5 / 6, 0.0, 1 / 6)

    labels: Literal["fine", "coarse"] = "fine"
    normalize: Normalization = "half"

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)
        if self.labels not in ("fine", "coarse"):
            raise ConfigError(f"data cifar100: labels = {self.labels!r} must be fine or coarse")

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        x, fine = CIFAR100_FILES.load(self.normalize)
        if self.labels == "coarse":
            return Samples(x=x, y=SUPERCLASSES[fine], classes=20)
        return Samples(x=x, y=fine, classes=100)
