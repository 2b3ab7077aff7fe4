"""How the values of an objective become the loss of a client.

An objective is a function `(outputs, y, **extra)` that gives one value per sample. It may give two tensors: the
values, and how much each sample counts (its tokens, its class weight). Where samples are coupled, as in a partial
likelihood, it has an attribute `couples_samples = True`, takes `weight` (1 for a sample, 0 for padding) and gives the
mean loss itself. What a program gives in place of the loss may have `added_to_loss = True`: then it is a term that
comes to the loss, whatever the task's loss is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from personafl.tasks.base import Objective as Objective


def couples_samples(objective: Objective) -> bool:
    """Whether the loss of a batch is something else than a mean over its samples."""
    return bool(getattr(objective, "couples_samples", False))


def added_to_loss(objective: Objective) -> bool:
    """Whether an objective is a term that comes to the loss."""
    return bool(getattr(objective, "added_to_loss", False))


@dataclass(frozen=True)
class WithLoss:
    """The sum of a loss and a term, each with its own way to count samples; `extra` is for the term."""

    loss: Objective
    term: Objective

    couples_samples: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, y: Tensor, weight: Tensor, **extra: Tensor) -> Tensor:
        return mean_loss(self.loss, outputs, y, weight) + mean_loss(self.term, outputs, y, weight, extra)


def mean_loss(
    objective: Objective, outputs: Tensor, y: Tensor, weight: Tensor, extra: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The loss of one client's batch."""
    extra = extra or {}
    if couples_samples(objective):
        value: Tensor = objective(outputs, y, weight=weight, **extra)
        return value
    found: Any = objective(outputs, y, **extra)
    if isinstance(found, tuple):
        values, counts = found
        weight = weight * counts
        # A batch may have nothing that counts, such as tokens that are all ignored.
        mean: Tensor = (values * weight).sum() / weight.sum().clamp(min=torch.finfo(values.dtype).tiny)
        return mean
    mean = (found * weight).sum() / weight.sum()
    return mean


def mean_losses(
    objective: Objective, outputs: Tensor, y: Tensor, weight: Tensor, extra: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The losses (K,) of K clients' batches: every tensor has a leading axis K."""
    if isinstance(objective, WithLoss):
        term = mean_losses(objective.term, outputs, y, weight, extra)
        return mean_losses(objective.loss, outputs, y, weight) + term
    if extra or couples_samples(objective):
        each: Tensor = vmap(lambda o, t, w, e: mean_loss(objective, o, t, w, e))(outputs, y, weight, dict(extra or {}))
        return each
    found = objective(outputs.flatten(0, 1), y.flatten(0, 1))
    shape = weight.shape
    if isinstance(found, tuple):
        values, counts = (part.view(shape) for part in found)
        weight = weight * counts
        each = (values * weight).sum(1) / weight.sum(1).clamp(min=torch.finfo(values.dtype).tiny)
        return each
    each = (found.view(shape) * weight).sum(1) / weight.sum(1)
    return each


def weighted(values: Tensor, weight: Tensor) -> Tensor:
    """Values, or several for each sample, times the weights of samples."""
    return values * weight.reshape(*weight.shape, *(1 for _ in range(values.dim() - weight.dim())))
