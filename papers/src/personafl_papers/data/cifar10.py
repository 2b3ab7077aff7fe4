"""CIFAR-10: 60,000 small colour photographs of 10 classes (Krizhevsky 2009)."""

from dataclasses import dataclass
from typing import ClassVar

from personafl.data.base import Samples, Structure
from personafl_papers.data.cifar import CIFAR10_FILES, Normalization, check_normalization


@dataclass(frozen=True)
class CIFAR10:
    """60,000 photographs of 10 classes, training and test images in one pool, x of shape (N, 3, 32, 32).

    The classes are airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck, 6,000 of each; the first
    50,000 are the training images. Read from the directory that the environment variable PERSONAFL_DATA names, or from
    the cache: cifar-10-python.tar.gz or cifar-10-binary.tar.gz, the folder cifar-10-batches-py or cifar-10-batches-bin
    that is in it, or cifar10.npz (x_train, y_train, x_test, y_test; images (N, 32, 32, 3)). What is not there is
    downloaded. The default shares of train and test, 75 to 25, are pFedMe's.

    Parameters
    ----------
    normalize : {"half", "unit"}
        "half" is x/127.5 − 1, from −1 to 1, as in pFedMe and PersFL. "unit" is x/255.
    """

    name: ClassVar[str] = "cifar10"
    default_model: ClassVar[str] = "cnn"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.75, 0.0, 0.25)

    normalize: Normalization = "half"

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        x, y = CIFAR10_FILES.load(self.normalize)
        return Samples(x=x, y=y, classes=10)
