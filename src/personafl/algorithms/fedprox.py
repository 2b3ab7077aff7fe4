"""Federated averaging with a proximal term, and its fine-tuned form.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020.

    client   y ← w,  then  y ← y − η (g(y) + μ (y − w))
    server   as fedavg

Sent: w down, y up (1/1). Personalized model: the locally trained y_i, which the client keeps. μ = 0 is fedavg.
`fedprox-ft` fine-tunes the current w without the proximal term, as `fedavg-ft` does. Ours: μ = 0.1, the middle of
the values that the paper tries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from personafl.algorithms.base import Context, Gradient, JobInfo
from personafl.algorithms.fedavg import FedAvg, FineTuned, fine_tuned
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local training is pulled towards the global model."""

    mu: float = searched(0.1, 0.001, 1.0)
    """μ: how strongly local training is pulled back to the global model; 0 is `fedavg`."""

    about = replace(FedAvg.about, name="fedprox", paper="Li et al. 2020")

    def __post_init__(self) -> None:
        check("algorithm.mu", self.mu, self.mu >= 0, "at least 0: a negative μ would push clients apart")

    def prepare(self, job: JobInfo) -> Self:
        if job.local.optimizer != "sgd":  # its steps are as long as its rate, whatever pulls
            return self
        lr = job.largest_lr
        limit = (
            f"below 2/μ = {2 / self.mu if self.mu else 0:g} for {self.name}: larger steps throw y ever further from w"
        )
        check("local.lr", lr, lr * self.mu < 2, limit)
        return self

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad, proximal=(self.mu, sent["theta"]))
        return carry


@dataclass(frozen=True)
class FedProxFT(FineTuned, FedProx):
    """FedProx, then a few steps on the client's own data."""

    about = fine_tuned(FedProx.about)

    def __post_init__(self) -> None:
        FedProx.__post_init__(self)
        FineTuned.__post_init__(self)
