"""Every client trains alone: the baseline that a federation has to beat.

    θ_m ← θ_m − η g_m(θ_m)

Sent: nothing up, nothing down. A client keeps θ_m, which is its personalized model. Ours: a client that was
never active has θ0; a newcomer trains from θ0 for one round's steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Sent, Uplink
from personafl.states import State


@dataclass(frozen=True)
class Separate(Algorithm):
    """Local SGD only, without any federation."""

    about = About(
        name="separate",
        paper="baseline",
        personalized="the client's own model",
        keeps="its model",
        traffic=("0", "0"),
        newcomer="trains from the common initial weights for one round's steps",
    )
    uplink: ClassVar[Uplink] = {}

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": theta0}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": own["theta"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None
