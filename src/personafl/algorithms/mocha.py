"""MOCHA: models of related clients are pulled together, and how related they are is learned.

Smith, Chiang, Sanjabi, Talwalkar: Federated multi-task learning. NeurIPS 2017; with the relationship learning of
Zhang, Yeung: A convex formulation for learning task relationships in multi-task learning. UAI 2010, as in the paper's
(2), (3):

    minimize over W, Ω   Σ_i f_i(w_i) + (λ1/2m) tr(W Ω⁻¹ Wᵀ) + (λ2/2) ‖W‖²,   Ω ⪰ 0,  tr Ω = 1,   W = (w_1 … w_m)

    clients  W for fixed Ω: each minimizes f_i(w) + a quadratic bound of the rest, which the server makes from all W
    server   Ω = (WᵀW)^½ / tr (WᵀW)^½ for fixed W, every `omega_every` rounds

Sent: u_i and the scalar ρ down, w_i up (1/1); the server keeps everybody's latest w_i. A client keeps w_i, its
personalized model.

Ours: clients take SGD steps on the primal, by any loss and model, from their own w_i; the paper has convex losses of
linear models and coordinate steps on the dual (SDCA). As its σ′ does there, ρ makes a bound that can be minimized
client by client: ρ = λ1/m · ‖Ω⁻¹‖ + λ2, and clients step along the gradient of f_i + (ρ/2) ‖w − u_i‖², u_i = w_i − ∇_i
R(W)/ρ. The objective falls from round to round where local steps do their work, and where it rests it is stationary. W
counts from the initial weights θ0, because networks do not start at 0; f_i is a mean over samples; λ1 is divided by m
so that it means the same for few clients and many. Ω starts as I/m; it is singular for few parameters, so `smoothing`
times the mean of the eigenvalues of WᵀW is added to them. A client that was never active counts with the mean of all
models, and has it; a newcomer trains from it, pulled towards it by λ1 + λ2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Gradient, JobInfo, Sent, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer, SendsForEvaluation, Welcomes
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class MOCHA(SendsForEvaluation, Welcomes, ReportsServer, Algorithm):
    """Multi-task learning with a matrix of relationships."""

    lam1: float = searched(0.03, 0.001, 1.0)
    """λ1: how strongly related clients are pulled together."""
    lam2: float = 0.0
    """λ2: how strongly all models are pulled to the initial weights."""
    omega_every: int = 1
    """After how many rounds Ω, who is related to whom, is learned anew."""
    smoothing: float = 0.01
    """What is added to the eigenvalues of WᵀW, as a share of their mean, so that Ω has an inverse."""

    about = About(
        name="mocha",
        paper="Smith et al. 2017",
        personalized="w_i",
        keeps="w_i",
        newcomer="trains from the mean of all models, pulled towards it",
    )
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="the server weighs every two clients by how related their models are", relative_to="u")
    }

    def __post_init__(self) -> None:
        for key in ("lam1", "lam2"):
            check(f"algorithm.{key}", getattr(self, key), getattr(self, key) >= 0, "at least 0")
        check("algorithm.omega_every", self.omega_every, self.omega_every >= 1, "at least 1 round")
        check("algorithm.smoothing", self.smoothing, self.smoothing > 0, "above 0: Ω must have an inverse")

    def prepare(self, job: JobInfo) -> Self:
        if job.local.optimizer == "sgd":
            # ‖Ω⁻¹‖ is at most m √((1 + s)/s): the sum of the roots of m numbers over the smallest of them.
            most = self.lam1 * math.sqrt((1 + self.smoothing) / self.smoothing) + self.lam2
            limit = f"below 2/ρ = {2 / most if most else 0:g} for mocha: larger steps throw w further from u each time"
            check("local.lr", job.largest_lr, job.largest_lr * most < 2, limit)
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {
            "models": theta0.expand(clients, -1).clone(),
            "origin": theta0.clone(),
            "omega": torch.eye(clients, dtype=torch.float64, device=theta0.device) / clients,
            "seen": torch.zeros(clients, dtype=torch.bool, device=theta0.device),
            "round": torch.zeros((), dtype=torch.int64),
        }

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["u"]}

    def send(self, server: State, ids: Tensor) -> Sent:
        models, ids = server["models"], ids.to(server["models"].device)
        values, vectors = torch.linalg.eigh(server["omega"])
        rows = (vectors[ids] / values @ vectors.T).to(models) * (self.lam1 / len(models))  # of λ1/m Ω⁻¹
        pull = (self.lam1 / len(models) / values[0] + self.lam2).to(models)
        slope = rows @ (models - server["origin"]) + self.lam2 * (models[ids] - server["origin"])
        return Sent({"pull": pull}, {"u": models[ids] - slope / pull.clamp(min=1e-30)})

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        return Sent({"u": server["models"].mean(0)})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": own["theta"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad, proximal=(sent["pull"], sent["u"]))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {"theta": carry["theta"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        models, ids = server["models"], uploads.ids.to(server["models"].device)
        models.index_copy_(0, ids, uploads["theta"])
        seen = server["seen"].index_fill(0, ids, True)
        models[~seen] = models[seen].mean(0)
        new = {**server, "models": models, "seen": seen, "round": server["round"] + 1}
        if new["round"] % self.omega_every == 0:
            new["omega"] = relationships(models - server["origin"], self.smoothing)
        return new

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report_server(self, server: State) -> State:
        return {"omega": server["omega"]}

    def welcome(self, server: State, upload: State) -> Sent:
        mean = server["models"].mean(0)
        return Sent({"pull": mean.new_tensor(self.lam1 + self.lam2)}, {"u": mean[None]})


def relationships(w: Tensor, smoothing: float) -> Tensor:
    """Ω of models (m, P): the root of their products, of trace 1; I/m where they are all 0.

    >>> relationships(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1e-12)
    tensor([[0.7500, 0.0000],
            [0.0000, 0.2500]], dtype=torch.float64)
    """
    exact = w.double()
    values, vectors = torch.linalg.eigh(exact @ exact.T)
    values = values.clamp(min=0)
    mean = values.mean()
    roots = torch.where(mean > 0, values + smoothing * mean, torch.ones_like(values)).sqrt()
    omega: Tensor = (vectors * (roots / roots.sum())) @ vectors.T
    return omega
