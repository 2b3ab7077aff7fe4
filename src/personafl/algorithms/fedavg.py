"""Federated averaging, and its fine-tuned form.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.

    client   y ← w,  then  y ← y − η g(y)
    server   w ← Σ p_i y_i,  p_i ∝ n_i (`weights="samples"`) or p_i = 1/K (`"equal"`)

Sent: w down, y up (1/1). Personalized model: the locally trained y_i, which the client keeps; the global w is
reported beside it. Ours: a client that was never active has w; with partial participation p_i is normalized
over the clients that answered.

`fedavg-ft`: the current w, fine-tuned by `fine_tune_steps` steps of SGD on the client's own training data. The
client keeps nothing; the fine-tuned model is made anew before each evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, Mean, Program, Uplink
from personafl.algorithms.search_spaces import searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients train the global model, the server averages the results."""

    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    about = About(name="fedavg", paper="McMahan et al. 2017", personalized="the locally trained y_i", keeps="y_i")

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["theta"]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        y = carry["theta"]
        return {"theta": y}, {"theta": y}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]


@dataclass(frozen=True)
class FineTune(Program):
    """`steps` steps of SGD from the global model, at a learning rate of its own or the local one."""

    steps: int
    lr: float | None = None

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, torch.full_like(ctx.steps, self.steps)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad, self.lr)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {}


@dataclass(frozen=True)
class FineTuned(Algorithm):
    """Mix-in: the personalized model is the global one, fine-tuned."""

    fine_tune_steps: int = searched_among(40, (5, 10, 20, 40, 80))
    """Steps on the client's own training data before its model is used; 0 is the global model."""

    def __post_init__(self) -> None:
        check("algorithm.fine_tune_steps", self.fine_tune_steps, self.fine_tune_steps >= 0, "at least 0")

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {}

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {}, {"theta": carry["theta"]}

    def evaluation_program(self, last: bool) -> Program | None:
        return FineTune(self.fine_tune_steps)

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]


def fine_tuned(about: About) -> About:
    """An algorithm in words, with its fine-tuned form."""
    return replace(
        about,
        name=f"{about.name}-ft",
        personalized="w fine-tuned on the client's training data",
        keeps="nothing",
        newcomer="fine-tunes the final global model",
    )


@dataclass(frozen=True)
class FedAvgFT(FineTuned, FedAvg):
    """FedAvg, then a few steps on the client's own data."""

    about = fine_tuned(FedAvg.about)
