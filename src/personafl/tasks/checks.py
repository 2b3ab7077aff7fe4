"""What several tasks ask of labels, outputs and settings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from personafl.errors import ConfigError, DataError, ModelError


def require_classes(task: str, y: Tensor, axes: int, ignore: int | None = None) -> None:
    """Raise a DataError where labels are not classes 0, 1, …, with so many axes."""
    if y.is_floating_point() or y.dim() != axes:
        wanted = "(N, …)" if axes > 3 else f"(N{', L' if axes == 2 else ', H, W' if axes == 3 else ','})"
        raise DataError(
            f"task {task!r} takes whole numbers of shape {wanted} as labels, these are "
            f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}: name another [task], or convert them"
        )
    counted = y if ignore is None else y[y != ignore]
    if counted.numel() and int(counted.min()) < 0:
        beside = "" if ignore is None else f", or {ignore} for what does not count"
        raise DataError(f"task {task!r}: label {int(counted.min())} is below 0; classes count from 0{beside}")


def require_logits(outputs: Tensor, y: Tensor, shape: tuple[int, ...], axis: int) -> None:
    """Raise a ModelError where outputs, without their axis of classes, do not have the shape of the labels."""
    without = (*outputs.shape[:axis], *outputs.shape[axis + 1 :]) if outputs.dim() else ()
    if outputs.dim() != len(shape) + 1 or tuple(without) != shape:
        wanted = list(map(str, shape))
        wanted.insert(axis, "classes")
        raise ModelError(
            f"the model's outputs have shape {tuple(outputs.shape)} for labels of shape {tuple(y.shape)}: they must "
            f"be ({', '.join(wanted)})"
        )
    most = int(y.max()) if y.numel() else 0
    if outputs.shape[axis] <= most:
        raise ModelError(f"the model has {outputs.shape[axis]} outputs but the data has label {most}")


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Settings as a tensor."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def check_positive(key: str, values: tuple[float, ...]) -> None:
    """Refuse values that are not all above 0."""
    if not all(np.isfinite(value) and value > 0 for value in values):
        raise ConfigError(f"{key} = {list(values)!r}: must all be above 0")
