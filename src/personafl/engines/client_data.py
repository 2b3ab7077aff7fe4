"""All of a client's training or validation samples at once, for programs that ask for means over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from personafl.errors import ConfigError
from personafl.kernels.losses import Objective, couples_samples
from personafl.kernels.per_sample import mean_squares, no_gradient_of_a_sample
from personafl.kernels.task import Batch, Task
from personafl.states import State


@dataclass(frozen=True)
class ClientData:
    """The `ctx.training` or `ctx.validation` of a client: means over its samples, 0 for a client without any.

    Parameters
    ----------
    y, weight
        The labels of its samples; 1 for a sample, 0 for padding.
    outputs
        A task's outputs for them at a vector, in evaluation mode.
    of_squares
        The mean over them of the squares of a sample's gradient.
    """

    task: Task
    y: Tensor
    weight: Tensor
    outputs: Callable[[Task, Tensor], Tensor]
    of_squares: Callable[[Task, Tensor], Tensor]

    @classmethod
    def of(cls, task: Task, batch: Batch) -> ClientData:
        """The data of one client, outside of vmap."""
        return cls(
            task,
            batch.y,
            batch.weight,
            lambda task, theta: task.predict(theta, batch.x, batch.weight),
            lambda task, theta: mean_squares(task, theta, batch),
        )

    def __call__(self, theta: Tensor) -> State:
        sums = self.task.sums(self.outputs(self.task, theta), self.y, self.weight)
        return {name: value / self._count for name, value in sums.items()}

    def mean(self, function: Objective, theta: Tensor, **extra: Tensor) -> Tensor:
        """The mean of a function of outputs and labels over the samples."""
        task, resolved = self.task.resolved(function)
        if couples_samples(resolved):
            coupled: Tensor = resolved(self.outputs(task, theta), self.y, weight=self.weight, **extra)
            return coupled
        values = resolved(self.outputs(task, theta), self.y, **extra)
        weight = self.weight.reshape(-1, *(1 for _ in range(values.dim() - 1)))
        mean: Tensor = (values * weight).sum(0) / self._count
        return mean

    def squares(self, theta: Tensor) -> Tensor:
        """The mean over the samples of the squares of each sample's gradient."""
        if why := no_gradient_of_a_sample(self.task):
            raise ConfigError(f"this algorithm asks for the gradients of single samples: {why}")
        return self.of_squares(self.task, theta)

    @property
    def _count(self) -> Tensor:
        return self.weight.sum().clamp(min=1)
