"""Tasks whose labels are classes: one a sample, one a pixel, one a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError, ModelError
from personafl.metrics.ranking import area_under_curve
from personafl.tasks.base import LearningTask, Metric, Objective, Sums
from personafl.tasks.checks import check_positive, constant, require_classes, require_logits
from personafl.tasks.overlaps import f1, jaccard, overlaps

IGNORED = -100
"""The label of what does not count, as in torch."""
SHARE: dict[str, Any] = {"better": 1, "unit": "%", "scale": 100.0, "digits": 2, "low": 0.0, "high": 1.0}
"""What metrics are that are shares, written in percent."""


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
        """Of each sample and class: hits, answers and truths, see `tasks.overlaps`."""
        logits, keep, target = self._split(outputs, y)
        classes = torch.arange(logits.shape[-1], device=y.device)
        said, true = ((each.unsqueeze(-1) == classes) & keep.unsqueeze(-1) for each in (logits.argmax(-1), target))
        return overlaps(said, true)

    def counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many labels of each sample count."""
        return _per_sample(self._split(outputs, y)[1])

    def right(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many labels of each sample are right."""
        logits, keep, target = self._split(outputs, y)
        return _per_sample((logits.argmax(-1) == target) & keep)

    def surprise(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The negative log-probability of what came, without class weights and smoothing."""
        logits, keep, target = self._split(outputs, y)
        nll = torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return _per_sample(nll * keep)

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return classes or int(y.max()) + 1

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The logarithm of the mean of the models' probabilities."""
        axis = self.class_axis if self.class_axis < 0 else self.class_axis + 1
        log_weights = weights.log().reshape(*weights.shape, *(1 for _ in outputs.shape[2:]))
        return torch.logsumexp(log_weights + outputs.log_softmax(axis), 0)

    def check_labels(self, y: Tensor) -> None:
        require_classes(self.name, y, self.axes, self.ignore_index)

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
                name="accuracy", title="accuracy", function=_accuracy, per="sums", parts={"correct": correct}, **SHARE
            ),
            "f1": Metric(name="f1", title="F1", function=f1, per="sums", parts={"overlaps": self.overlaps}, **SHARE),
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
        """The label that does not count."""
        return self.ignore

    def known(self) -> dict[str, Metric]:
        return {
            "token_accuracy": self._accuracy("token_accuracy", "token accuracy"),
            "f1": Metric(name="f1", title="F1", function=f1, per="sums", parts={"overlaps": self.overlaps}, **SHARE),
        }

    def _accuracy(self, name: str, title: str) -> Metric:
        parts = {"right": self.right, "counted": self.counted}
        return Metric(name=name, title=title, function=_share_right, per="sums", parts=parts, **SHARE)


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
            "iou": Metric(name="iou", title="mean IoU", function=jaccard, per="sums", parts=parts, **SHARE),
            "dice": Metric(name="dice", title="Dice", function=f1, per="sums", parts=parts, **SHARE),
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
        require_classes(self.name, y, 1 if y.dim() == 1 else 2, self.ignore)


def _perplexity(sums: Sums, n: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(_of_counted(sums, "surprise")))
