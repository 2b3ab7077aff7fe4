"""How predictions and labels overlap, class by class: sums over samples, and the F1 and IoU that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.tasks.base import Sums


def overlaps(predicted: Tensor, labelled: Tensor) -> Tensor:
    """(N, 3, C) for each class: right, predicted and labelled, from masks (N, …, C)."""
    parts = [predicted & labelled, predicted, labelled]
    return torch.stack([part.flatten(1, -2).sum(1) if part.dim() > 2 else part for part in parts], 1).double()


def f1(sums: Sums, n: Any) -> NDArray[np.float64]:
    """The mean over classes of 2·right / (predicted + labelled), of classes that occur."""
    hits, predicted, labelled = np.moveaxis(sums["overlaps"], 1, 0)
    return _mean_of_classes(2 * hits, predicted + labelled)


def jaccard(sums: Sums, n: Any) -> NDArray[np.float64]:
    """The mean over classes of right / (predicted or labelled), of classes that occur: intersection over union."""
    hits, predicted, labelled = np.moveaxis(sums["overlaps"], 1, 0)
    return _mean_of_classes(hits, predicted + labelled - hits)


def _mean_of_classes(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    shares = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    occur = (whole > 0).sum(1)
    mean: NDArray[np.float64] = np.divide(shares.sum(1), occur, out=np.full(len(part), np.nan), where=occur > 0)
    return mean
