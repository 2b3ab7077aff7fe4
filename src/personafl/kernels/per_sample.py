"""Gradients that are clipped by sample and noisy: a step of DP-SGD (`[privacy] unit = "sample"`).

In the place of the mean gradient of a batch a step gets

    (Σ_j g_j min(1, C/‖g_j‖) + N(0, (zC)² I)) / B

with g_j the gradient of sample j alone, and B the size that batches have on average (Abadi et al.: Deep learning with
differential privacy, 2016). A sample is a client with a batch of one: so the gradients of all samples of all clients
are one stacked computation, whatever the model.

In a simulation the noise follows from the client's key of this batch and from which gradient of the step it is: a
program that asks twice gets other noise the second time. At a site it is from the system's secure generator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from personafl.errors import ConfigError
from personafl.inputs import each_input
from personafl.kernels.batch import Batch
from personafl.kernels.losses import Objective
from personafl.kernels.randomness import GAMMA, M1, draw, scrambled
from personafl.tasks import LearningTask

FIRST_DRAW = 2**40
"""Number of a step's first noise among the draws by a key: a forward pass makes fewer."""
AT_ONCE = 2**25
"""Numbers in the gradients of samples that are made at once."""


class Gradients(Protocol):
    """What is needed of a `Task`."""

    template: nn.Module
    kind: LearningTask
    couples_samples: bool

    def gradient(self, theta: Tensor, batch: Batch, objective: Objective | None = None) -> Tensor:
        """Of one client."""

    def gradient_stacked(self, theta: Tensor, batch: Batch, objective: Objective | None = None) -> Tensor:
        """Of K clients."""


@dataclass(frozen=True)
class PerSample:
    """The clip C and the noise multiplier z of gradients; `fresh` where the noise follows from nothing."""

    clip: float
    noise: float
    fresh: bool = False

    def check(self, task: Gradients) -> None:
        """Refuse models and losses where a sample's gradient is not its own."""
        if why := no_gradient_of_a_sample(task):
            raise ConfigError(f'privacy.unit = "sample": {why}')

    def gradient(
        self, task: Gradients, theta: Tensor, batch: Batch, objective: Objective | None = None, number: int = 1
    ) -> Tensor:
        """The noisy gradient of one client, sample after sample: the reference.

        `number` says which gradient of the step it is.
        """
        total = torch.zeros_like(theta, dtype=torch.float64)
        for gradient in _one_by_one(task, theta, batch, objective):
            total += self._factor(gradient[None])[0] * gradient.double()
        return self._finished(total[None], batch.key.view(1), batch.expected, number)[0].to(theta)

    def gradient_stacked(
        self, task: Gradients, theta: Tensor, batch: Batch, objective: Objective | None = None, number: int = 1
    ) -> Tensor:
        """The noisy gradients of K clients: every tensor has a leading axis K."""
        total = torch.zeros_like(theta, dtype=torch.float64)
        for owner, gradients in _of_samples(task, theta, batch, objective):
            total.index_add_(0, owner, self._factor(gradients)[:, None] * gradients.double())
        return self._finished(total, batch.key, batch.expected, number).to(theta)

    def _factor(self, gradients: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(gradients.double(), dim=1)
        factor: Tensor = (self.clip / norms.clamp(min=1e-300)).clamp(max=1.0)
        return factor

    def _finished(self, total: Tensor, keys: Tensor, expected: Tensor | None, number: int) -> Tensor:
        """The sums with their noise, by the size of batches."""
        assert expected is not None
        if self.noise:
            drawn = fresh_normal(*total.shape).to(total) if self.fresh else normal(keys, total.shape[1], number)
            total = total + self.noise * self.clip * drawn
        return total / expected.view(-1, 1)


def no_gradient_of_a_sample(task: Gradients) -> str:
    """Why a sample's gradient is not its own, for some models and losses; empty where it is."""
    for name, layer in task.template.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            return (
                f"layer {name or '(the model itself)'!r} ({type(layer).__name__}) normalizes over samples, so that "
                "none has a gradient of its own: use nn.GroupNorm or nn.LayerNorm"
            )
    if task.couples_samples:
        return f"the loss {task.kind.loss_name} couples samples, so that none has a gradient of its own"
    return ""


def mean_squares(task: Gradients, theta: Tensor, batch: Batch) -> Tensor:
    """The mean over one client's samples of the squares of each sample's gradient, sample after sample."""
    total = torch.zeros_like(theta, dtype=torch.float64)
    for gradient in _one_by_one(task, theta, batch):
        total += gradient.double().square()
    return (total / batch.count.clamp(min=1)).to(theta)


def mean_squares_stacked(task: Gradients, theta: Tensor, batch: Batch) -> Tensor:
    """The same for K clients: every tensor has a leading axis K."""
    total = torch.zeros_like(theta, dtype=torch.float64)
    for owner, gradients in _of_samples(task, theta, batch):
        total.index_add_(0, owner, gradients.double().square())
    return (total / batch.count.clamp(min=1)[:, None]).to(theta)


def refused(why: str) -> ConfigError:
    """An algorithm that makes something else than gradients of samples, which noise would have to protect too."""
    return ConfigError(f'privacy.unit = "sample" cannot be combined with this algorithm: {why}; choose another')


def normal(keys: Tensor, size: int, number: int) -> Tensor:
    """Standard normal numbers (K, size), for each of K keys.

    >>> made = normal(torch.tensor([3, 4]), 50_000, 1)
    >>> [abs(round(float(value), 1)) for value in (made.mean(), made.std(), (made[0] * made[1]).mean())]
    [0.0, 1.0, 0.0]
    """
    return _normal(draw((len(keys), size), keys, FIRST_DRAW + number))


def fresh_normal(count: int, size: int) -> Tensor:
    """Standard normal numbers (count, size) from the system's secure generator, never the same twice.

    >>> one, other = (fresh_normal(1, 50_000) for _ in range(2))
    >>> [abs(round(float(value), 1)) for value in (one.mean(), one.std(), (one * other).mean())]
    [0.0, 1.0, 0.0]
    """
    bits = np.frombuffer(os.urandom(8 * count * size), np.int64).copy()
    return _normal(torch.from_numpy(bits).view(count, size))


def _normal(bits: Tensor) -> Tensor:
    # 52 of the bits, so that the half which keeps 0 out does not round the largest up to 1.
    uniform = (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52
    made: Tensor = torch.special.ndtri(uniform)
    return made


def _one_by_one(task: Gradients, theta: Tensor, batch: Batch, objective: Objective | None = None) -> Iterator[Tensor]:
    """The gradient of each of one client's samples."""
    for j in batch.weight.nonzero()[:, 0]:
        one = _samples(batch, j[None], _sample_keys(batch.key, j))
        yield task.gradient(theta, one, objective)


def _of_samples(
    task: Gradients, theta: Tensor, batch: Batch, objective: Objective | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The gradients of K clients' samples (n, P), as many at once as memory has room for, and whose they are (n,)."""
    width = batch.weight.shape[1]
    keys = _sample_keys(batch.key[:, None], torch.arange(width, device=theta.device)).flatten()
    # Padding has no gradient: its rows are left out.
    for rows in batch.weight.flatten().nonzero()[:, 0].split(max(1, AT_ONCE // theta.shape[1])):
        owner = rows // width
        one = _samples(_flat(batch), rows, keys[rows], each=True)
        yield owner, task.gradient_stacked(theta.index_select(0, owner), one, objective)


def _sample_keys(keys: Tensor, place: Tensor) -> Tensor:
    """Keys for the dropout of the samples in these places of a batch."""
    return scrambled((keys ^ M1) * M1 + (place.to(keys.device) + 1) * GAMMA)


def _flat(batch: Batch) -> Batch:
    """K clients' batches end to end."""
    return Batch(each_input(lambda x: x.flatten(0, 1), batch.x), batch.y.flatten(0, 1), batch.weight, batch.key)


def _samples(batch: Batch, rows: Tensor, keys: Tensor, each: bool = False) -> Batch:
    """These samples as one batch, or each as a batch of its own."""

    def at(values: Tensor) -> Tensor:
        found = values.index_select(0, rows.to(values.device))
        return found.unsqueeze(1) if each else found

    weight = torch.ones(len(rows), device=batch.weight.device)
    return Batch(each_input(at, batch.x), at(batch.y), weight.unsqueeze(1) if each else weight, keys)
