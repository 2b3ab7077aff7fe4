"""FedAMP: attentive message passing, so that similar clients collaborate more; and its heuristic form.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized cross-silo federated learning on non-IID data. AAAI 2021.

    server   u_i = ξ_ii w_i + Σ_{j≠i} ξ_ij w_j                                     (5)
             fedamp       ξ_ij = α_k A′(‖w_i − w_j‖²),  A(t) = 1 − e^{−t/σ},  ξ_ii = 1 − Σ_{j≠i} ξ_ij    (7)
             heurfedamp   ξ_ij = softmax_{j≠i}(σ cos(w_i, w_j)) · (1 − ξ_ii),  ξ_ii a hyper-parameter    (8)
    client   w_i = argmin F_i(w) + (λ / 2α_k) ‖w − u_i‖²  by local steps from u_i   (6)

Sent: u_i and the scalar λ/α_k down, w_i up (1/1); the server keeps the latest w_j of everybody. A client keeps w_i, its
personalized model. The fixed point of (5) with (6) is stationary for Σ F_i + (λ/2) Σ_{i<j} A: equation (5) drops a
factor 2 of the gradient of A(‖w_i − w_j‖²), and we keep (5).

Ours, because nobody knows the scale of a distance between models beforehand:

- All clients start from one θ0: averaging models of different random starts means nothing.
- σ, where left out, is `sigma_scale` times the median squared distance from the active clients to the others,
  measured anew in every round. For heurfedamp it is `contrast` over the standard deviation of the cosines.
- α_k, where left out, is `alpha_fraction` of the largest value at which all rows are convex combinations now,
  σ / max_i Σ_{j≠i} e^{−‖w_i−w_j‖²/σ}. A given α_k needs a given σ and must be at most σ/(m−1), which is enough always.
- λ, where left out, is `pull` times α_k, so that (6) pulls by `pull` (w − u_i) whatever the scale.
- A local step is w ← (w − ηg + ηρu)/(1 + ηρ), ρ = λ/α_k: the same stationary point as a gradient step on (6), and
  stable for any ρ. Adam, AdamW and clipping take the gradient of (6) whole, because they change its scale.
- Partial participation: only active clients get a new u_i; a client that was never active has the mean of all models.
- A newcomer starts from the mean of all models, trains, and then gets a u of its own by similarity and trains again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Gradient, JobInfo, Sent, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer, SendsForEvaluation, Welcomes
from personafl.algorithms.search_spaces import searched
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State

REPORTED = 2_000
"""Clients up to which evaluations write down all weights: of more, M × M numbers take longer than the rounds."""
COLUMNS = 1024
"""Parameters of all models that are compared at once; anything from 256 to 4,096 takes the same time."""


@dataclass(frozen=True)
class _MessagePassing(SendsForEvaluation, Welcomes, ReportsServer, Algorithm):
    """What both have in common: everything but the weights."""

    pull: float = searched(0.1, 0.003, 1.0)
    """λ/α_k: how strongly a client's model is pulled towards its u_i, where `lam` is left out."""

    newcomer_rounds: ClassVar[int] = 2
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="the server weighs clients by how similar their models are, two at a time", relative_to="u")
    }

    def _weights(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor]:
        """ξ (K, M) for the rows `w` (K, P), and the pull λ/α_k. Row k's own column is `ids[k]` (−1: it has none)."""
        raise NotImplementedError

    def new_server(self, theta0: Tensor, clients: int) -> State:
        models = theta0.expand(clients, -1).clone()
        return {"models": models, "round": torch.zeros((), dtype=torch.int64)}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["u"]}

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
        return {"theta": w}, {"theta": w}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        models = server["models"]
        models.index_copy_(0, uploads.ids.to(models.device), uploads["theta"])
        return {"models": models, "round": server["round"] + 1}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

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


@dataclass(frozen=True)
class FedAMP(_MessagePassing):
    """Each client gets its own cloud model, in which similar clients weigh more (Euclidean distance)."""

    sigma: float | None = None
    """σ: the squared distance between models over which similarity fades. Left out: by `sigma_scale`."""
    alpha: float | None = None
    """α_k: how much the models of others count; it needs `sigma`. Left out: by `alpha_fraction`."""
    lam: float | None = None
    """λ of equation (6). Left out: `pull` times α_k."""
    sigma_scale: float = searched(0.25, 0.03, 3.0)
    """σ as a multiple of the median squared distance between models, measured in each round."""
    alpha_fraction: float = 0.95
    """α_k as a share of the largest value at which all weights are convex."""
    alpha_decay: float = 1.0
    """What α_k is multiplied by, every `alpha_decay_every` rounds."""
    alpha_decay_every: int = 30
    """After how many rounds `alpha_decay` counts again."""

    about = About(
        name="fedamp",
        paper="Huang et al. 2021",
        personalized="w_i",
        keeps="w_i",
        newcomer="trains from the mean of all models, then from the models similar to its own",
    )

    def __post_init__(self) -> None:
        for key in ("sigma", "alpha", "lam"):
            value = getattr(self, key)
            check(f"algorithm.{key}", value, value is None or value > 0, "above 0, or left out")
        check("algorithm.sigma_scale", self.sigma_scale, self.sigma_scale > 0, "above 0")
        convex = "in (0, 1]: beyond its bound the weights of α_k are no longer convex"
        check("algorithm.alpha_fraction", self.alpha_fraction, 0 < self.alpha_fraction <= 1, convex)
        check("algorithm.alpha_decay", self.alpha_decay, 0 < self.alpha_decay <= 1, "in (0, 1]")
        check("algorithm.alpha_decay_every", self.alpha_decay_every, self.alpha_decay_every >= 1, "at least 1 round")
        check("algorithm.pull", self.pull, self.pull >= 0, "at least 0")
        if self.alpha is not None and self.sigma is None:
            raise ConfigError("algorithm.alpha is given without algorithm.sigma: its bound σ/(m−1) cannot be checked")

    def prepare(self, job: JobInfo) -> Self:
        if self.alpha is not None and self.sigma is not None and job.clients > 1:
            bound = self.sigma / (job.clients - 1)
            reason = f"at most σ/(m−1) = {bound:g} for {job.clients} clients: above it ξ_ii would be negative"
            check("algorithm.alpha", self.alpha, self.alpha <= bound * (1 + 1e-9), reason)
        return self

    def _weights(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor]:
        distance = _squared_distances(w, everybody)
        other = torch.arange(len(everybody), device=w.device) != ids[:, None]
        sigma = self._sigma(distance, other)
        # A′, in place of the distances: with many clients there is room for few matrices of their size.
        closeness = distance.neg_().div_(sigma).exp_().mul_(other).div_(sigma)
        most = closeness.sum(1).max().clamp(min=1e-30)
        alpha = self.alpha_fraction / most if self.alpha is None else torch.tensor(self.alpha, device=w.device)
        alpha = alpha * self.alpha_decay ** torch.div(round, self.alpha_decay_every, rounding_mode="floor").to(w.device)
        pull = torch.tensor(self.pull, device=w.device) if self.lam is None else self.lam / alpha
        return _with_own(closeness.mul_(alpha), ids), pull

    def _sigma(self, distance: Tensor, other: Tensor) -> Tensor:
        if self.sigma is not None:
            return torch.tensor(self.sigma, device=distance.device)
        apart = distance[other]
        sigma = self.sigma_scale * (apart.median() if len(apart) else apart.new_ones(()))
        return torch.where(sigma > 0, sigma, torch.ones_like(sigma))  # all models equal: any σ gives A′ its largest


@dataclass(frozen=True)
class HeurFedAMP(_MessagePassing):
    """FedAMP with cosine similarity, for deep networks, and a fixed weight for a client's own model."""

    self_weight: float = 0.3
    """ξ_ii: the weight of a client's own model."""
    sigma: float | None = None
    """σ: how sharply weights follow the cosine between models. Left out: by `contrast`."""
    contrast: float = searched(2.0, 0.3, 10.0)
    """σ times the standard deviation of the cosines."""

    about = replace(FedAMP.about, name="heurfedamp")

    def __post_init__(self) -> None:
        share = "in [0, 1): ξ_ii is a client's share in its own cloud model"
        check("algorithm.self_weight", self.self_weight, 0 <= self.self_weight < 1, share)
        check("algorithm.sigma", self.sigma, self.sigma is None or self.sigma >= 0, "at least 0, or left out")
        check("algorithm.contrast", self.contrast, self.contrast >= 0, "at least 0")
        check("algorithm.pull", self.pull, self.pull >= 0, "at least 0")

    def _weights(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor]:
        cosine = _cosines(w, everybody)
        other = torch.arange(len(everybody), device=w.device) != ids[:, None]
        if self.sigma is not None:
            scale = torch.tensor(self.sigma, device=w.device)
        else:
            spread = cosine[other].std(unbiased=False) if other.any() else cosine.new_zeros(())
            scale = torch.where(spread > 1e-7, self.contrast / spread.clamp(min=1e-7), torch.zeros_like(spread))
        attention = torch.softmax(torch.where(other, scale * cosine, -torch.inf), 1)
        attention = torch.nan_to_num(attention, 0.0)  # a single client has nobody to attend to
        return _with_own((1 - self.self_weight) * attention, ids), torch.tensor(self.pull, device=w.device)


def _with_own(weights: Tensor, ids: Tensor) -> Tensor:
    """Give each row's own column what is left to 1 (a newcomer has no column)."""
    rows = torch.nonzero(ids >= 0).flatten()
    weights[rows, ids[rows]] = 1 - weights[rows].sum(1)
    return weights


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² by the matrix product of a and b, a block of columns at a time, so that no copy is larger than that.

    Each block is centred first: models are close to each other and far from 0.
    """
    products, of_a, of_b = a.new_zeros(len(a), len(b)), a.new_zeros(len(a), 1), a.new_zeros(len(b))
    for columns in zip(a.split(COLUMNS, 1), b.split(COLUMNS, 1), strict=True):
        centre = columns[0].mean(0)
        x, y = (block - centre for block in columns)
        products.addmm_(x, y.T)
        of_a += torch.linalg.vecdot(x, x)[:, None]
        of_b += torch.linalg.vecdot(y, y)
    return products.mul_(-2).add_(of_a).add_(of_b).clamp_(min=0.0)


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    of_a, of_b = (torch.linalg.vector_norm(vectors, dim=1).clamp(min=1e-12) for vectors in (a, b))
    cosines: Tensor = (a @ b.T).div_(of_a[:, None]).div_(of_b)
    return cosines


def _rows(everybody: Tensor, ids: Tensor) -> Tensor:
    """The models of these clients; all of them are not copied."""
    if len(ids) == len(everybody) and bool((ids[1:] > ids[:-1]).all()):
        return everybody
    return everybody.index_select(0, ids)
