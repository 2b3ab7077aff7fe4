"""AFL: agnostic federated learning, the best model for the worst mixture of clients.

Mohri, Sivek, Suresh: Agnostic federated learning. ICML 2019.

    minimize over w  the largest over λ of   Σ λ_i F_i(w),   λ in the simplex: λ_i ≥ 0, Σ λ_i = 1

    client   y ← w,  then  y ← y − η g(y)
    server   w ← w + Σ λ_i (y_i − w),   λ ← Π(λ + γ (F_1(w), …, F_M(w)))

Π is the projection onto the simplex, γ is `lambda_lr`, F_i(w) the mean loss over all training data of a client at the w
that it was sent, and λ starts at 1/M. With one local step this is the paper's stochastic-AFL; γ = 0 is fedavg with
equal weights.

Sent: w down, y_i and F_i(w) up (1 + a scalar/1). Personalized model: the locally trained y_i, which the client keeps;
the global w is reported beside it, and λ is written down at each evaluation. Ours: several local steps, as others do
who compare with AFL; the last w, where the paper takes the mean over all rounds. Where only K of M answer, λ_i M/K
takes the place of λ_i (as in the paper, that is right on average), scaled down where the sum is above 1; and λ follows
the last loss that each client told, or the mean of those for who never told one. A client that was never active has w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class AFL(ReportsServer, Algorithm):
    """FedAvg whose weights go to the clients with the largest losses."""

    lambda_lr: float = searched(0.01, 0.001, 0.3)
    """γ: how fast λ moves to the clients with the largest losses; 0 leaves it even."""

    about = About(
        name="afl",
        paper="Mohri et al. 2019",
        personalized="the locally trained y_i",
        keeps="y_i",
        traffic=("1 + a scalar", "1"),
    )
    uses_training: ClassVar[bool] = True
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="it weighs each model by the client's λ_i", relative_to="theta"),
        "loss": Each(
            why="λ_i follows each client's loss",
            unprotected="it sends losses, which have no bound",
            unbounded="who says a large loss gets the weight, however long its update is",
        ),
    }

    def __post_init__(self) -> None:
        check("algorithm.lambda_lr", self.lambda_lr, self.lambda_lr >= 0, "at least 0 (0: equal weights)")

    def new_server(self, theta0: Tensor, clients: int) -> State:
        zeros = torch.zeros(clients, device=theta0.device)
        return {"theta": theta0.clone(), "lam": zeros + 1 / clients, "loss": zeros, "told": zeros.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        return {"theta": sent["theta"], "loss": ctx.training(sent["theta"])["loss"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {"theta": carry["theta"], "loss": carry["loss"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        w, lam, ids = server["theta"], server["lam"], uploads.ids.to(server["lam"].device)
        weights = uploads.limit(lam.index_select(0, ids) * (len(lam) / len(ids)))
        weights = weights / weights.sum().clamp(min=1.0)
        loss = server["loss"].index_copy(0, ids, uploads["loss"])
        told = server["told"].index_fill(0, ids, 1.0)
        slope = torch.where(told > 0, loss, (told * loss).sum() / told.sum())
        theta = w + torch.tensordot(weights, uploads["theta"] - w, dims=1)
        return {"theta": theta, "lam": onto_simplex(lam + self.lambda_lr * slope), "loss": loss, "told": told}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def report_server(self, server: State) -> State:
        return {"lam": server["lam"]}


def onto_simplex(v: Tensor) -> Tensor:
    """The point nearest to v whose coordinates are at least 0 and add up to 1.

    It is max(v − τ, 0), where τ makes the sum 1: with the r largest coordinates above 0, τ = (their sum − 1)/r.

    >>> onto_simplex(torch.tensor([0.5, 1.0, -2.0])).tolist()
    [0.25, 0.75, 0.0]
    """
    ordered = v.double().sort(descending=True).values
    count = torch.arange(1, len(v) + 1, device=v.device)
    tau = (ordered.cumsum(0) - 1) / count
    last = (ordered > tau).sum() - 1  # the largest r for which the r-th coordinate stays above 0
    return (v.double() - tau.gather(0, last[None])).clamp(min=0).to(v)
