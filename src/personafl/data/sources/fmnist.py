"""Fashion-MNIST: 70,000 pictures of clothes (Xiao et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

from personafl.data.base import Samples, Structure
from personafl.data.images import FMNIST_FILES, Normalization, check_normalization


@dataclass(frozen=True)
class FMNIST:
    """70,000 pictures of clothes, 10 classes, training and test images in one pool, x of shape (N, 1, 28, 28).

    The classes are T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot. Read from the
    directory that the environment variable PERSONAFL_DATA names, or from the cache: the four idx files with or
    without gzip, there or in its folder FashionMNIST/raw or fashion_mnist, or fashion_mnist.npz. Where there are none,
    the four files are downloaded to the cache (31 MB).

    Parameters
    ----------
    normalize : {"unit", "fedprox", "leaf"}
        "unit" is x/255. "fedprox" standardizes each pixel over the whole pool: (x − mean)/(std + 0.001).
        "leaf" is 1 − x/255.
    """

    name: ClassVar[str] = "fmnist"
    default_model: ClassVar[str] = "mlp"
    structure: ClassVar[Structure] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.7, 0.1, 0.2)

    normalize: Normalization = "unit"

    def __post_init__(self) -> None:
        check_normalization(self.name, self.normalize)

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        pool = FMNIST_FILES.pool(self.normalize)
        return Samples(x=pool["x"], y=pool["y"], classes=10)
