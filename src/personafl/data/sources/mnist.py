"""MNIST: 70,000 handwritten digits (LeCun et al. 1998)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.data.base import Samples, Structure
from personafl.data.images import MNIST_FILES, Normalization, check_normalization
from personafl.data.readers import find, missing
from personafl.errors import DataError
from personafl.federation.npz import read_npz

WRITERS = "mnist_writers.npz"


@dataclass(frozen=True)
class MNIST:
    """70,000 handwritten digits of 28 by 28 pixels, training and test images in one pool, x of shape (N, 1, 28, 28).

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: the four idx files
    with or without gzip, there or in its folder MNIST/raw or mnist, or mnist.npz. Where there are none, the four files
    are downloaded to the cache (12 MB). The partition `natural` makes clients of the people who wrote the digits, if
    mnist_writers.npz is there too.

    Parameters
    ----------
    normalize : {"fedprox", "unit", "leaf"}
        "fedprox" standardizes each pixel over the whole pool, test images too, as that paper does: (x − mean)/(std +
        0.001). "unit" is x/255. "leaf" is 1 − x/255, dark ink on a bright ground.
    """

    name: ClassVar[str] = "mnist"
    default_model: ClassVar[str] = "mclr"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    normalize: Normalization = "fedprox"

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        pool = MNIST_FILES.pool(self.normalize)
        return Samples(x=pool["x"], y=pool["y"], classes=10)

    def owners(self, samples: int) -> NDArray[np.str_]:
        """The writer of each image, as the name of a client."""
        file = find(WRITERS)
        if file is None:
            raise missing("mnist with partition natural", f"{WRITERS} (writer_train, writer_test)")
        arrays = read_npz(file, {"writer_train": (None,), "writer_test": (None,)}, kinds="iu")
        writers = np.concatenate([*arrays.values()])
        if len(writers) != samples:
            raise DataError(f"{file} names the writers of {len(writers)} images, and MNIST here has {samples}")
        return np.array([f"writer-{number}" for number in writers])
