"""Handwritten digits that ship with scikit-learn: real data without a download."""

import gzip
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
    """scikit-learn's own file, because importing scikit-learn takes longer than the first round of a small run."""
    found = importlib.util.find_spec("sklearn")
    file = None if found is None or found.origin is None else Path(found.origin).parent / "datasets/data/digits.csv.gz"
    if file is None or not file.exists():
        from sklearn.datasets import load_digits

        digits, labels = load_digits(return_X_y=True)
        return digits, labels
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1]
