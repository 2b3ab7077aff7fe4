"""Ditto: a personal model beside the global one, tied to it.

Li, Hu, Beirami, Smith: Ditto: Fair and robust federated learning through personalization. ICML 2021.

    client   y ← y − η g(y)  from w^t, as fedavg;   v ← v − η (g(v) + λ (v − w^t))   on the same batches
    server   as fedavg, `weights` samples or equal

Sent: w down, y up (1/1). A client keeps v, which is its personalized model. λ = 1 as in the authors' code. Ours: v
starts from the first w that a client receives (the same as θ0 under full participation), so a client that was never
active has w; v takes as many steps as y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class Ditto(Algorithm):
    """A personal model that is trained beside the global one and pulled towards it."""

    lam: float = searched(1.0, 0.01, 10.0)
    """λ: how strongly v is pulled towards the global model; 0 is training alone."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    about = About(
        name="ditto",
        paper="Li et al. 2021",
        personalized="v",
        keeps="v",
        newcomer="trains v once from the final w, pulled towards it",
    )

    def __post_init__(self) -> None:
        check("algorithm.lam", self.lam, self.lam >= 0, "at least 0: a negative λ would push v away from w")

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def prepare(self, job: JobInfo) -> Self:
        if job.local.optimizer != "sgd":  # its steps are as long as its rate, whatever pulls
            return self
        lr = job.largest_lr
        limit = (
            f"below 2/λ = {2 / self.lam if self.lam else 0:g} for ditto: larger steps throw v further from w each time"
        )
        check("local.lr", lr, lr * self.lam < 2, limit)
        return self

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"v": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"y": sent["theta"], "v": own["v"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "y", grad)
        ctx.descend(carry, "v", grad, proximal=(self.lam, sent["theta"]))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"v": carry["v"]}, {"theta": carry["y"]}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["v"]
