"""What noisy steps tell about a training sample: `[privacy] unit = "sample"`.

Batches are drawn so that every sample is in each of them with probability B/n, independently (`draw_independently`).
An algorithm that asks for c gradients on one batch, as Ditto does for its two models, tells of it as much as one
gradient with the noise multiplier z/√c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, Program
from personafl.algorithms.dry_run import ZeroGradient, blank_context
from personafl.algorithms.extras import SideBySide, batches_per_step
from personafl.kernels.per_sample import refused
from personafl.kernels.task import Task
from personafl.settings import Local
from personafl.states import Ints, State, each
from personafl.training.accounting import sample_epsilon
from personafl.training.privacy import Floats, Privacy


@dataclass(frozen=True)
class SampleAccount:
    """The ε of samples, from the number of batches drawn.

    Attributes
    ----------
    gradients
        The most that a program computes on one batch.
    draws
        Batches of a step of training.
    rates
        Of each client: with which probability a sample is in a batch.
    """

    privacy: Privacy
    gradients: int
    draws: int
    rates: Floats

    @classmethod
    def of(
        cls, privacy: Privacy, algorithm: Algorithm, task: Task, local: Local, theta0: Tensor, sizes: Ints
    ) -> SampleAccount:
        """For a job; a ConfigError where something else than gradients is made of samples."""
        assert privacy.per_sample is not None
        privacy.per_sample.check(task)
        sent = algorithm.send(algorithm.new_server(theta0, 1), torch.zeros(1, dtype=torch.int64)).one(0)
        own = algorithm.new_client(theta0, sent)
        most = max(_gradients_per_batch(algorithm, program, local, own, sent) for program in _programs(algorithm))
        size = np.minimum(sizes, local.batch_sizes(sizes))
        return cls(privacy, most, batches_per_step(algorithm), size / np.maximum(sizes, 1))

    def batches(self, steps: Ints, gradients: Ints) -> Ints:
        """How many batches a round of so many steps drew."""
        drawn = steps * self.draws
        if (gradients > drawn * self.gradients).any():
            raise refused("it computes more gradients in some steps than in its first and its last")
        return drawn

    def epsilon(self, ids: Ints, batches: NDArray[Any]) -> Floats:
        """The ε of samples of these clients, after so many batches of each."""
        noise = self.privacy.noise / max(self.gradients, 1) ** 0.5
        pairs = zip(self.rates[ids].tolist(), batches.tolist(), strict=True)
        return np.array([sample_epsilon(noise, self.privacy.delta, rate, int(many)) for rate, many in pairs])


def _programs(algorithm: Algorithm) -> Iterator[Program]:
    """All that see training samples; a ConfigError where one is shown more than gradients."""
    for program in (algorithm, algorithm.evaluation_program(False), algorithm.evaluation_program(True)):
        if program is None:
            continue
        if program.uses_training:
            raise refused("it looks at all training samples at once")
        if isinstance(program, SideBySide):
            raise refused("it trains several models of a client on the same batches")
        yield program


def _gradients_per_batch(algorithm: Algorithm, program: Program, local: Local, own: State, sent: State) -> int:
    """The most gradients in a step, first or last: a program may train one part of the model, and then another."""
    ctx, made = blank_context(algorithm, local), Counter[int]()
    begun, steps = program.begin(own, sent, ctx)
    carry = each(torch.clone, begun)
    most = 0
    for step in sorted({0, max(int(steps) - 1, 0)}):
        made.clear()
        carry = program.step(carry, sent, _Counted(made), ctx.at_step(step, int(steps)))
        most = max(most, *made.values(), 0)
    return most


class _Counted(ZeroGradient):
    """Counts the gradients of each batch, and refuses what is more than a gradient."""

    def __init__(self, made: Counter[int]) -> None:
        self._made = made

    def __call__(self, theta: Tensor, batch: int = 0, objective: Any = None, **extra: Tensor) -> Tensor:
        if extra:
            raise refused(f"its loss takes more than a sample's outputs and label ({', '.join(extra)})")
        self._made[batch] += 1
        return torch.zeros_like(theta)

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """A step that changes nothing, and is counted."""
        self._made[0] += 1

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """Refused: outputs would show single samples without noise."""
        raise refused("it looks at outputs for samples")

    features = predict
