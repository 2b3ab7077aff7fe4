"""Several labels a sample, each there or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError, DataError, ModelError
from personafl.metrics.ranking import area_under_curve, average_precision, by_label, mean_over_labels
from personafl.tasks.base import LearningTask, Metric, Objective, Sums, mixed_log_odds
from personafl.tasks.checks import check_positive, constant
from personafl.tasks.classes import SHARE
from personafl.tasks.overlaps import f1, overlaps


@dataclass(frozen=True, kw_only=True)
class Multilabel(LearningTask):
    """Several labels a sample, each there or not: labels 0 and 1 of shape (N, d), outputs are their log-odds (N, d).

    Metrics: `auc`, `average_precision` and `f1`, means over labels; `subset_accuracy`, all labels of a sample right.

    Parameters
    ----------
    pos_weight
        How much a label that is there counts against one that is not, for each label, as in
        `torch.nn.BCEWithLogitsLoss`.
    labels
        Names of the labels, in their order: `auc_NAME`, `average_precision_NAME` and `f1_NAME` are measured too.
    """

    pos_weight: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    name: ClassVar[str] = "multilabel"
    about: ClassVar[str] = "several labels a sample, each there or not"
    gives: ClassVar[str] = "the log-odds of each label"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("task.pos_weight", self.pos_weight)

    @property
    def objective(self) -> Objective:
        return self.loss

    @property
    def loss_name(self) -> str:
        return "binary_cross_entropy"

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy of each sample, the mean over its labels."""
        weight = constant(self.pos_weight, outputs) if self.pos_weight else None
        target = y.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="none", pos_weight=weight).mean(1)

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return mixed_log_odds(outputs, weights)

    def known(self) -> dict[str, Metric]:
        found = {
            "auc": self._scores("auc", "AUC", area_under_curve),
            "average_precision": self._scores("average_precision", "average precision", average_precision),
            "f1": self._f1("f1", "F1", f1),
            "subset_accuracy": Metric(name="subset_accuracy", title="subset accuracy", function=_all_right, **SHARE),
        }
        for place, label in enumerate(self.labels):
            found |= {
                f"auc_{label}": self._scores(f"auc_{label}", f"AUC {label}", area_under_curve, place),
                f"average_precision_{label}": self._scores(
                    f"average_precision_{label}", f"average precision {label}", average_precision, place
                ),
                f"f1_{label}": self._f1(f"f1_{label}", f"F1 {label}", _F1OfLabel(place)),
            }
        return found

    def _scores(self, name: str, title: str, score: Any, place: int | None = None) -> Metric:
        function = _OfLabels(score, place)
        return Metric(name=name, title=title, function=function, per="client", better=1, low=0.0, high=1.0)

    def _f1(self, name: str, title: str, function: Any) -> Metric:
        return Metric(name=name, title=title, function=function, per="sums", parts={"overlaps": _labels}, **SHARE)

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return int(np.prod(y.shape[1:]))

    def check_labels(self, y: Tensor) -> None:
        if y.dim() != 2 or not bool(((y == 0) | (y == 1)).all()):
            raise DataError(
                f"task 'multilabel' takes labels 0 and 1 of shape (N, labels), these have shape {tuple(y.shape)}"
                f"{'' if y.dim() != 2 else f' and values up to {float(y.max()):g}'}: name another [task]"
            )
        for key, given in (("labels", self.labels), ("pos_weight", self.pos_weight)):
            if given and len(given) != y.shape[1]:
                raise ConfigError(f"task.{key} has {len(given)} entries, the data has {y.shape[1]} labels")

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.shape != y.shape:
            raise ModelError(
                f"the model's outputs have shape {tuple(outputs.shape)} for labels of shape {tuple(y.shape)}: task "
                "'multilabel' needs one output for each label"
            )


@dataclass(frozen=True)
class _OfLabels:
    """A score of one label, or its mean over labels."""

    score: Any
    place: int | None

    def __call__(self, outputs: NDArray[Any], y: NDArray[Any]) -> float:
        if self.place is not None:
            return float(self.score(outputs[:, self.place], y[:, self.place]))
        return mean_over_labels(by_label(self.score, outputs, y))


@dataclass(frozen=True)
class _F1OfLabel:
    place: int

    def __call__(self, sums: Sums, n: Any) -> NDArray[np.float64]:
        return f1({"overlaps": sums["overlaps"][:, :, self.place : self.place + 1]}, n)


def _labels(outputs: Tensor, y: Tensor) -> Tensor:
    return overlaps(outputs > 0, y > 0)


def _all_right(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs > 0) == (y > 0)).all(1).float()
