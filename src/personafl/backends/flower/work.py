"""How much work a site's steps were: the server counts it itself, and need not believe anybody."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from personafl.algorithms import Algorithm
from personafl.algorithms.base import Context
from personafl.settings import Local
from personafl.states import State


def gradients_per_step(algorithm: Algorithm, local: Local, own: State, sent: State) -> int:
    """How many gradients a step of local training computes, by taking one; no data is looked at."""
    one = torch.ones((), dtype=torch.int64)

    def nothing(theta: Tensor) -> State:
        return {name: torch.zeros(()) for name in ("loss", "correct")}

    ctx = Context(1, local.rate(1), local, one, one, one, 0 * one, nothing if algorithm.uses_validation else None)
    carry = {name: value.clone() for name, value in algorithm.begin(own, sent, ctx)[0].items()}
    grad = _Counted()
    algorithm.step(carry, sent, grad, ctx)
    return grad.made


class _Counted:
    """A `Gradient` that is 0 everywhere and counts how often it is asked for."""

    made = 0

    def __call__(self, theta: Tensor, batch: int = 0, objective: Any = None, **extra: Tensor) -> Tensor:
        self.made += 1
        return torch.zeros_like(theta)

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        self.made += 1

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        return torch.zeros(1, 1)
