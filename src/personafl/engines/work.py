"""The work that an engine is given, what comes of it, and the gradients that a step asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import Program, Sent
from personafl.algorithms.extras import SideBySide
from personafl.kernels.per_sample import refused
from personafl.kernels.task import Batch, Objective, Task
from personafl.states import Ints, State, each, joined


@dataclass(frozen=True)
class Work:
    """A program to run for some clients: `own` has a row for each of `ids`, and so has `sent.each`.

    Where a program trains models side by side for a client, each is a row, and `copy` has their numbers.
    """

    program: Program
    round: int
    purpose: str
    ids: Ints
    own: State
    sent: Sent
    copy: Ints | None = None

    def rows(self, which: slice) -> Work:
        """The same for some of the clients."""
        own, sent = ({name: v[which] for name, v in state.items()} for state in (self.own, self.sent.each))
        copy = None if self.copy is None else self.copy[which]
        return Work(self.program, self.round, self.purpose, self.ids[which], own, Sent(self.sent.shared, sent), copy)


@dataclass(frozen=True)
class Result:
    """New states, uploads, step counts and gradient counts, a row for each client in the order of `Work.ids`."""

    own: State
    up: State
    steps: Tensor
    gradients: Tensor


class StepBatches:
    """The `grad` that a step gets: gradients and predictions on the batches drawn for this step.

    `made` counts the gradients.
    """

    def __init__(self, task: Task, batches: Sequence[Batch], gradient: Callable[..., Tensor]) -> None:
        self._task, self._batches, self._gradient = task, batches, gradient
        self.made = 0

    def __call__(self, theta: Tensor, batch: int = 0, objective: Objective | None = None, **extra: Tensor) -> Tensor:
        self.made += 1
        here, private = self._batches[batch], self._task.per_sample
        if private is None:
            return self._gradient(theta, here, objective, extra)
        require_none(extra)
        return private.gradient(self._task, theta, here, objective, self.made)

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """One step of SGD in place, of the loss plus proximal[0]/2 · ‖theta - proximal[1]‖²."""
        descend(self(theta), theta, lr, proximal)

    def count(self, batch: int = 0) -> Tensor:
        """How many samples a batch has."""
        return self._batches[batch].count

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """Outputs in evaluation mode for the samples of a batch."""
        require_public(self._task)
        here = self._batches[batch]
        return self._task.predict(theta, here.x, here.weight)

    def features(self, theta: Tensor, batch: int = 0) -> Tensor:
        """The features of the samples of a batch."""
        require_public(self._task)
        here = self._batches[batch]
        return self._task.features_of(self._task.with_features.predict(theta, here.x, here.weight))


def descend(gradient: Tensor, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
    """One step of SGD in place, with the pull of `proximal` (factor, anchor)."""
    if proximal is not None:
        gradient = gradient + proximal[0] * (theta - proximal[1])
    theta.sub_(gradient, alpha=lr)


def require_public(task: Task) -> None:
    """Refuse to show outputs for samples that steps may only see as noisy gradients."""
    if task.per_sample is not None:
        raise refused("it looks at outputs for samples")


def require_none(extra: State) -> None:
    """Refuse gradients whose loss depends on more than outputs and labels: it may be made of other samples."""
    if extra:
        raise refused(f"its loss takes more than a sample's outputs and label ({', '.join(extra)})")


def concatenate(results: list[Result]) -> Result:
    """One result of several, client after client."""
    if len(results) == 1:
        return results[0]
    return Result(
        joined([r.own for r in results]),
        joined([r.up for r in results]),
        torch.cat([r.steps for r in results]),
        torch.cat([r.gradients for r in results]),
    )


def expand_copies(work: Work) -> Work:
    """A row for each of the models that a program trains side by side for a client."""
    if not isinstance(work.program, SideBySide):
        return work
    many = work.program.copies
    own, sent = (each(lambda v: v.repeat_interleave(many, 0), state) for state in (work.own, work.sent.each))
    ids, copy = np.repeat(work.ids, many), np.tile(np.arange(many), len(work.ids))
    return Work(work.program, work.round, work.purpose, ids, own, Sent(work.sent.shared, sent), copy)
