"""pFedMe: personalized models as proximal points of the global one (Moreau envelopes).

T. Dinh, Tran, Nguyen: Personalized federated learning with Moreau envelopes. NeurIPS 2020.

    client   w_i ← w,  then R times, one batch each:
                 `inner_steps` times  θ ← θ − η_p (g(θ) + λ (θ − w_i))
                 w_i ← w_i − η λ (w_i − θ)
    server   w ← (1 − β) w + β mean w_i

R is the number of local steps, η the local learning rate; η_p is `personal_lr`. Sent: w down, w_i up (1/1). A client
keeps θ, which is its personalized model: θ and not w_i or w. The paper's values, for (η, η_p, λ, β): MNIST logistic
regression (.005, .1, 15, 1), MNIST DNN (.005, .09, 15, 1), CIFAR10 (.01, .01, 15, 1), with R = 20 and 5 inner steps at
batch 20. Ours: θ starts from w in every round and goes on from one local step to the next; a client that was never
active has w. Optimizer, momentum, weight decay, clipping and rates by group are those of the inner steps, because the
paper takes any solver for the proximal point; the schedule is η's. η λ must be below 2, or w_i would overshoot θ ever
further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink, Uploads
from personafl.algorithms.optimizers import move
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """A proximal point of the global model for each client."""

    lam: float = 15.0
    """λ: how strongly θ is pulled towards w."""
    personal_lr: float = searched(0.05, 0.01, 0.1)
    """η_p: the learning rate of θ."""
    inner_steps: int = 5
    """Steps of θ in each local step."""
    beta: float = 1.0
    """β: how far the server's w moves to the mean of the answers."""

    about = About(
        name="pfedme",
        paper="T. Dinh et al. 2020",
        personalized="θ, the proximal point",
        keeps="θ",
        newcomer="finds its proximal point from the final w by one round's steps",
    )
    uplink: ClassVar[Uplink] = {"theta": Mean(relative_to="theta")}

    def __post_init__(self) -> None:
        check("algorithm.lam", self.lam, self.lam > 0, "above 0: λ ties θ to w")
        check("algorithm.personal_lr", self.personal_lr, self.personal_lr > 0, "above 0")
        limit = "below 2/λ: larger inner steps diverge whatever the data"
        check("algorithm.personal_lr", self.personal_lr, self.personal_lr * self.lam < 2, limit)
        check("algorithm.inner_steps", self.inner_steps, self.inner_steps >= 1, "at least 1")
        check("algorithm.beta", self.beta, self.beta > 0, "above 0: the server would never move")

    def prepare(self, job: JobInfo) -> Self:
        lr, factor = job.local.lr, job.largest_lr / job.local.lr
        limit = f"below 2/λ = {2 / self.lam:g} with the factors of local.groups: larger inner steps diverge"
        stable = job.local.optimizer != "sgd" or self.personal_lr * factor * self.lam < 2
        check("algorithm.personal_lr", self.personal_lr, stable, limit)
        check(
            "local.lr", lr, lr * self.lam < 2, f"below 2/λ = {2 / self.lam:g} for pfedme: w_i moves by lr·λ·(w_i − θ)"
        )
        return self

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"w": sent["theta"], "theta": sent["theta"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        w, theta = carry["w"], carry["theta"]
        for _ in range(self.inner_steps):
            ctx.descend(carry, "theta", grad(theta), self.personal_lr, proximal=(self.lam, w))
        move(w, w - theta, ctx.lr * self.lam)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {"theta": carry["w"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        return {**server, "theta": (1 - self.beta) * server["theta"] + self.beta * uploads.mean("theta")}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]
