"""Handwritten digits that ship with scikit-learn: real data without a download."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np

from personafl.data.base import Samples


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8 by 8 pixels in [0, 1], 10 classes (Alpaydin and Kaynak 1998).

    Examples
    --------
    >>> samples = Digits().load(seed=0)
    >>> samples.x.shape, samples.x.dtype, samples.classes
    ((1797, 64), dtype('float32'), 10)
    """

    name: ClassVar[str] = "digits"
    default_model: ClassVar[str] = "mlp"
    structure: ClassVar[Literal["pool", "natural", "own"]] = "pool"
    splits: ClassVar[tuple[float, float, float] | None] = (0.7, 0.1, 0.2)

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        digits, labels = _read()
        return Samples(x=(digits / 16.0).astype(np.float32), y=labels.astype(np.int64), classes=10)


@cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Read once in a process: it is a text file, and takes longer than a short run."""
    # Imported here: a second that other sources need not pay.
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    return digits, labels
