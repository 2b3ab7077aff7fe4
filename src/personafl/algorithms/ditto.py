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
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Context, Gradient, JobInfo, Uploads, Weights
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class Ditto(Algorithm):
    """A personal model that is trained beside the global one and pulled towards it."""

    lam: float = 1.0
    weights: Literal["samples", "equal"] = "samples"

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al. 2021"
    personalized: ClassVar[str] = "v"
    keeps: ClassVar[str] = "v"
    newcomer: ClassVar[str] = "trains v once from the final w, pulled towards it"
    private_uploads: ClassVar[dict[str, str] | None] = {"theta": "theta"}

    def __post_init__(self) -> None:
        check("algorithm.lam", self.lam, self.lam >= 0, "at least 0: a negative λ would push v away from w")

    def prepare(self, job: JobInfo) -> Self:
        lr = job.local.lr
        limit = (
            f"below 2/λ = {2 / self.lam if self.lam else 0:g} for ditto: larger steps throw v further from w each time"
        )
        check("local.lr", lr, lr * self.lam < 2, limit)
        return self

    def new_client(self, theta0: Tensor) -> State:
        return {"v": theta0, "trained": torch.zeros((), device=theta0.device)}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        v = torch.where(own["trained"] > 0, own["v"], sent["theta"])
        return {"y": sent["theta"], "v": v}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "y", grad)
        ctx.descend(carry, "v", grad, proximal=(self.lam, sent["theta"]))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"v": carry["v"], "trained": torch.ones_like(own["trained"])}, {"theta": carry["y"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        return {**server, "theta": uploads.mean("theta", self.weights)}

    @property
    def averages(self) -> Weights | None:
        return self.weights

    def personal(self, own: State, sent: State) -> Tensor:
        return torch.where(own["trained"] > 0, own["v"], sent["theta"])
