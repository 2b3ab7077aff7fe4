"""Times to an event, some of them censored: labels (N, 2), the time and 1 where the event came, 0 where it had not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError, DataError, ModelError
from personafl.metrics.ranking import concordance_index
from personafl.tasks.base import LearningTask, Metric, Objective, mixed_log_odds
from personafl.tasks.checks import constant


class PartialLikelihood:
    """Cox's negative log partial likelihood, divided by the number of events: samples are coupled by who is at risk.

    Only samples of the same batch are compared. It compares all pairs, so a batch of n takes n² numbers.
    """

    couples_samples = True

    def __init__(self, ties: str) -> None:
        self.ties = ties

    def __call__(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        risk = outputs.reshape(len(y))
        weight = torch.ones_like(risk) if weight is None else weight
        time, event = y[:, 0], y[:, 1] * weight
        # What is padding may hold anything: it is at nobody's risk, and must not be where 0 times infinity is.
        risk = torch.where(weight > 0, risk, 0.0)
        top = risk.detach().amax()
        size = weight * (risk - top).exp()
        at_risk = (time.unsqueeze(0) >= time.unsqueeze(1)) * size
        whole = at_risk.sum(1)
        if self.ties == "efron":
            tied = (time.unsqueeze(0) == time.unsqueeze(1)) * event
            before = torch.ones_like(tied).tril(-1) * tied
            whole = whole - before.sum(1) / tied.sum(1).clamp(min=1) * (tied * size).sum(1)
        term = risk - top - torch.where(event > 0, whole, 1.0).log()
        return -(event * term).sum() / event.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Survival(LearningTask):
    """What tasks about times have in common. Metric: `concordance`, Harrell's index."""

    def known(self) -> dict[str, Metric]:
        return {
            "concordance": Metric(name="concordance", better=1, title="concordance", low=0.0, high=1.0,
                                  function=self.concordance, per="client")
        }  # fmt: skip

    def concordance(self, outputs: NDArray[Any], y: NDArray[Any]) -> float:
        """Harrell's index of one client's samples."""
        return concordance_index(self.risk(outputs), y[:, 0], y[:, 1])

    def risk(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """A number for each sample that is higher where the event is expected earlier."""
        raise NotImplementedError

    def check_labels(self, y: Tensor) -> None:
        if y.dim() != 2 or y.shape[1] != 2:
            raise DataError(
                f"task {self.name!r} takes labels of shape (N, 2), time and event, these have shape {tuple(y.shape)}"
            )
        if not bool(((y[:, 1] == 0) | (y[:, 1] == 1)).all()):
            raise DataError(f"task {self.name!r}: the second column of labels must be 1 (event) or 0 (censored)")
        if bool((y[:, 0] < 0).any()):
            raise DataError(f"task {self.name!r}: there are times below 0, such as {float(y[:, 0].min()):g}")


@dataclass(frozen=True, kw_only=True)
class Cox(Survival):
    """Cox's proportional hazards: the one output is the log-risk, its loss the partial likelihood within a batch.

    Take `batch_size = 0`, all of a client's data at a step, for the likelihood of the client; with less, the risk sets
    are those of the batch.

    Parameters
    ----------
    ties
        How events at the same time are treated: `efron` or `breslow`.
    """

    ties: Literal["efron", "breslow"] = "efron"

    name: ClassVar[str] = "cox"
    about: ClassVar[str] = "survival: Cox's proportional hazards"
    gives: ClassVar[str] = "the logarithm of the risk, relative to others"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ties not in ("efron", "breslow"):
            raise ConfigError(f"task.ties = {self.ties!r}: must be efron or breslow")

    @property
    def objective(self) -> Objective:
        return PartialLikelihood(self.ties)

    @property
    def loss_name(self) -> str:
        return f"partial_likelihood_{self.ties}"

    def risk(self, outputs: NDArray[Any]) -> NDArray[Any]:
        return outputs.reshape(len(outputs))

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return 1

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.numel() != len(y):
            raise ModelError(f"task 'cox' needs one output, the log-risk; outputs have shape {tuple(outputs.shape)}")


@dataclass(frozen=True, kw_only=True)
class Hazard(Survival):
    """Discrete-time hazards: time is cut into intervals, an output for each is the log-odds of an event in it.

    Parameters
    ----------
    bins
        The ends of the intervals, rising; the last interval also takes what comes later. Left out, `count` quantiles
        of the times of events in all training data.
    """

    bins: tuple[float, ...] = ()
    count: int = 10

    name: ClassVar[str] = "hazard"
    about: ClassVar[str] = "survival: discrete-time hazards"
    gives: ClassVar[str] = "the log-odds of an event in each interval of time, for who survived those before"

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.bins) != sorted(set(self.bins)):
            raise ConfigError(f"task.bins = {list(self.bins)!r}: must be rising")
        if self.count < 1:
            raise ConfigError(f"task.count = {self.count!r}: must be at least 1")

    @property
    def objective(self) -> Objective:
        return self.loss

    @property
    def loss_name(self) -> str:
        return "hazard_likelihood"

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """−log of the likelihood of each sample: hazards survived, and the one at which the event came."""
        ends, time, event = constant(self.bins, outputs), y[:, :1].to(outputs.dtype), y[:, 1:].to(outputs.dtype)
        place = torch.arange(len(self.bins), device=outputs.device)
        # The interval of an event is the first that ends at or after it; censored ones have survived what ended.
        came = (ends < time).sum(1, keepdim=True).clamp(max=len(self.bins) - 1)
        survived = torch.where(event > 0, place < came, ends <= time)
        here = (event > 0) & (place == came)
        each = F.softplus(outputs) * survived + F.softplus(-outputs) * here
        return each.sum(1)

    def risk(self, outputs: NDArray[Any]) -> NDArray[Any]:
        surviving = np.cumsum(-np.logaddexp(0, outputs.astype(np.float64)), 1)
        return np.asarray(-np.exp(surviving).sum(1))

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return mixed_log_odds(outputs, weights)

    def fitted(self, labels: Callable[[], Tensor]) -> Hazard:
        if self.bins:
            return self
        y = labels()
        times = y[y[:, 1] > 0, 0].double()
        if not len(times):
            raise DataError(
                "task 'hazard' takes its bins from the times of events, and there is no event: give task.bins"
            )
        at = torch.linspace(0, 1, self.count + 1, dtype=torch.float64)[1:]
        return replace(self, bins=tuple(torch.quantile(times, at).unique().tolist()))

    def outputs(self, y: Tensor, classes: int | None) -> int:
        if not self.bins:
            raise ConfigError("task 'hazard' takes its bins from training data, which nobody has here: give task.bins")
        return len(self.bins)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if tuple(outputs.shape) != (len(y), len(self.bins)):
            raise ModelError(
                f"task 'hazard' has {len(self.bins)} intervals and needs as many outputs; outputs have shape "
                f"{tuple(outputs.shape)}"
            )
