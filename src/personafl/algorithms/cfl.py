"""CFL, clustered federated learning: a cluster whose clients disagree is split in two, again and again.

Sattler, Müller, Samek: Clustered federated learning: Model-agnostic distributed multi-task optimization under privacy
constraints. IEEE Transactions on Neural Networks and Learning Systems, 2020 (arXiv 1910.01991).

    client   Δ_i = y_i − θ_c,  y_i trained from its cluster's θ_c as in fedavg
    server   θ_c ← θ_c + Σ p_i Δ_i  over the clients of the cluster, as fedavg; but where
                 ‖Σ p_i Δ_i‖ < ε1  and  max ‖Δ_i‖ > ε2          stationary for the cluster, and not for its clients
             it is split:  c1, c2 = argmin max_{i ∈ c1, j ∈ c2} cos(Δ_i, Δ_j)
             if  √((1 − max_{i ∈ c1, j ∈ c2} cos(Δ_i, Δ_j)) / 2) > γ

Sent: θ_c down, y_i up (1/1). A client keeps nothing. Personalized model: the current model of its cluster. The optimal
bipartition (the paper's algorithm 1) is that of single linkage; the authors' code takes complete linkage
(`linkage = "complete"`), which is not that argmin.

The clusters are a tree that grows (the paper's parameter tree): a cluster that was split keeps its last model and the
directions of the updates it was split by. Who comes to it later (a client that was not active then, a newcomer) trains
that model, and goes where those went whose update was most like its own (algorithm 2).

Ours: ε1, where left out, is `stationary` times the longest mean update that the cluster has had, and ε2 is 4 ε1, the
ratio of the authors' code; γ = 0.7 asks that no two clients that are parted have updates of cos > 0.02. The round that
splits a cluster is averaged within its parts, as in the authors' code. With partial participation the active clients of
a cluster decide. Who comes late goes down to a leaf by its update at the first cluster, instead of training at each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Sent, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer, Welcomes
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class CFL(Welcomes, ReportsServer, Algorithm):
    """Clusters that are found by the directions of the clients' updates, each with fedavg of its own."""

    eps1: float | None = None
    """ε1: a cluster whose mean update is shorter is stationary. Left out: by `stationary`."""
    eps2: float | None = None
    """ε2: a cluster is split only if a client's update is longer. Left out: 4 ε1."""
    stationary: float = searched(0.1, 0.03, 0.5)
    """ε1 as a share of the longest mean update that the cluster has had."""
    gamma: float = 0.7
    """γ: how clearly the two parts must differ to be split; between 0 and 1."""
    linkage: Literal["single", "complete"] = "single"
    """How a cluster is parted: as the paper says (single), or as its authors' code does."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    newcomer_rounds: ClassVar[int] = 2
    about = About(
        name="cfl",
        paper="Sattler et al. 2020",
        personalized="the current model of its cluster",
        newcomer="trains the model of the first cluster, and has that of the cluster whose updates are like its own",
    )

    def __post_init__(self) -> None:
        for key in ("eps1", "eps2"):
            value = getattr(self, key)
            check(f"algorithm.{key}", value, value is None or value > 0, "above 0, or left out")
        ordered = self.eps1 is None or self.eps2 is None or self.eps1 <= self.eps2
        check("algorithm.eps2", self.eps2, ordered, "at least eps1: no mean is longer than the longest update")
        check("algorithm.stationary", self.stationary, 0 < self.stationary < 1, "in (0, 1)")
        check("algorithm.gamma", self.gamma, 0 <= self.gamma < 1, "in [0, 1): no two updates are further apart than 1")

    @property
    def uplink(self) -> Uplink:
        why = "the server splits clusters by the angles between updates, two at a time"
        return {"theta": Each(why=why, weights=self.weights, relative_to="theta")}

    def new_server(self, theta0: Tensor, clients: int) -> State:
        whole = theta0.new_zeros(0, dtype=torch.int64)
        return {
            "models": theta0[None].clone(),  # of all clusters that are or were
            "longest": theta0.new_zeros(1),  # mean update of each
            "parts": whole.new_full((1, 2), -1),  # the clusters that each was split into
            "cluster": whole.new_zeros(clients),  # of each client
            "directions": theta0.new_zeros(0, len(theta0)),  # of the updates that clusters were split by
            "part": whole,  # which the client of each of them came to
        }

    def send(self, server: State, ids: Tensor) -> Sent:
        cluster = server["cluster"][ids.to(server["cluster"].device)]
        return Sent({}, {"theta": server["models"][cluster]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {}, {"theta": carry["theta"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        new = {**server, **{name: server[name].clone() for name in ("models", "longest", "parts", "cluster")}}
        ids = uploads.ids.to(new["cluster"].device)
        weights = uploads.samples.double() if self.weights == "samples" else torch.ones(len(ids)).double()
        found = new["cluster"][ids]
        for c in found.unique().tolist():
            rows = torch.nonzero(found == c).flatten()
            share = uploads.limit(weights.to(rows.device)[rows])
            self._renew(new, c, ids[rows], uploads["theta"][rows], share)
        return new

    def _renew(self, server: State, c: int, ids: Tensor, y: Tensor, weights: Tensor) -> None:
        """What these answers from one cluster change."""
        updates = y - server["models"][c]
        if server["parts"][c, 0] >= 0:  # it was split without them
            server["cluster"][ids] = torch.tensor([_leaf(server, c, update) for update in updates], device=ids.device)
            return
        mean = _mean(y, weights)
        server["longest"][c] = torch.maximum(server["longest"][c], (mean - server["models"][c]).norm())
        first = self._split(updates, mean - server["models"][c], server["longest"][c])
        if first is None:
            server["models"][c] = mean
            return
        number = len(server["models"])
        made = torch.stack([_mean(y[part], weights[part]) for part in (first, ~first)])
        parts = torch.where(first, number, number + 1)
        server["parts"][c] = torch.tensor([number, number + 1])
        server["cluster"][ids] = parts
        unit = updates / updates.norm(dim=1, keepdim=True).clamp(min=1e-30)
        for name, more in {
            "models": made,
            "longest": server["longest"].new_zeros(2),
            "parts": server["parts"].new_full((2, 2), -1),
            "directions": unit,
            "part": parts,
        }.items():
            server[name] = torch.cat([server[name], more])

    def _split(self, updates: Tensor, mean: Tensor, longest: Tensor) -> Tensor | None:
        """Who is in the first of two parts; None where the cluster stays whole."""
        eps1 = float(self.stationary * longest) if self.eps1 is None else self.eps1
        eps2 = 4 * eps1 if self.eps2 is None else self.eps2
        lengths = updates.norm(dim=1)
        if len(updates) < 2 or mean.norm() >= eps1 or lengths.max() <= eps2:
            return None
        unit = (updates / lengths.clamp(min=1e-30)[:, None]).double()
        cosines = unit @ unit.T
        first = bipartition(cosines, self.linkage)
        closest = cosines[first][:, ~first].max().clamp(max=1.0)
        return first if torch.sqrt((1 - closest) / 2) > self.gamma else None

    def personal(self, own: State, sent: State) -> Tensor:
        return sent["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report_server(self, server: State) -> State:
        return {"cluster": server["cluster"]}

    def welcome(self, server: State, upload: State) -> Sent:
        at = _leaf(server, 0, upload["theta"] - server["models"][0]) if upload else 0
        return Sent({}, {"theta": server["models"][at][None]})


def bipartition(cosines: Tensor, linkage: str) -> Tensor:
    """Who is in the first of the two parts that agglomerative clustering ends with.

    >>> bipartition(torch.tensor([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]]), "single")
    tensor([ True,  True, False])
    """
    from scipy.cluster import hierarchy  # a tenth of a second, which only this needs
    from scipy.spatial.distance import squareform

    # Of updates in the same direction the cosine may be rounded to more than 1.
    apart = (1 - cosines).clamp(min=0).cpu().numpy()
    merged = hierarchy.linkage(squareform(apart, checks=False), linkage)
    return torch.from_numpy(hierarchy.cut_tree(merged, 2)[:, 0] == 0).to(cosines.device)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    averaged: Tensor = torch.tensordot((weights / weights.sum()).to(values), values, dims=1)
    return averaged


def _leaf(server: State, c: int, update: Tensor) -> int:
    """The cluster, not split, that clients with such an update came to from cluster `c`."""
    while server["parts"][c, 0] >= 0:
        likeness = server["directions"] @ update
        best = [likeness[server["part"] == part].max() for part in server["parts"][c]]
        c = int(server["parts"][c, 0 if best[0] >= best[1] else 1])
    return c
