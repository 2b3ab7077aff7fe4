"""FedBE: a Bayesian ensemble of the clients' models teaches the next one.

Chen, Chao: FedBE: Making Bayesian model ensemble applicable to federated learning. ICLR 2021.

    server   μ = Σ p_i y_i,   σ² = Σ p_i (y_i − μ)²,   w_1 … w_S drawn from N(μ, diag σ²)
             teacher(x) = the mean of the class probabilities of μ and w_1 … w_S
             the paper: from μ, descend the cross-entropy of teacher and student over unlabelled data of the server

Ours has no data at the server. μ and w_1 … w_S are sent, and each client begins its round with that distillation:

    client   y ← μ, then `distill_steps` times  y ← y − η_d ∇ CE(teacher(x), y(x)),  on its own inputs, without labels
             then  y ← y − η g(y),  as fedavg

So there is a student for each client, which are averaged only after local training, where the paper has one. Without
`distill_steps`, or without `samples` (the teacher is then the student), it is fedavg. Also ours: plain steps where the
paper averages the student's iterates (SWA); the clients' own models are not among the teachers, since the server knows
only their mean and that of (y_i − μ)², which is also why the paper's Dirichlet form is left out.

Sent: μ and the drawn models down, y_i and (y_i − μ)² up (2/1 + S). Classification only. A client keeps y_i, its
personalized model; μ is reported as the global model. What the server draws follows from θ0, and so from the run's
seed, and from the round; in round 1 σ² is 0. A client that was never active has μ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from personafl.algorithms.base import Context, Gradient, JobInfo, Mean, Sent, Uplink, Uploads
from personafl.algorithms.extras import SendsForEvaluation
from personafl.algorithms.fedavg import FedAvg
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State
from personafl.streams import array_key, generator

VARIANCE = "squares of the update go up beside it, and a robust rule for each of them gives no variance"
SQUARES = "it sends the squares of its update as well, which have another scale, so that no one clip fits both"


@dataclass(frozen=True)
class FedBE(SendsForEvaluation, FedAvg):
    """FedAvg whose clients first learn from models drawn around the mean."""

    samples: int = 5
    """S: how many models are drawn around the mean, as teachers."""
    distill_steps: int = 5
    """Steps in which a client distils from the teachers, before its own."""
    distill_lr: float | None = None
    """η_d: their learning rate. Left out: that of `[local]`."""

    about = replace(FedAvg.about, name="fedbe", paper="Chen, Chao 2021", traffic=("2", "1 + S"))

    def __post_init__(self) -> None:
        check("algorithm.samples", self.samples, self.samples >= 0, "at least 0 (0: fedavg)")
        check("algorithm.distill_steps", self.distill_steps, self.distill_steps >= 0, "at least 0 (0: fedavg)")
        rate = self.distill_lr
        check("algorithm.distill_lr", rate, rate is None or rate > 0, "above 0, or left out for local.lr")

    @property
    def uplink(self) -> Uplink:
        theta = Mean(weights=self.weights, relative_to="theta", unprotected=SQUARES)
        return {"theta": theta, "square": Mean(weights=self.weights, unprotected=SQUARES, unbounded=VARIANCE)}

    def prepare(self, job: JobInfo) -> Self:
        if not job.classification:
            raise ConfigError("algorithm fedbe: it averages class probabilities: it needs a classification task")
        return self

    def new_server(self, theta0: Tensor, clients: int) -> State:
        drawing = {"key": torch.tensor(array_key(theta0.cpu().numpy())), "round": torch.tensor(0)}
        return {"theta": theta0.clone(), "variance": torch.zeros_like(theta0), **drawing}

    def send(self, server: State, ids: Tensor) -> Sent:
        mean, drawn = server["theta"], generator(int(server["key"]), "fedbe", int(server["round"]))
        noise = drawn.standard_normal((self.samples, len(mean)), dtype="float32")
        models = mean + server["variance"].sqrt() * torch.from_numpy(noise).to(mean)
        return Sent({"theta": mean, "models": models})

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        return Sent({"theta": server["theta"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, ctx.steps + self.distill_steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        if ctx.step >= self.distill_steps:
            ctx.descend(carry, "theta", grad)
            return carry
        teachers = [sent["theta"], *sent["models"].unbind(0)]
        teacher = torch.stack([F.softmax(grad.predict(model), -1) for model in teachers]).mean(0)
        ctx.descend(carry, "theta", grad(carry["theta"], objective=imitation, teacher=teacher), self.distill_lr)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        y = carry["theta"]
        return {"theta": y}, {"theta": y, "square": (y - sent["theta"]).square()}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        mean = uploads.mean("theta")
        # Around the w that was sent: Σ p (y − μ)² = Σ p (y − w)² − (μ − w)².
        variance = (uploads.mean("square") - (mean - server["theta"]).square()).clamp(min=0)
        return {**server, "theta": mean, "variance": variance, "round": server["round"] + 1}


def imitation(outputs: Tensor, y: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy of the teacher's probabilities and the student's, for each sample; no labels."""
    return -(teacher * F.log_softmax(outputs, -1)).sum(-1)
