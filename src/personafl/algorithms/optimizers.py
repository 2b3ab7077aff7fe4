"""One step of SGD, Adam or AdamW on a vector of a carry, as `torch.optim` does it.

Written for one client and without a decision on a tensor's value, as all client programs are. The optimizer's own
vectors are in the carry beside θ, by names that begin with `optimizer.`; where they are missing they are zero. So an
engine that puts them there before the first step, and takes them out after the last, has a client that keeps its
optimizer's state (`local.optimizer_state = "kept"`); no algorithm need know of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from personafl.local_settings import Local
from personafl.states import State

PREFIX = "optimizer."


def optimizer_state(state: State) -> State:
    """The part of a carry, or of what a client keeps, that is the optimizer's.

    >>> sorted(optimizer_state({"theta": torch.zeros(1), "optimizer.theta.momentum": torch.zeros(1)}))
    ['optimizer.theta.momentum']
    """
    return {name: value for name, value in state.items() if name.startswith(PREFIX)}


def clipped(gradient: Tensor, longest: float) -> Tensor:
    """A gradient of at most this norm, as `torch.nn.utils.clip_grad_norm_` scales it."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    return gradient * (longest / (norm + 1e-6)).clamp(max=1.0)


def update(carry: State, name: str, gradient: Tensor, rate: float | Tensor, local: Local) -> None:
    """θ = `carry[name]` after one step along the gradient, in place."""
    theta = carry[name]
    if local.optimizer != "adamw" and local.weight_decay:
        gradient = gradient + local.weight_decay * theta
    if local.optimizer == "sgd":
        move(theta, _with_momentum(carry, name, gradient, local), rate)
        return
    if local.weight_decay and local.optimizer == "adamw":
        theta.mul_(1 - rate * local.weight_decay)
    move(theta, _normalized(carry, name, gradient, local), rate)


def _with_momentum(carry: State, name: str, gradient: Tensor, local: Local) -> Tensor:
    if not local.momentum:
        return gradient
    buffer = f"{PREFIX}{name}.momentum"
    carry[buffer] = carry[buffer].mul_(local.momentum).add_(gradient) if buffer in carry else gradient.clone()
    return gradient + local.momentum * carry[buffer] if local.nesterov else carry[buffer]


def _normalized(carry: State, name: str, gradient: Tensor, local: Local) -> Tensor:
    """Adam's direction: the running mean of gradients over the root of that of their squares, both unbiased."""
    mean, square, count = (f"{PREFIX}{name}.{part}" for part in ("mean", "square", "count"))
    if mean not in carry:
        carry |= {mean: torch.zeros_like(gradient), square: torch.zeros_like(gradient), count: gradient.new_zeros(())}
    first, second = local.betas
    carry[count] = carry[count] + 1
    carry[mean].mul_(first).add_(gradient, alpha=1 - first)
    carry[square].mul_(second).add_(gradient.square(), alpha=1 - second)
    unbiased = (carry[square] / _bias(second, carry[count])).sqrt_().add_(local.eps)
    return carry[mean] / _bias(first, carry[count]) / unbiased


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 − β^t; by expm1, because β may be as close to 1 as float32 goes."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


def move(theta: Tensor, direction: Tensor, rate: float | Tensor) -> None:
    """θ ← θ − rate · direction, in place."""
    if isinstance(rate, Tensor):
        theta.sub_(rate * direction)
    else:
        theta.sub_(direction, alpha=rate)
