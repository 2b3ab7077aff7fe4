"""FedRep: everybody's representation under heads of their own, the head trained first, then the representation.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting shared representations for personalized federated learning.
ICML 2021.

    client   h_i ← h_i − α ∇_h f_i(h_i, φ),       `head_steps` times from its own h_i, with the received φ
             φ_i ← φ_i − α ∇_φ f_i(h_i, φ_i),     `body_steps` times from φ, with the new h_i
    server   φ ← (1/K) Σ φ_i

φ is the body of the model, h_i a client's head (`head`, `head_names`: see `heads`). Sent: φ alone ((1−h)/(1−h), h the
head's share of the model). A client keeps its head. Personalized model: the current φ with the client's head. The paper
has many head steps and few of the body (10 epochs and 1). Ours: `head_steps` counts batches, 10 of them; left out,
`body_steps` are those of `[local]`; each of the two parts has an optimizer of its own, schedules count the steps of
both; heads start from θ0's, and a client that was never active has the current φ with that head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from personafl.algorithms.base import About, Context, Gradient
from personafl.algorithms.heads import SharedBody
from personafl.algorithms.search_spaces import searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedRep(SharedBody):
    """A shared representation, trained under personal heads that are fitted to it first."""

    weights: Literal["samples", "equal"] = "equal"
    """How clients count in the mean: by their training samples, or all the same."""
    head_steps: int = searched_among(10, (2, 5, 10, 20))
    """Steps of the head alone, before those of the body."""
    body_steps: int | None = None
    """Steps of the body. Left out: those of `[local]`."""

    about = About(
        name="fedrep",
        paper="Collins et al. 2021",
        personalized="the current body with the client's head",
        keeps="its head",
        traffic=("1 − h", "1 − h"),
        newcomer="trains head, then body, once from θ0's head and the final body, keeps the head",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.head_steps", self.head_steps, self.head_steps >= 0, "at least 0")
        some = self.body_steps is None or self.body_steps >= 1
        check("algorithm.body_steps", self.body_steps, some, "at least 1, or left out for those of [local]")

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        body = ctx.steps if self.body_steps is None else torch.full_like(ctx.steps, self.body_steps)
        return super().begin(own, sent, ctx)[0], self.head_steps + body

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        self.descend("head" if ctx.step < self.head_steps else "body", carry, grad, ctx)
        return carry
