"""What FedAMP and HeurFedAMP have in common: everything but the weights that clients' models have for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Context, Each, Gradient, JobInfo, Sent, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer, SendsForEvaluation, Welcomes
from personafl.algorithms.search_spaces import searched
from personafl.algorithms.starts import several_starts
from personafl.registry import later
from personafl.states import State

REPORTED = 2_000
"""Clients up to which evaluations write down all weights: of more, M × M numbers take longer than the rounds."""


@dataclass(frozen=True)
class MessagePassing(SendsForEvaluation, Welcomes, ReportsServer, Algorithm):
    """Each client is pulled towards a cloud model of its own, u_i, which the server mixes of all clients' models."""

    pull: float = searched(0.1, 0.003, 1.0)
    """λ/α_k: how strongly a client's model is pulled towards its u_i, where `lam` is left out."""
    starts: Literal["common", "random"] = later("common")
    """Whether all clients' models start from the run's initial weights, or each from weights of its own."""
    personalized: Literal["w", "u"] = later("w")
    """Which is the personalized model: w_i, or the u_i that a client got in its last round."""

    # The sizes of the pieces of the vector, for random starts: set by `prepare`.
    _sizes: ClassVar[tuple[int, ...]] = ()
    newcomer_rounds: ClassVar[int] = 2
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="the server weighs clients by how similar their models are, two at a time", relative_to="u")
    }

    def _weights(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor]:
        """ξ (K, M) for the rows `w` (K, P), and the pull λ/α_k. Row k's own column is `ids[k]` (−1: it has none)."""
        raise NotImplementedError

    def prepare(self, job: JobInfo) -> Self:
        if self.starts == "common":
            return self
        fitted = replace(self)
        object.__setattr__(fitted, "_sizes", tuple(size for _, size in job.layers))
        return fitted

    def new_server(self, theta0: Tensor, clients: int) -> State:
        apart = self.starts == "random"
        models = several_starts(theta0, clients, self._sizes) if apart else theta0.expand(clients, -1).clone()
        return {"models": models, "round": torch.zeros((), dtype=torch.int64)}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return self._kept(sent["u"], sent)

    def _kept(self, w: Tensor, sent: State) -> State:
        return {"theta": w, "u": sent["u"]} if self.personalized == "u" else {"theta": w}

    def send(self, server: State, ids: Tensor) -> Sent:
        everybody = server["models"]
        ids = ids.to(everybody.device)
        weights, pull = self._weights(_rows(everybody, ids), everybody, ids, server["round"])
        return Sent({"pull": pull}, {"u": weights @ everybody})

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        return Sent({"u": server["models"].mean(0)})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["u"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        if ctx.local.optimizer != "sgd" or ctx.local.clip_norm is not None:
            ctx.descend(carry, "theta", grad, proximal=(sent["pull"], sent["u"]))
            return carry
        ctx.descend(carry, "theta", grad)
        rate = ctx.rates * sent["pull"] / (1 - ctx.local.momentum)  # with momentum, g counts 1/(1 − momentum) times
        carry["theta"].add_(rate * sent["u"]).div_(1 + rate)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        w = carry["theta"]
        return self._kept(w, sent), {"theta": w}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        models = server["models"]
        models.index_copy_(0, uploads.ids.to(models.device), uploads["theta"])
        return {"models": models, "round": server["round"] + 1}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["u"] if self.personalized == "u" else own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report_server(self, server: State) -> State:
        everybody = server["models"]
        if len(everybody) > REPORTED:
            return {}
        ids = torch.arange(len(everybody), device=everybody.device)
        return {"weights": self._weights(everybody, everybody, ids, server["round"])[0]}

    def welcome(self, server: State, upload: State) -> Sent:
        everybody = server["models"]
        own = upload["theta"][None] if upload else everybody.mean(0, keepdim=True)
        weights, pull = self._weights(own, everybody, torch.tensor([-1]), server["round"])
        similar = weights @ everybody + (1 - weights.sum(1, keepdim=True)) * own
        return Sent({"pull": pull}, {"u": similar if upload else own})


def with_own(weights: Tensor, ids: Tensor) -> Tensor:
    """Give each row's own column what is left to 1 (a newcomer has no column)."""
    rows = torch.nonzero(ids >= 0).flatten()
    weights[rows, ids[rows]] = 1 - weights[rows].sum(1)
    return weights


def _rows(everybody: Tensor, ids: Tensor) -> Tensor:
    """The models of these clients; all of them are not copied."""
    if len(ids) == len(everybody) and bool((ids[1:] > ids[:-1]).all()):
        return everybody
    return everybody.index_select(0, ids)
