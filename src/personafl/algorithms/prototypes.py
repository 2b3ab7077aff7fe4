"""Prototypes: the means of features over the samples of a class, for algorithms that send them or are drawn to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personafl.algorithms.base import JobInfo
from personafl.errors import ConfigError, ModelError


@dataclass(frozen=True)
class ByClass:
    """Sums over the samples of each class, divided by the number of all samples, as columns of one tensor (C, d + 1).

    Of the features, and of 1: the class's share of the samples. A function for `ctx.training.mean`.

    Parameters
    ----------
    classes, width
        C and d.
    squares
        Whether a last column has the sum of the features' squared lengths.
    """

    classes: int
    width: int
    squares: bool = False

    uses_features: ClassVar[bool] = True
    couples_samples: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, y: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        check_width(features, self.width)
        belongs = F.one_hot(y, self.classes).to(features) * (weight / weight.sum().clamp(min=1)).unsqueeze(-1)
        columns = [features, torch.ones_like(features[..., :1])]
        if self.squares:
            columns.append(features.square().sum(-1, keepdim=True))
        return belongs.transpose(-1, -2) @ torch.cat(columns, -1)


@dataclass(frozen=True)
class Alignment:
    """λ/d ‖f − c_y‖² for each sample; nothing where nobody has sent a prototype c_y."""

    lam: float
    width: int

    uses_features: ClassVar[bool] = True
    added_to_loss: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, y: Tensor, features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
        check_width(features, self.width)
        distance = (features - prototypes[y]).square().mean(-1)
        return self.lam * known[y] * distance


def check_width(features: Tensor, width: int) -> None:
    """Refuse features of another number than the model's layers told."""
    if features.shape[-1] != width:
        raise ModelError(
            f"the model gives {features.shape[-1]} features a sample, but {width} go through the layer that was taken "
            "for them: name the layer as local.features"
        )


def classes_and_width(name: str, job: JobInfo) -> tuple[int, int]:
    """How many classes and features there are, from the layers of the model.

    Raises
    ------
    ConfigError
        The task has no classes, or features do not go into or come out of a linear layer.
    """
    if not job.classification:
        raise ConfigError(f"{name} takes the mean of features over each class: it needs a classification task")
    weights = {
        piece.removesuffix(".weight") if "." in piece else "": shape
        for (piece, _), kind, shape in zip(job.layers, job.kinds, job.shapes, strict=True)
        if kind.endswith("Linear") and len(shape) == 2 and piece.endswith("weight")
    }
    last, named = job.layers[-1][0].rpartition(".")[0], job.local.features
    if last not in weights:
        raise ConfigError(f"{name}: the last layer of the model must be linear, from features to classes")
    classes, width = weights[last]
    if named:
        layer, _, side = named.rpartition(".") if named.endswith((".input", ".output")) else (named, "", "output")
        if layer not in weights:
            raise ConfigError(
                f"local.features = {named!r}: {name} must know the number of features, so name a linear layer, by its "
                'output ("fc1") or its input ("fc2.input")'
            )
        width = weights[layer][1 if side == "input" else 0]
    return classes, width
