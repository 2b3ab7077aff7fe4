"""APFL: each client mixes its own model with the global one.

Deng, Kamani, Mahdavi: Adaptive personalized federated learning. arXiv 2003.13461, 2020.

    client   v̄ = α v + (1 − α) w_i                     at the start of every step, all gradients on one batch
             v ← v − η α ∇f(v̄)
             α ← clip[0,1](α − η ⟨v − w_i, ∇f(v̄)⟩)      where `adaptive`
             w_i ← w_i − η ∇f(w_i)                       from w_i = w at the start of the round
    server   w ← mean w_i

Sent: w down, w_i up (1/1). A client keeps v and α. Personalized model: v̄ = α v + (1 − α) w with the current w. Ours: v
starts from the first w that a client receives (the same as θ0 under full participation), so a client that was never
active has w; the gradient with respect to v is α ∇f(v̄), taken at v̄ and not at v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, Mean, Uplink
from personafl.algorithms.search_spaces import searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class APFL(Algorithm):
    """A mixture of a local and the global model, its weight fixed or learned."""

    alpha: float = searched_among(0.5, (0.1, 0.25, 0.5, 0.75, 0.9))
    """α: the share of the client's own model in what it uses; where `adaptive`, its first value."""
    adaptive: bool = False
    """Whether each client learns its α."""

    about = About(
        name="apfl",
        paper="Deng et al. 2020",
        personalized="α v + (1 − α) w",
        keeps="v, α",
        newcomer="trains v once from the final w, at the initial α",
    )
    uplink: ClassVar[Uplink] = {"theta": Mean(relative_to="theta")}

    def __post_init__(self) -> None:
        check("algorithm.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]: the share of the client's own model")

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"v": sent["theta"], "alpha": torch.zeros((), device=theta0.device) + self.alpha}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"w": sent["theta"], "v": own["v"], "alpha": own["alpha"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        w, v, alpha = carry["w"], carry["v"], carry["alpha"]
        at_mixture = grad(torch.lerp(w, v, alpha))
        if self.adaptive:
            carry["alpha"] = (alpha - ctx.lr * torch.dot(v - w, at_mixture)).clamp(0.0, 1.0)
        ctx.descend(carry, "v", alpha * at_mixture)
        ctx.descend(carry, "w", grad)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"v": carry["v"], "alpha": carry["alpha"]}, {"theta": carry["w"]}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["alpha"] * own["v"] + (1 - own["alpha"]) * sent["theta"]

    def report(self, own: State, sent: State) -> State:
        return {"alpha": own["alpha"]}
