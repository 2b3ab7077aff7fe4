"""Numbers as targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from personafl.errors import ConfigError, DataError, ModelError
from personafl.tasks.base import LearningTask, Metric, Objective, Sums


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared error of each sample, averaged over the outputs."""
    return like(outputs, y).sub(y).square().flatten(1).mean(1) if y.dim() > 1 else (like(outputs, y) - y).square()


def absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Absolute error of each sample, averaged over the outputs."""
    error = (like(outputs, y) - y).abs()
    return error if error.dim() == 1 else error.flatten(1).mean(1)


def like(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs of shape (n, 1) meet targets of shape (n,) without broadcasting to (n, n)."""
    return outputs if outputs.shape == y.shape else outputs.reshape(y.shape)


@dataclass(frozen=True, kw_only=True)
class Regression(LearningTask):
    """Numbers as targets, (N,) or (N, d); outputs have as many.

    Metrics: `rmse`, `mae`, `r2`; of quantiles also `pinball`, the loss itself. The first is the one that the loss
    aims at.

    Parameters
    ----------
    loss
        `squared`, `absolute`, `huber` (squared up to `delta`, then absolute) or `quantile` (the pinball loss, whose
        best answer is the quantile `q`).

    Examples
    --------
    >>> Regression(loss="absolute").primary.label
    'MAE'
    """

    loss: Literal["squared", "absolute", "huber", "quantile"] = "squared"
    delta: float = 1.0
    q: float = 0.5

    name: ClassVar[str] = "regression"
    about: ClassVar[str] = "numbers as targets"

    def __post_init__(self) -> None:
        if self.loss not in ("squared", "absolute", "huber", "quantile"):
            raise ConfigError(f"task.loss = {self.loss!r}: must be squared, absolute, huber or quantile")
        if not self.delta > 0:
            raise ConfigError(f"task.delta = {self.delta!r}: must be above 0")
        if not 0 < self.q < 1:
            raise ConfigError(f"task.q = {self.q!r}: must be in (0, 1)")
        super().__post_init__()

    @property
    def objective(self) -> Objective:
        known = {"squared": squared_error, "absolute": absolute_error, "huber": self.huber, "quantile": self.pinball}
        return known[self.loss]

    @property
    def loss_name(self) -> str:
        return {"squared": "mse", "absolute": "absolute_error"}.get(self.loss, self.loss)

    def huber(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The Huber loss of each sample, the mean over its targets."""
        each = F.huber_loss(like(outputs, y), y.to(outputs.dtype), reduction="none", delta=self.delta)
        return each if each.dim() == 1 else each.flatten(1).mean(1)

    def pinball(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of the quantile q, the mean over a sample's targets."""
        short = y - like(outputs, y)
        each = torch.maximum(self.q * short, (self.q - 1) * short)
        return each if each.dim() == 1 else each.flatten(1).mean(1)

    def known(self) -> dict[str, Metric]:
        parts = {"moments": moments}
        rmse = Metric(name="rmse", better=-1, title="RMSE", pool="squares", low=0.0, function=_rmse, per="sums",
                      parts=parts)  # fmt: skip
        mae = Metric(name="mae", better=-1, title="MAE", low=0.0, function=_mae, per="sums",
                     parts={"abs_error": absolute_error})  # fmt: skip
        r2 = Metric(name="r2", better=1, title="R²", high=1.0, function=_r2, per="sums", parts=parts)
        pinball = Metric(name="pinball", better=-1, title="pinball loss", low=0.0, function=self.pinball)
        first = {"absolute": [mae, rmse, r2], "quantile": [pinball, rmse, mae, r2]}
        return {metric.name: metric for metric in first.get(self.loss, [rmse, mae, r2])}

    def outputs(self, y: Tensor, classes: int | None) -> int:
        return int(np.prod(y.shape[1:]))

    def check_labels(self, y: Tensor) -> None:
        if y.dim() > 2:
            raise DataError(f"task 'regression' takes targets of shape (N,) or (N, d), these have {tuple(y.shape)}")

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.numel() != y.numel() or len(outputs) != len(y):
            raise ModelError(
                f"the model's outputs have shape {tuple(outputs.shape)} for targets of shape {tuple(y.shape)}: task "
                "'regression' needs one output for each target"
            )


def moments(outputs: Tensor, y: Tensor) -> Tensor:
    """(N, 3, d): squared error, target and its square; in double, as sums of squares are subtracted."""
    error, target = (each.double().flatten(1) if y.dim() > 1 else each.double().unsqueeze(1)
                     for each in (like(outputs, y) - y, y))  # fmt: skip
    return torch.stack([error.square(), target, target.square()], 1)


def _rmse(sums: Sums, n: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(sums["moments"][:, 0].mean(1) / n))


def _mae(sums: Sums, n: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums["abs_error"] / n


def _r2(sums: Sums, n: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over targets of 1 − Σ error² / Σ (y − ȳ)²; NaN where a client's targets are all the same."""
    error, total, squares = np.moveaxis(sums["moments"], 1, 0)
    spread = squares - total**2 / n[:, None]
    # Equal targets leave a rounding error of their squares behind, and no spread.
    spread = np.where(spread > 1e-12 * np.maximum(squares, np.finfo(np.float64).tiny), spread, np.nan)
    each: NDArray[Any] = 1 - error / spread
    return np.asarray(each.mean(1))
