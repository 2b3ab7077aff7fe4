"""FedDyn: a penalty for each client that changes from round to round, so that all agree on the average's optimum.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization. ICLR 2021.

    client   θ_i = argmin F_i(θ) − ⟨g_i, θ⟩ + (α/2) ‖θ − w‖²,  from w, by local steps
             g_i ← g_i − α (θ_i − w),  which is ∇F_i(θ_i) where the minimum is reached
    server   h ← h − (α/M) Σ (θ_i − w),   w ← mean θ_i − h/α

with M all clients, sum and mean over those that answered, and g_i, h from 0: h is the mean of all g_i at any time.
Where it comes to rest all θ_i are w and h is 0, so that the gradients of all clients at w add up to 0.

Sent: w down, θ_i up (1/1). A client keeps g_i, and θ_i as its personalized model; the global w is reported beside it.
Ours: `alpha = 0.1`, one of the paper's .1, .01 and .001; a client that was never active has w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink, Uploads
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State

ADDED_UP = "its server adds up in h all that was ever sent: what a rule leaves out would be missing for good"
PILES_UP = (
    "its server adds up in h all that was ever sent: noise would pile up there from round to round, and what clipping "
    "takes away would be missing for good"
)


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Local losses that are tilted until their optima agree."""

    alpha: float = searched(0.1, 0.001, 1.0)
    """α: how strongly clients are held together; smaller is faster and less stable."""

    about = About(
        name="feddyn",
        paper="Acar et al. 2021",
        personalized="the locally trained θ_i",
        keeps="g_i, θ_i",
        newcomer="trains once from the final w with g_i = 0",
    )
    uplink: ClassVar[Uplink] = {"theta": Mean(relative_to="theta", unprotected=PILES_UP, unbounded=ADDED_UP)}

    def __post_init__(self) -> None:
        check("algorithm.alpha", self.alpha, self.alpha > 0, "above 0: h is divided by it")

    def prepare(self, job: JobInfo) -> Self:
        if job.local.optimizer != "sgd":  # its steps are as long as its rate, whatever pulls
            return self
        lr = job.largest_lr
        limit = f"below 2/α = {2 / self.alpha:g} for feddyn: larger steps throw θ ever further from w"
        check("local.lr", lr, lr * self.alpha < 2, limit)
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        count = torch.tensor(float(clients), device=theta0.device)
        return {"theta": theta0.clone(), "h": torch.zeros_like(theta0), "clients": count}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"g": torch.zeros_like(theta0), "theta": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"], "g": own["g"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        slope = grad(carry["theta"]) - carry["g"]
        ctx.descend(carry, "theta", slope, proximal=(self.alpha, sent["theta"]))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta = carry["theta"]
        return {"g": own["g"] - self.alpha * (theta - sent["theta"]), "theta": theta}, {"theta": theta}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        mean, share = uploads.mean("theta"), len(uploads) / server["clients"]
        h = server["h"] - self.alpha * share * (mean - server["theta"])
        return {**server, "theta": mean - h / self.alpha, "h": h}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]
