"""Tasks whose labels are classes: one a sample, one a pixel, one a token; and several labels a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError, DataError, ModelError
from personafl.metrics.ranking import area_under_curve, average_precision, by_label, mean_over_labels
from personafl.tasks.base import (
    LearningTask,
    Metric,
    Objective,
    Sums,
    check_positive,
    constant,
    require_classes,
    require_logits,
)

IGNORED = -100
"""The label of what does not count, as in torch."""
_SHARE: dict[str, Any] = {"better": 1, "unit": "%", "scale": 100.0, "digits": 2, "low": 0.0, "high": 1.0}


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample; classes are the last axis, further axes are averaged."""
    if outputs.dim() == 2:
        return F.cross_entropy(outputs, y, reduction="none")
    value = torch.logsumexp(outputs, -1) - outputs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return value.flatten(1).mean(1)


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0."""
    hit = (outputs.argmax(-1) == y).float()
    return hit if hit.dim() == 1 else hit.flatten(1).mean(1)


# --- what is summed over samples ------------------------------------------------------------------------------


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


def _of_counted(sums: Sums, part: str) -> NDArray[np.float64]:
    """The mean over what counts, such as tokens; NaN where nothing does."""
    counted = sums["counted"]
    mean: NDArray[np.float64] = np.divide(sums[part], counted, out=np.full(len(counted), np.nan), where=counted > 0)
    return mean


def _share_right(sums: Sums, n: Any) -> NDArray[np.float64]:
    return _of_counted(sums, "right")


# --- one class a sample, a token, a pixel ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Classes(LearningTask):
    """What tasks with classes have in common.

    Parameters
    ----------
    class_weights
        How much each class counts in the loss, as `weight` of `torch.nn.CrossEntropyLoss`; left out, all the same.
    label_smoothing
        The share of the label that is spread over all classes.
    """

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    has_classes: ClassVar[bool] = True
    axes: ClassVar[int]
    """Of labels."""
    class_axis: ClassVar[int] = -1
    ignore_index: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("task.class_weights", self.class_weights)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"task.label_smoothing = {self.label_smoothing!r}: must be in [0, 1)")

    @property
    def objective(self) -> Objective:
        return self.loss

    @property
    def loss_name(self) -> str:
        return "cross_entropy"

    def loss(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of what counts in each sample, and how much that is."""
        logits, keep, target = self._split(outputs, y)
        log_p = logits.log_softmax(-1)
        loss = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        weights = constant(self.class_weights, log_p) if self.class_weights else None
        counts = keep.to(log_p.dtype) if weights is None else weights[target] * keep
        loss = loss * counts
        if self.label_smoothing:
            spread = -(log_p if weights is None else log_p * weights).mean(-1) * keep
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * spread
        total, counted = (each if each.dim() == 1 else each.flatten(1).sum(1) for each in (loss, counts))
        return total / counted.clamp(min=torch.finfo(total.dtype).tiny), counted

    def _split(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits with the classes last, what counts, and labels that can be looked up everywhere."""
        logits = outputs.movedim(self.class_axis, -1) if self.class_axis != -1 else outputs
        keep = torch.ones_like(y, dtype=torch.bool) if self.ignore_index is None else y != self.ignore_index
        return logits, keep, torch.where(keep, y, 0)

    def overlaps(self, outputs: Tensor, y: Tensor) -> Tensor:
        logits, keep, target = self._split(outputs, y)
        classes = torch.arange(logits.shape[-1], device=y.device)
        said, true = ((each.unsqueeze(-1) == classes) & keep.unsqueeze(-1) for each in (logits.argmax(-1), target))
        return overlaps(said, true)

    def counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        return _per_sample(self._split(outputs, y)[1])

    def right(self, outputs: Tensor, y: Tensor) -> Tensor:
        logits, keep, target = self._split(outputs, y)
        return _per_sample((logits.argmax(-1) == target) & keep)

    def surprise(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The negative log-probability of what came, without class weights and smoothing."""
        logits, keep, target = self._split(outputs, y)
        nll = torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return _per_sample(nll * keep)

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return classes or int(y.max()) + 1

    def check_labels(self, y: Tensor) -> None:
        require_classes(self, y, self.axes, self.ignore_index)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        require_logits(outputs, y, tuple(y.shape), self.class_axis % (y.dim() + 1))
        classes = outputs.shape[self.class_axis]
        if self.class_weights and len(self.class_weights) != classes:
            raise ModelError(f"task.class_weights has {len(self.class_weights)} weights for {classes} classes")


def _per_sample(values: Tensor) -> Tensor:
    values = values.double()
    return values if values.dim() == 1 else values.flatten(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class Classification(Classes):
    """One class a sample: labels (N,), outputs (N, classes).

    Metrics: `accuracy`; and where they are asked for `f1` (the mean over classes) and, of two classes, `auc`.

    Examples
    --------
    >>> task = Classification(label_smoothing=0.1, metrics=("f1", "accuracy"))
    >>> task.primary.label, [metric.name for metric in task.measures]
    ('F1', ['f1', 'accuracy'])
    """

    name: ClassVar[str] = "classification"
    about: ClassVar[str] = "one class a sample"
    classification: ClassVar[bool] = True
    gives: ClassVar[str] = "one unnormalized log-probability for each class"
    axes: ClassVar[int] = 1

    @property
    def objective(self) -> Objective:
        return self.loss if self.class_weights or self.label_smoothing else cross_entropy

    def known(self) -> dict[str, Metric]:
        return {
            "accuracy": Metric(
                name="accuracy", title="accuracy", function=_accuracy, per="sums", parts={"correct": correct}, **_SHARE
            ),
            "f1": Metric(name="f1", title="F1", function=f1, per="sums", parts={"overlaps": self.overlaps}, **_SHARE),
            "auc": Metric(name="auc", title="AUC", function=_auc_of_two, per="client", better=1, low=0.0, high=1.0),
        }

    @property
    def usual(self) -> tuple[str, ...]:
        return ("accuracy",)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        super().check_outputs(outputs, y)
        if "auc" in self.metrics and outputs.shape[-1] != 2:
            raise ModelError(f"the metric auc is for two classes, the model has {outputs.shape[-1]} outputs")


def _accuracy(sums: Sums, n: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums["correct"] / n


def _auc_of_two(outputs: NDArray[Any], y: NDArray[Any]) -> float:
    return area_under_curve(outputs[:, 1] - outputs[:, 0], y)


@dataclass(frozen=True, kw_only=True)
class Tagging(Classes):
    """A class for each token: labels (N, L), outputs (N, L, classes). Tokens with the label `ignore` do not count.

    Metrics: `token_accuracy`, `f1` (the mean over classes).
    """

    ignore: int = IGNORED

    name: ClassVar[str] = "tagging"
    about: ClassVar[str] = "sequence labelling: a class for each token"
    gives: ClassVar[str] = "one unnormalized log-probability for each class, at each token"
    output_axes: ClassVar[tuple[str, ...]] = ("length", "outputs")
    axes: ClassVar[int] = 2

    @property
    def ignore_index(self) -> int:  # type: ignore[override]
        return self.ignore

    def known(self) -> dict[str, Metric]:
        return {
            "token_accuracy": self._accuracy("token_accuracy", "token accuracy"),
            "f1": Metric(name="f1", title="F1", function=f1, per="sums", parts={"overlaps": self.overlaps}, **_SHARE),
        }

    def _accuracy(self, name: str, title: str) -> Metric:
        parts = {"right": self.right, "counted": self.counted}
        return Metric(name=name, title=title, function=_share_right, per="sums", parts=parts, **_SHARE)


@dataclass(frozen=True, kw_only=True)
class Segmentation(Tagging):
    """A class for each pixel: labels (N, H, W), outputs (N, classes, H, W), as torch has them.

    Metrics: `iou` (intersection over union, the mean over classes that occur), `dice`, `pixel_accuracy`.
    """

    name: ClassVar[str] = "segmentation"
    about: ClassVar[str] = "a class for each pixel"
    gives: ClassVar[str] = "one unnormalized log-probability for each class, at each pixel"
    output_axes: ClassVar[tuple[str, ...]] = ("outputs", "height", "width")
    axes: ClassVar[int] = 3
    class_axis: ClassVar[int] = 1

    def known(self) -> dict[str, Metric]:
        parts = {"overlaps": self.overlaps}
        return {
            "iou": Metric(name="iou", title="mean IoU", function=jaccard, per="sums", parts=parts, **_SHARE),
            "dice": Metric(name="dice", title="Dice", function=f1, per="sums", parts=parts, **_SHARE),
            "pixel_accuracy": self._accuracy("pixel_accuracy", "pixel accuracy"),
        }


@dataclass(frozen=True, kw_only=True)
class NextToken(Tagging):
    """The next token at each place: labels (N, L), or (N,) where only the last is asked for; outputs (…, tokens).

    Metrics: `perplexity`, `token_accuracy`.
    """

    name: ClassVar[str] = "next-token"
    about: ClassVar[str] = "a language model: the next token at each place"
    gives: ClassVar[str] = "one unnormalized log-probability for each next token, at each place"

    def known(self) -> dict[str, Metric]:
        parts = {"surprise": self.surprise, "counted": self.counted}
        return {
            "perplexity": Metric(
                name="perplexity", better=-1, title="perplexity", digits=3, pool="logs", low=1.0,
                function=_perplexity, per="sums", parts=parts,
            ),
            "token_accuracy": self._accuracy("token_accuracy", "token accuracy"),
        }  # fmt: skip

    def check_labels(self, y: Tensor) -> None:
        require_classes(self, y, 1 if y.dim() == 1 else 2, self.ignore)


def _perplexity(sums: Sums, n: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(_of_counted(sums, "surprise")))


# --- several labels a sample ----------------------------------------------------------------------------------


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
        weight = constant(self.pos_weight, outputs) if self.pos_weight else None
        target = y.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="none", pos_weight=weight).mean(1)

    def known(self) -> dict[str, Metric]:
        found = {
            "auc": self._scores("auc", "AUC", area_under_curve),
            "average_precision": self._scores("average_precision", "average precision", average_precision),
            "f1": self._f1("f1", "F1", f1),
            "subset_accuracy": Metric(name="subset_accuracy", title="subset accuracy", function=_all_right, **_SHARE),
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
        return Metric(name=name, title=title, function=function, per="sums", parts={"overlaps": _labels}, **_SHARE)

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
