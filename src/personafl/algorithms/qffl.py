"""q-FFL by q-FedAvg: clients with large losses count more, so that losses become more alike.

Li, Sanjabi, Beirami, Smith: Fair resource allocation in federated learning. ICLR 2020.

    minimize over w   Σ p_i F_i(w)^(q+1) / (q + 1)

    client   y ← w,  then  y ← y − η g(y);   u = L (w − y)
             Δ_i = F_i(w)^q u,   h_i = q F_i(w)^(q−1) ‖u‖² + L F_i(w)^q
    server   w ← w − Σ Δ_i / Σ h_i

F_i(w) is the mean loss over all of the client's training data at the w that it was sent; L = 1/η, the rate that suits
q = 0. q = 0 is fedavg; the larger q, the more the largest loss alone counts.

Sent: w down, Δ_i and h_i up (1 + a scalar/1). Personalized model: the locally trained y_i, which the client keeps; the
global w is reported beside it. Ours: the paper draws clients with probabilities p_i ∝ n_i and sums as above; our
cohorts are drawn evenly, so p_i weighs in the sums (`weights="samples"`; `"equal"` is p_i = 1/M). Losses below 1e-10
count as 1e-10 (the authors' code adds as much). `lipschitz` is L where it shall not be 1/η, and is asked for with Adam,
whose η is no inverse of a curvature. A client that was never active has w.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import Context, JobInfo, Mean, Uplink, Uploads
from personafl.algorithms.fedavg import FedAvg
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State

BY_LOSS = (
    "what it sends is multiplied by a power of the client's loss and divided by lr, so no one clip fits all of them"
)


@dataclass(frozen=True)
class QFFL(FedAvg):
    """Updates weighed by a power of the clients' losses."""

    q: float = searched(1.0, 0.01, 5.0)
    """q: how much more clients with large losses count; 0 is `fedavg`."""
    lipschitz: float | None = None
    """L: the inverse of the server's step. Left out: 1/η."""

    about = replace(FedAvg.about, name="qffl", paper="Li et al. 2020", traffic=("1 + a scalar", "1"))
    uses_training: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check("algorithm.q", self.q, self.q >= 0, "at least 0: a negative q would favour small losses")
        given = self.lipschitz
        check("algorithm.lipschitz", given, given is None or given > 0, "above 0, or left out for 1/local.lr")

    @property
    def uplink(self) -> Uplink:
        robust = "its updates are multiplied by powers of the clients' own losses, and long ones are what it is about"
        declared = Mean(weights=self.weights, unprotected=BY_LOSS, unbounded=robust)
        return {"delta": declared, "h": declared}

    def prepare(self, job: JobInfo) -> Self:
        if self.q and self.lipschitz is None:
            why = "qffl: L = 1/local.lr is one of SGD; or give algorithm.lipschitz"
            job.require_sgd(why, "momentum", "nesterov", "clip_norm", "groups", "schedule_over")
        return self

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        return {"theta": sent["theta"], "loss": ctx.training(sent["theta"])["loss"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        L = 1 / ctx.lr if self.lipschitz is None else self.lipschitz
        u, loss = L * (sent["theta"] - carry["theta"]), carry["loss"].clamp(min=1e-10)
        h = self.q * loss ** (self.q - 1) * u.square().sum() + L * loss**self.q
        return {"theta": carry["theta"]}, {"delta": loss**self.q * u, "h": h}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        h = uploads.mean("h")
        step = uploads.mean("delta") / h
        # Where all losses are so small that their powers are 0 in float32, there is nothing left to learn.
        return {"theta": server["theta"] - torch.where(h > 0, step, 0.0)}
