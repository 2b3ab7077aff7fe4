"""A program for before evaluations: each client's loss on all of its training data, for algorithms that report it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personafl.algorithms.base import Context, Program
from personafl.states import State


@dataclass(frozen=True)
class TrainingLoss(Program):
    """F_i of the client's `theta`: the mean loss over its training samples, in evaluation mode. It trains nothing."""

    uses_training: ClassVar[bool] = True

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        return {**own, "objective": ctx.training(own["theta"])["loss"]}, torch.zeros_like(ctx.steps)

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return carry, {}
