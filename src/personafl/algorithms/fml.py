"""FML, federated mutual learning: a private model and a model that goes round learn from each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated mutual learning. arXiv 2006.16765, 2020.

    client   v ← v − η ∇_v [α CE(v) + (1 − α) KL(p_y ‖ p_v)]        the private model
             y ← y − η ∇_y [β CE(y) + (1 − β) KL(p_v ‖ p_y)]        the meme model, from w; both on the same batch
    server   w ← Σ p_i y_i, as fedavg

p are the models' class probabilities. Sent: w down, y up (1/1). A client keeps v, its personalized model. α = β = 1 is
training alone (v) beside fedavg (w).

Ours: α = β = 0.5; the private model has the architecture of the meme model, and starts from the first w that a client
receives, so a client that was never active has w, and with α = β the two models are the same after a client's first
round; both steps go by the probabilities before either of them, without dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink
from personafl.algorithms.search_spaces import searched_among
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State
from personafl.tasks.classes import cross_entropy


@dataclass(frozen=True)
class FML(Algorithm):
    """A private model that learns from the federation's model, which learns from it."""

    alpha: float = searched_among(0.5, (0.1, 0.3, 0.5, 0.7, 0.9))
    """α: how much the private model learns from labels; the rest from the other model."""
    beta: float = 0.5
    """β: the same for the model that is sent."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    about = About(
        name="fml",
        paper="Shen et al. 2020",
        personalized="the private model v",
        keeps="v",
        newcomer="trains v once from the final w, beside it",
    )

    def __post_init__(self) -> None:
        share = "in [0, 1]: the share of the labels beside what the other model says"
        for key in ("alpha", "beta"):
            check(f"algorithm.{key}", getattr(self, key), 0 <= getattr(self, key) <= 1, share)

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def prepare(self, job: JobInfo) -> Self:
        if not job.classification:
            raise ConfigError("fml compares class probabilities: it needs a classification task")
        return self

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"v": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"v": own["v"], "y": sent["theta"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        private, meme = grad.predict(carry["v"]), grad.predict(carry["y"])
        alpha, beta = (torch.tensor(share, device=private.device) for share in (self.alpha, self.beta))
        ctx.descend(carry, "v", grad(carry["v"], objective=mutual, other=meme, share=alpha))
        ctx.descend(carry, "y", grad(carry["y"], objective=mutual, other=private, share=beta))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"v": carry["v"]}, {"theta": carry["y"]}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["v"]


def mutual(outputs: Tensor, y: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """share · CE + (1 − share) KL(other ‖ own), for each sample."""
    said = F.log_softmax(other, -1)
    apart = (said.exp() * (said - F.log_softmax(outputs, -1))).sum(-1)
    return share * cross_entropy(outputs, y) + (1 - share) * apart
