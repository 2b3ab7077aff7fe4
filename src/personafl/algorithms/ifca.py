"""IFCA: several models, of which each client trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran: An efficient framework for clustered federated learning. NeurIPS 2020 (model averaging,
its option II).

    client   j = argmin_j F_i(θ_j),  F_i the loss on all of its training data;   y_i by local SGD from θ_j
    server   θ_j ← Σ p_i y_i over those that chose j

Sent: k models down; up k models of which all but the chosen one are 0, and a 1 beside k − 1 zeros (k + scalars). So
the server needs the sums of both and no single answer: it need not know who chose what. A client keeps nothing.
Personalized model: the one of the k that fits its training data best now, chosen before each evaluation, also by
newcomers and by clients that were never active.

Ours: a model that nobody chose stays as it is. One of the k starts from θ0, the others are drawn: normal numbers, by
θ0 and so by the run's seed, with the mean and the standard deviation of each of θ0's pieces (a layer's weights, its
biases): what is 0 or 1 throughout stays so. Where all of θ0 is one number, the standard deviation is 0.01. The paper
starts some experiments several times and takes the best; search over seeds for that. Weights are by samples, as
fedavg's; the paper's clients have equally many. The mean is divided by the share of the cluster, and noise on that
share would do harm out of all proportion, so `[privacy]` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, JobInfo, Mean, Program, Sent, Uplink, Uploads
from personafl.algorithms.search_spaces import searched_among
from personafl.algorithms.starts import several_starts
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class IFCA(Algorithm):
    """A number of clusters with a model each; clients choose by their training loss."""

    clusters: int = searched_among(2, (2, 3, 4, 6))
    """k: how many models there are to choose from."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    # The sizes of the pieces of the vector: set by `prepare`.
    _sizes: ClassVar[tuple[int, ...]] = ()
    uses_training: ClassVar[bool] = True
    about = About(
        name="ifca",
        paper="Ghosh et al. 2020",
        personalized="the one of the k models that fits its training data best",
        traffic=("k + scalars", "k"),
        newcomer="chooses among the final models by its training loss",
    )

    def __post_init__(self) -> None:
        check("algorithm.clusters", self.clusters, self.clusters >= 1, "at least 1")

    @property
    def uplink(self) -> Uplink:
        why = "noise on the share of a cluster, by which its mean is divided, would drown the mean of a small one"
        zeros = (
            "an answer has zeros for the models that it did not choose, which a robust rule would take for the usual"
        )
        return {
            "models": Mean(weights=self.weights, unprotected=why, unbounded=zeros),
            "chosen": Mean(weights=self.weights, unprotected=why, unbounded=zeros),
        }

    def prepare(self, job: JobInfo) -> Self:
        enough = f"at most {job.clients}, the number of clients: each of them trains one model"
        check("algorithm.clusters", self.clusters, self.clusters <= job.clients, enough)
        fitted = replace(self)
        object.__setattr__(fitted, "_sizes", tuple(size for _, size in job.layers))
        return fitted

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"models": several_starts(theta0, self.clusters, self._sizes)}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"models": server["models"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return choose(sent["models"], ctx), ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        chosen = carry["chosen"]
        return {}, {"models": chosen[:, None] * carry["theta"], "chosen": chosen}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        share = uploads.mean("chosen")[:, None]
        renewed = uploads.mean("models") / share.clamp(min=1e-30)
        return {"models": torch.where(share > 0, renewed, server["models"])}

    def evaluation_program(self, last: bool) -> Program | None:
        return Choose()

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report(self, own: State, sent: State) -> State:
        unknown = sent["models"].new_full((), torch.nan)  # before anything was chosen
        return {"cluster": own["chosen"].argmax().to(unknown) if "chosen" in own else unknown}


@dataclass(frozen=True)
class Choose(Program):
    """The model of the lowest training loss, as it is."""

    uses_training: ClassVar[bool] = True

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return choose(sent["models"], ctx), torch.zeros_like(ctx.steps)

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return carry, {}


def choose(models: Tensor, ctx: Context) -> State:
    """The model of the lowest training loss, and which one it is as a 1 among zeros."""
    assert ctx.training is not None
    losses = torch.stack([ctx.training(model)["loss"] for model in models])
    best = losses.argmin()[None]
    chosen = (torch.arange(len(models), device=models.device) == best).to(models)
    return {"theta": models.index_select(0, best)[0], "chosen": chosen}
