"""MNIST: 70,000 handwritten digits (LeCun et al. 1998)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from personafl.data import Samples, Structure
from personafl.data.files import find, missing, read_npz
from personafl.data.images import MNIST, Normalization, check_normalization, normalized
from personafl.errors import ConfigError, DataError

WRITERS = "mnist_writers.npz"


@dataclass(frozen=True)
class Mnist:
    """70,000 handwritten digits of 28 by 28 pixels, training and test images in one pool, x of shape (N, 1, 28, 28).

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: the four idx files
    with or without gzip, there or in its folder MNIST/raw or mnist, or mnist.npz.

    Parameters
    ----------
    normalize : {"fedprox", "unit"}
        "fedprox" standardizes each pixel over the whole pool, test images too, as that paper does: (x − mean)/(std +
        0.001). "unit" is x/255.
    clients : {"partition", "writer"}
        "writer": the clients are the people who wrote the digits, of mnist_writers.npz in the same directory.
    """

    name: ClassVar[str] = "mnist"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    normalize: Normalization = "fedprox"
    clients: Literal["partition", "writer"] = "partition"

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)
        if self.clients not in ("partition", "writer"):
            raise ConfigError(f"data mnist: clients = {self.clients!r} must be partition or writer")

    @property
    def structure(self) -> Structure:
        """A pool, unless writers are asked for."""
        return "natural" if self.clients == "writer" else "pool"

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        images, labels, train = MNIST.read()
        writers = _writers(train, len(labels) - train) if self.clients == "writer" else None
        return Samples(x=normalized(images, self.normalize), y=labels, classes=10, clients=writers)


def _writers(train: int, test: int) -> NDArray[np.str_]:
    """The writer of each image, as the name of a client."""
    file = find(WRITERS)
    if file is None:
        raise missing("mnist with clients = 'writer'", f"{WRITERS} (writer_train, writer_test)")
    arrays = read_npz(file, {"writer_train": (None,), "writer_test": (None,)}, kinds="iu")
    for name, images in (("writer_train", train), ("writer_test", test)):
        if len(arrays[name]) != images:
            raise DataError(f"{file}: {name} names {len(arrays[name])} writers for {images} images")
    return np.array([f"writer-{number}" for number in np.concatenate([*arrays.values()])])
