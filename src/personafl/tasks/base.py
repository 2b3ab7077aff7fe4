"""What a task is: a loss, metrics of which the first ranks, and checks of labels and outputs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError
from personafl.metrics.measures import Measure, ranking
from personafl.registry import described, require_known_name

Objective = Callable[..., Any]
"""`(outputs, y, **extra)` to a value for each sample; see `personafl.kernels.losses` for what else it may give."""
Sums = Mapping[str, NDArray[np.float64]]
"""Sums over each client's samples: the first axis are the clients."""

_NAME = re.compile(r"(?!val_|held_)[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Metric(Measure):
    """A measure, and how a client's value is computed.

    Parameters
    ----------
    function
        Of outputs and labels. `per="sample"`: gives one value per sample, and the client's value is their mean.
        `per="client"`: takes NumPy arrays with all of a client's outputs and labels, and gives the client's value, or
        NaN where it has none. `per="sums"`: takes the sums over samples of `parts`, by name an array with a row for
        each client, and the numbers of samples, and gives the values.
    parts
        What is summed over samples: functions of outputs and labels that give a value, or several, for each sample.
    better
        1 where larger is better, −1 where smaller is. Left 0, it is shown and nobody is ranked by it.

    Examples
    --------
    >>> within = Metric(name="within_1", function=lambda outputs, y: ((outputs - y).abs() < 1).float(), better=1)
    >>> within.label, within.better
    ('within_1', 1)
    """

    function: Callable[..., Any]
    per: Literal["sample", "client", "sums"] = "sample"
    parts: Mapping[str, Objective] = field(default_factory=dict)
    better: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in ("loss", "correct"):
            raise ConfigError(
                f"a metric cannot be called {self.name!r}: take letters, digits and _, not loss or correct, and not "
                "val_ or held_ at the beginning"
            )

    @property
    def summed(self) -> dict[str, Objective]:
        """What evaluation has to sum for it."""
        return {self.name: self.function} if self.per == "sample" else dict(self.parts)

    def of_sums(self, sums: Sums, n: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each client's value from sums over its samples; NaN without samples."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = sums[self.name] / n if self.per == "sample" else self.function(sums, n)
        return np.where(n > 0, values, np.nan)

    def of_outputs(self, outputs: Tensor, y: Tensor) -> float:
        """A client's value from all of its outputs."""
        return float(self.function(outputs.cpu().numpy(), y.cpu().numpy())) if len(y) else np.nan


@dataclass(frozen=True, kw_only=True)
class LearningTask(ABC):
    """What models are trained for: a frozen dataclass of its settings, the `[task]` table of a config.

    Parameters
    ----------
    metrics
        Which of the task's metrics are measured; the first ranks models. Left out, the usual ones.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    classification: ClassVar[bool] = False
    """Whether a sample has one class, and outputs are the logits of classes."""

    has_classes: ClassVar[bool] = False
    """Whether labels are classes, of samples or of parts of them."""

    gives: ClassVar[str] = "predicted values"
    """What the model's outputs mean, for whoever gets an exported one."""
    output_axes: ClassVar[tuple[str, ...]] = ("outputs",)
    """The axes of outputs behind that of samples."""

    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.metrics:
            require_known_name("task.metrics", name, tuple(self.known()))
        if len(set(self.metrics)) < len(self.metrics):
            raise ConfigError(f"task.metrics = {list(self.metrics)!r}: names a metric twice")

    # --- what a task says -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The loss of each sample, or what else `personafl.kernels.losses` takes."""

    @property
    @abstractmethod
    def loss_name(self) -> str:
        """What run.toml calls the loss."""

    @abstractmethod
    def known(self) -> dict[str, Metric]:
        """The metrics that it has, by name."""

    @property
    def usual(self) -> tuple[str, ...]:
        """The metrics that are measured where nothing is said."""
        return tuple(self.known())

    def sentence(self) -> str:
        """What was taken, for the log."""
        listed = [
            f"{m.label}{ {1: ' (more is better)', -1: ' (less is better)'}.get(m.better, '') }" for m in self.measures
        ]
        return f"task {self.settings['name']}: loss {self.loss_name}, metrics {', '.join(listed) or 'none'}"

    def outputs(self, y: Tensor, classes: int | None) -> int:
        """How many outputs a model by name gets."""
        return classes or int(np.prod(y.shape[1:]))

    def fitted(self, labels: Callable[[], Tensor]) -> LearningTask:
        """The task with what it takes from the training labels."""
        return self

    @abstractmethod
    def check_labels(self, y: Tensor) -> None:
        """Raise a DataError where labels are none of this task's."""

    @abstractmethod
    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        """Raise a ModelError where outputs do not fit labels."""

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The prediction of several models together, as the outputs of one.

        Parameters
        ----------
        outputs
            Of F models for N samples (F, N, …).
        weights
            Of each model for each sample (F, N), or for all samples (F, 1); they sum to 1 over models.
        """
        return (outputs * weights.reshape(*weights.shape, *(1 for _ in outputs.shape[2:]))).sum(0)

    # --- what follows -----------------------------------------------------------------------------------------

    @cached_property
    def measures(self) -> tuple[Metric, ...]:
        """The metrics that are measured, in their order."""
        known = self.known()
        return tuple(known[name] for name in self.metrics or self.usual)

    @property
    def primary(self) -> Measure:
        """The measure that ranks: the first metric, or the loss where there is none."""
        return ranking(self.measures)

    @property
    def summed(self) -> dict[str, Objective]:
        """What evaluation sums over samples, beside the loss."""
        return {name: part for metric in self.measures for name, part in metric.summed.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        """What evaluations say of a client, beside its loss. Of classifications they count the right answers."""
        return tuple(column_of(metric) for metric in self.measures)

    @property
    def settings(self) -> dict[str, Any]:
        """What run.toml says of it."""
        return described(self)

    def with_own(
        self, loss: Objective | None, metrics: Mapping[str, Any] | Sequence[Metric] | None = None
    ) -> LearningTask:
        """The same with somebody's own loss in place of the task's, and more metrics beside the task's."""
        more = own_metrics(metrics)
        if loss is None and not more:
            return self
        return OwnTask(task=self, own_loss=loss, more=more)


def mixed_log_odds(outputs: Tensor, weights: Tensor) -> Tensor:
    """The log-odds of the mean probability, from the log-odds of F models (F, N, …) and weights (F, N)."""
    log_weights = weights.log().reshape(*weights.shape, *(1 for _ in outputs.shape[2:]))
    there, not_there = (torch.logsumexp(log_weights + F.logsigmoid(each), 0) for each in (outputs, -outputs))
    return there - not_there


def column_of(measure: Measure) -> str:
    """What the clients' table calls a measure, behind `personal_` and `global_`."""
    return "correct" if measure.name == "accuracy" else measure.name


def own_metrics(metrics: Mapping[str, Any] | Sequence[Metric] | None) -> tuple[Metric, ...]:
    """Somebody's metrics: `{"name": function}`, with `Metric`s in place of functions or as a list."""
    if not metrics:
        return ()
    if not isinstance(metrics, Mapping):
        return tuple(metrics)
    return tuple(
        replace(given, name=name) if isinstance(given, Metric) else Metric(name=name, function=given)
        for name, given in metrics.items()
    )


@dataclass(frozen=True, kw_only=True)
class OwnTask(LearningTask):
    """A task with somebody's own loss, and metrics beside those of the task. `task` is None for a loss alone."""

    name: ClassVar[str] = "own"
    about: ClassVar[str] = "a loss and metrics of your own"

    task: LearningTask | None = None
    own_loss: Objective | None = None
    more: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        if self.task is None and self.own_loss is None:
            raise ConfigError("a task of your own needs a loss: a function of outputs and y, a value per sample")
        super().__post_init__()
        if twice := [m.name for m in self.more if self.task is not None and m.name in self.task.known()]:
            raise ConfigError(f"the task has a metric {twice[0]!r} already: call yours otherwise")

    @property
    def classification(self) -> bool:  # type: ignore[override]
        """Whether the task beside it is one of classes of samples."""
        return self.task is not None and self.task.classification

    @property
    def has_classes(self) -> bool:  # type: ignore[override]
        """Whether labels may be classes: they may where there is no task beside it."""
        return self.task is None or self.task.has_classes

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return super().outputs(y, classes) if self.task is None else self.task.outputs(y, classes)

    @property
    def objective(self) -> Objective:
        if self.own_loss is not None:
            return self.own_loss
        assert self.task is not None
        return self.task.objective

    @property
    def loss_name(self) -> str:
        return "custom" if self.own_loss is not None or self.task is None else self.task.loss_name

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": self.name} if self.task is None else self.task.settings

    def known(self) -> dict[str, Metric]:
        theirs = {} if self.task is None else {metric.name: metric for metric in self.task.measures}
        return theirs | {metric.name: metric for metric in self.more}

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return super().mixed(outputs, weights) if self.task is None else self.task.mixed(outputs, weights)

    def fitted(self, labels: Callable[[], Tensor]) -> LearningTask:
        return self if self.task is None else replace(self, task=self.task.fitted(labels))

    def check_labels(self, y: Tensor) -> None:
        if self.task is not None:
            self.task.check_labels(y)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if self.task is not None:
            self.task.check_outputs(outputs, y)
