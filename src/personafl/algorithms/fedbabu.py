"""FedBABU: the body is trained and averaged under a head that stays random; both are fine-tuned for use.

Oh, Kim, Yun: FedBABU: Towards enhanced representation for federated image classification. ICLR 2022.

    client   body_i ← SGD from the received body, with the head of θ0, which is never trained
    server   body ← Σ p_i body_i, as fedavg
    for use  (body, head) ← `fine_tune_steps` of SGD on the client's training data, from the current body and θ0's head

With `fine_tune = "head"` the body stays as it is. `head`, `head_names`: see `heads`. Sent: the body alone
((1−h)/(1−h), h the head's share of the model). A client keeps θ0's head, which is everybody's. Personalized model: the
fine-tuned one, made anew before each evaluation; the body with θ0's head is the global model. Ours: the paper
fine-tunes for 5 epochs, we for 40 steps, as `fedavg-ft`; a client that was never active fine-tunes as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from personafl.algorithms.base import About, Context, Gradient, Program
from personafl.algorithms.extras import HasHead
from personafl.algorithms.heads import SharedBody
from personafl.algorithms.search_spaces import searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedBABU(SharedBody):
    """A body that is trained under a random head; fine-tuned for each client."""

    fine_tune_steps: int = searched_among(40, (5, 10, 20, 40, 80))
    """Steps on the client's own training data before its model is used."""
    fine_tune: Literal["all", "head"] = "all"
    """What these steps change: the whole model, or its head."""

    about = About(
        name="fedbabu",
        paper="Oh et al. 2022",
        personalized="the current body and θ0's head, fine-tuned on the client's training data",
        keeps="θ0's head",
        traffic=("1 − h", "1 − h"),
        newcomer="fine-tunes the final body with θ0's head",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.fine_tune_steps", self.fine_tune_steps, self.fine_tune_steps >= 0, "at least 0")
        check("algorithm.fine_tune", self.fine_tune, self.fine_tune in ("all", "head"), '"all" or "head"')

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        self.descend("body", carry, grad, ctx)
        return carry

    def evaluation_program(self, last: bool) -> Program | None:
        return FineTunePart(self, self.fine_tune_steps, self.fine_tune)

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return self._pieces.join(server["body"], server["head0"])


@dataclass(frozen=True)
class FineTunePart(HasHead, Program):
    """Steps from the current body and the client's head, of all parameters or of the head alone."""

    stage1: SharedBody
    steps: int
    part: Literal["all", "head"]

    @property
    def head_pieces(self) -> tuple[bool, ...]:
        return self.stage1.head_pieces

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        body, head, steps = sent["body"], own["head"], torch.full_like(ctx.steps, self.steps)
        if self.part == "head":
            return {"body": body, "head": head}, steps
        return {"theta": self.stage1._pieces.join(body, head)}, steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        if "theta" in carry:
            ctx.descend(carry, "theta", grad)
        else:
            self.stage1.descend("head", carry, grad, ctx)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        if "theta" in carry:
            return {"theta": carry["theta"]}, {}
        return {"theta": self.stage1._pieces.join(carry["body"], carry["head"])}, {}
