"""FedAMP: attentive message passing, so that similar clients collaborate more; and its heuristic form.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized cross-silo federated learning on non-IID data. AAAI 2021.

    server   u_i = ξ_ii w_i + Σ_{j≠i} ξ_ij w_j                                     (5)
             fedamp       ξ_ij = α_k A′(‖w_i − w_j‖²),  A(t) = 1 − e^{−t/σ},  ξ_ii = 1 − Σ_{j≠i} ξ_ij    (7)
             heurfedamp   ξ_ij = softmax_{j≠i}(σ cos(w_i, w_j)) · (1 − ξ_ii),  ξ_ii a hyper-parameter    (8)
    client   w_i = argmin F_i(w) + (λ / 2α_k) ‖w − u_i‖²  by local steps from u_i   (6)

Sent: u_i and the scalar λ/α_k down, w_i up (1/1); the server keeps the latest w_j of everybody. A client keeps w_i, its
personalized model. The fixed point of (5) with (6) is stationary for Σ F_i + (λ/2) Σ_{i<j} A: equation (5) drops a
factor 2 of the gradient of A(‖w_i − w_j‖²), and we keep (5).

What the paper has besides:

- `attention` has its other two functions A, see `attention.py`.
- `alpha_schedule` has the steps of its theorems: "root" is α_k = λ/√K for K = `horizon` rounds; "harmonic" is λ/k, the
  plainest with Σ α_k = ∞ and Σ α_k² < ∞. Both need σ and λ.
- `starts = "random"` draws every w_i⁰, as Algorithm 1 does; how is in `starts.py`.
- `personalized = "u"` evaluates u_i, Algorithm 1's other output: the one that a client got in its last round.
- `objective` reports G (1): each client's F_i(w_i) is the column `objective` of clients.parquet; beside the weights in
  evaluations/ are `attention`, which is Σ_{i<j} A, and `lam`, `alpha` and `sigma`, as they are in the next round. Where
  all clients are active, G = Σ objective + lam · attention. Rounds go down on that with lam/2, as said above, and it
  is one function of all rounds only where σ and λ are given.

Ours, because nobody knows the scale of a distance between models beforehand:

- All clients start from one θ0: averaging models of different random starts means little.
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
from typing import Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.attention import Attention, attention, cosines, slope_, squared_distances
from personafl.algorithms.base import About, JobInfo, Program
from personafl.algorithms.message_passing import MessagePassing, with_own
from personafl.algorithms.search_spaces import searched
from personafl.algorithms.training_loss import TrainingLoss
from personafl.errors import ConfigError
from personafl.registry import later
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedAMP(MessagePassing):
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
    alpha_schedule: Literal["decay", "root", "harmonic"] = later("decay")
    """α_k: as above; λ/√K, as in the theorems of convergence, with `horizon` for K; or λ/k in round k."""
    horizon: int | None = later(None)
    """K of the root schedule: how many rounds the run has."""
    attention: Attention = later("exp")
    """A: the negative exponential function, SCAD, or MCP."""
    concavity: float = later(3.7)
    """a of SCAD and MCP: beyond a·σ models do not attend to each other. 3.7 is SCAD's usual value."""
    objective: bool = later(False)
    """Whether evaluations report the objective G: each client's training loss, and the sum of A over pairs."""

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
        least = 2 if self.attention == "scad" else 0
        check("algorithm.concavity", self.concavity, self.concavity > least, f"above {least}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        """What the schedules of the theorems need, and what they leave no room for."""
        root, schedule = self.alpha_schedule == "root", f'algorithm.alpha_schedule = "{self.alpha_schedule}"'
        fits = self.horizon is not None and self.horizon >= 1 if root else self.horizon is None
        check("algorithm.horizon", self.horizon, fits, 'at least 1 round with alpha_schedule = "root", else left out')
        if self.alpha_schedule == "decay":
            return
        if self.sigma is None or self.lam is None:
            raise ConfigError(f"{schedule} needs algorithm.sigma and algorithm.lam: α_k follows from λ")
        if self.alpha is not None or self.alpha_decay != 1:
            raise ConfigError(f"{schedule} says what α_k is: leave out algorithm.alpha and algorithm.alpha_decay")

    @property
    def _first_alpha(self) -> float | None:
        """α_1, where it does not follow from the models."""
        if self.alpha_schedule == "decay" or self.lam is None:
            return self.alpha
        return float(self.lam / (self.horizon or 1) ** 0.5)

    def prepare(self, job: JobInfo) -> Self:
        first = self._first_alpha
        if first is not None and self.sigma is not None and job.clients > 1:
            bound = self.sigma / (job.clients - 1)
            reason = f"at most σ/(m−1) = {bound:g} for {job.clients} clients: above it ξ_ii would be negative"
            key = "algorithm.alpha" if self.alpha is not None else f"algorithm.lam = {self.lam!r}: the α_k of round 1"
            check(key, first, first <= bound * (1 + 1e-9), reason)
        return super().prepare(job)

    def evaluation_program(self, last: bool) -> Program | None:
        return TrainingLoss() if self.objective else None

    def report(self, own: State, sent: State) -> State:
        unknown = sent["u"].new_full((), torch.nan)  # before anything was measured
        return {"objective": own.get("objective", unknown)} if self.objective else {}

    def report_server(self, server: State) -> State:
        reported, everybody = super().report_server(server), server["models"]
        if not self.objective or not reported:
            return reported
        ids = torch.arange(len(everybody), device=everybody.device)
        _, alpha, sigma = self._attended(everybody, everybody, ids, server["round"])
        apart = squared_distances(everybody, everybody).double().triu(1) / sigma.double()
        lam = self.pull * alpha if self.lam is None else torch.tensor(self.lam)
        total = attention(self.attention, apart, self.concavity).sum()
        return {**reported, "attention": total, "lam": lam, "alpha": alpha, "sigma": sigma}

    def _weights(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor]:
        closeness, alpha, _ = self._attended(w, everybody, ids, round)
        pull = torch.tensor(self.pull, device=w.device) if self.lam is None else self.lam / alpha
        return with_own(closeness.mul_(alpha), ids), pull

    def _attended(self, w: Tensor, everybody: Tensor, ids: Tensor, round: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A′ between the rows and everybody but themselves, α_k and σ."""
        distance = squared_distances(w, everybody)
        other = torch.arange(len(everybody), device=w.device) != ids[:, None]
        sigma = self._sigma(distance, other)
        closeness = slope_(self.attention, distance.div_(sigma), self.concavity).mul_(other).div_(sigma)
        return closeness, self._alpha(closeness, round.to(w.device)), sigma

    def _alpha(self, closeness: Tensor, round: Tensor) -> Tensor:
        first, most = self._first_alpha, closeness.sum(1).max().clamp(min=1e-30)
        alpha = self.alpha_fraction / most if first is None else torch.tensor(first, device=round.device)
        alpha = alpha * self.alpha_decay ** torch.div(round, self.alpha_decay_every, rounding_mode="floor")
        return alpha / (round + 1) if self.alpha_schedule == "harmonic" else alpha

    def _sigma(self, distance: Tensor, other: Tensor) -> Tensor:
        if self.sigma is not None:
            return torch.tensor(self.sigma, device=distance.device)
        apart = distance[other]
        sigma = self.sigma_scale * (apart.median() if len(apart) else apart.new_ones(()))
        return torch.where(sigma > 0, sigma, torch.ones_like(sigma))  # all models equal: any σ gives A′ its largest


@dataclass(frozen=True)
class HeurFedAMP(MessagePassing):
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
        cosine = cosines(w, everybody)
        other = torch.arange(len(everybody), device=w.device) != ids[:, None]
        if self.sigma is not None:
            scale = torch.tensor(self.sigma, device=w.device)
        else:
            spread = cosine[other].std(unbiased=False) if other.any() else cosine.new_zeros(())
            scale = torch.where(spread > 1e-7, self.contrast / spread.clamp(min=1e-7), torch.zeros_like(spread))
        attention = torch.softmax(torch.where(other, scale * cosine, -torch.inf), 1)
        attention = torch.nan_to_num(attention, 0.0)  # a single client has nobody to attend to
        return with_own((1 - self.self_weight) * attention, ids), torch.tensor(self.pull, device=w.device)
