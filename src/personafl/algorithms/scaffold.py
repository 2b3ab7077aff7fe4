"""SCAFFOLD: control variates against client drift (option II).

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic controlled averaging for federated learning.
ICML 2020.

    client   y ← w,  then K times  y ← y − η (g(y) − c_i + c)
             c_i⁺ = c_i − c + (w − y) / (Kη)
    server   w ← w + η_g mean(y_i − w),   c ← c + (1/N) Σ (c_i⁺ − c_i)

with N all clients, and both means unweighted over the clients that answered. Sent: w and c down, y − w and c_i⁺ − c_i
up (2/2). A client keeps c_i, and y_i as its personalized model; the global w is reported beside it. Ours: a client that
was never active has w. Local momentum, Adam, clipping and rates that change within a round are refused: (w − y)/(Kη)
would not be a mean gradient, and c_i blow up. Where `local.groups` has factors, η is each parameter's own rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Sent, Uplink, Uploads
from personafl.settings import check
from personafl.states import State

ADDED_UP = "its server adds up in c all changes that were ever sent: what a rule leaves out would be missing for good"
TWO_SCALES = (
    "it sends a change of the model and one of the control variate, which differ in scale by steps × lr, so that no "
    "one clip fits both"
)


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    """Local steps corrected by how a client's gradient differs from everybody's."""

    global_lr: float = 1.0
    """η_g: how far the server moves to the mean of the answers."""

    about = About(
        name="scaffold",
        paper="Karimireddy et al. 2020",
        personalized="the locally trained y_i",
        keeps="c_i, y_i",
        traffic=("2", "2"),
        newcomer="trains once from the final w with c_i = 0",
    )
    uplink: ClassVar[Uplink] = dict.fromkeys(("delta", "delta_c"), Mean(unprotected=TWO_SCALES, unbounded=ADDED_UP))

    def __post_init__(self) -> None:
        check("algorithm.global_lr", self.global_lr, self.global_lr > 0, "above 0")

    def prepare(self, job: JobInfo) -> Self:
        job.require_sgd("scaffold: (w − y)/(Kη) is a mean gradient only of plain SGD", "groups")
        moving = all(job.local.groups.values())
        check("local.groups", job.local.groups, moving, "above 0 for scaffold: (w − y)/(Kη) divides by each rate")
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        count = torch.tensor(float(clients), device=theta0.device)
        return {"theta": theta0.clone(), "c": torch.zeros_like(theta0), "clients": count}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"c": torch.zeros_like(theta0), "theta": sent["theta"]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"theta": server["theta"], "c": server["c"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"], "correction": sent["c"] - own["c"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad(carry["theta"]) + carry["correction"])
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        y, w = carry["theta"], sent["theta"]
        c = own["c"] - sent["c"] + (w - y) / (ctx.steps * ctx.rates)
        return {"c": c, "theta": y}, {"delta": y - w, "delta_c": c - own["c"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        share = len(uploads) / server["clients"]
        return {
            **server,
            "theta": server["theta"] + self.global_lr * uploads.mean("delta"),
            "c": server["c"] + share * uploads.mean("delta_c"),
        }

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]
