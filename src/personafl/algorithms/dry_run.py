"""A client program without data: what it asks for, what it keeps and what it sends, by running it on zero gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Context
from personafl.algorithms.optimizers import optimizer_state
from personafl.settings import Local
from personafl.states import State, each


def blank_context(algorithm: Algorithm, local: Local) -> Context:
    """A context of round 1 for a client with one sample, for which the model puts out a single 0."""
    one = torch.ones((), dtype=torch.int64)
    asked = algorithm.uses_validation, algorithm.uses_training
    validation, training = (ZeroSamples() if one_of_them else None for one_of_them in asked)
    return Context(1, local.rate(1), local, one, one, one, 0 * one, validation, training)


class ZeroSamples:
    """`Samples` of one sample of class 0 that measures 0."""

    def __call__(self, theta: Tensor) -> State:
        return {name: torch.zeros(()) for name in ("loss", "correct")}

    def mean(self, function: Any, theta: Tensor, **extra: Tensor) -> Tensor:
        """A function of the samples, of the one there is."""
        if getattr(function, "uses_features", False):
            extra["features"] = torch.zeros(1, getattr(function, "width", 1))
        coupled = getattr(function, "couples_samples", False)
        if coupled:
            extra["weight"] = torch.ones(1)
        value: Tensor = function(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), **extra)
        return value if coupled else value[0]

    def squares(self, theta: Tensor) -> Tensor:
        """Of a gradient that is 0."""
        return torch.zeros_like(theta)


class ZeroGradient:
    """A `Gradient` that is 0 everywhere and counts how often it is asked for."""

    made = 0

    def __call__(self, theta: Tensor, batch: int = 0, objective: Any = None, **extra: Tensor) -> Tensor:
        self.made += 1
        return torch.zeros_like(theta)

    def descend(self, theta: Tensor, lr: float, proximal: tuple[float, Tensor] | None) -> None:
        """A step that changes nothing, and is counted."""
        self.made += 1

    def count(self, batch: int = 0) -> Tensor:
        """A batch of one."""
        return torch.ones(())

    def predict(self, theta: Tensor, batch: int = 0) -> Tensor:
        """A single 0."""
        return torch.zeros(1, 1)

    features = predict


def first_step(algorithm: Algorithm, local: Local, own: State, sent: State) -> tuple[State, int]:
    """The carry after a client's first step, and how many gradients the step computed."""
    ctx, grad = blank_context(algorithm, local), ZeroGradient()
    carry = each(torch.clone, algorithm.begin(own, sent, ctx)[0])
    return algorithm.step(carry, sent, grad, ctx), grad.made


def kept_optimizer_state(algorithm: Algorithm, local: Local, own: State, sent: State) -> State:
    """What a client keeps of its optimizer besides its own state, as it begins: zeros.

    Of the first and the last step: a program may train one part of the model, and then another.
    """
    if local.optimizer_state == "fresh":
        return {}
    ctx = blank_context(algorithm, local)
    begun, steps = algorithm.begin(own, sent, ctx)
    carry = each(torch.clone, begun)
    for step in {0, max(int(steps) - 1, 0)}:
        carry = algorithm.step(carry, sent, ZeroGradient(), ctx.at_step(step, int(steps)))
    return each(torch.zeros_like, optimizer_state(carry))
