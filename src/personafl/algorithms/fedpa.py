"""FedPA: federated learning via posterior averaging.

Al-Shedivat, Gillenwater, Xing, Rostamizadeh: Federated learning via posterior averaging: a new perspective and
practical algorithms. ICLR 2021.

Were the clients' posteriors Gaussian, N(μ_i, Σ_i), the mode of their product would be where Σ p_i Σ_i⁻¹ (w − μ_i) = 0,
so that these are the gradients which a server should descend along:

    client   SGD from w; after burn-in, the means of its iterates over windows are samples x_1 … x_ℓ of its posterior
             Δ_i = Σ̂⁻¹ (w − x̄),   Σ̂ = ρ_ℓ I + (1 − ρ_ℓ) S,   ρ_ℓ = 1 / (1 + (ℓ − 1) ρ),   S their sample covariance
    server   m ← β m − Σ p_i Δ_i,   w ← w + η m,   as fedavgm

In the first `burn_in_rounds` Δ_i = w − y_i: fedavgm. Σ̂⁻¹ takes no matrix: Σ̂/ρ_ℓ grows by one outer product with each
sample, so that ℓ vectors and their products are enough (`posterior_delta`, O(ℓ² d), the paper's dynamic programming).

Sent: w down, w − Δ_i up (1/1). Personalized model: the locally trained y_i, the last iterate, which the client keeps;
the global w is reported beside it. Ours, where the paper chooses by data set: the first half of a client's local steps
is burn-in, the other half is ℓ windows (fewer for a client with fewer steps: one is fedavgm from the mean iterate);
`samples = 5`, `rho = 0.1`, `burn_in_rounds = 10`. A client that was never active has w.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from personafl.algorithms.base import Context, Gradient, JobInfo
from personafl.algorithms.fedopt import FedAvgM
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedPA(FedAvgM):
    """Updates that know how sure a client is in each direction."""

    samples: int = 5
    """ℓ: how many samples of its posterior a client takes, at the most."""
    rho: float = searched(0.1, 0.003, 1.0)
    """ρ: how much the sample covariance counts beside the identity; 0 is the identity alone."""
    burn_in_rounds: int = 10
    """Rounds of `fedavgm` before posteriors count."""

    about = replace(FedAvgM.about, name="fedpa", paper="Al-Shedivat et al. 2021")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.samples", self.samples, self.samples >= 1, "at least 1")
        check("algorithm.rho", self.rho, self.rho >= 0, "at least 0 (0: the covariance is the identity)")
        check("algorithm.burn_in_rounds", self.burn_in_rounds, self.burn_in_rounds >= 0, "at least 0")

    def prepare(self, job: JobInfo) -> Self:
        why = "fedpa: iterates of SGD at one rate are samples of a posterior"
        job.require_sgd(why, "momentum", "nesterov", "clip_norm", "groups")
        return self

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        w = sent["theta"]
        if ctx.round <= self.burn_in_rounds:
            return {"theta": w}, ctx.steps
        return {"theta": w, "sums": w.new_zeros(self.samples, len(w)), "counts": w.new_zeros(self.samples)}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad)
        if "sums" in carry:
            hit = self._window(ctx)
            carry["sums"] = carry["sums"] + hit[:, None] * carry["theta"]
            carry["counts"] = carry["counts"] + hit
        return carry

    def _window(self, ctx: Context) -> Tensor:
        """1 for the sample that the iterate of this step belongs to; 0 for all of them during burn-in."""
        burn_in = ctx.steps // 2
        taken = ctx.steps - burn_in
        number = (ctx.step - burn_in) * taken.clamp(max=self.samples) // taken
        windows = torch.arange(self.samples, device=taken.device)
        return ((windows == number) & (ctx.step >= burn_in)).float()

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        y, w = carry["theta"], sent["theta"]
        if "sums" not in carry:
            return {"theta": y}, {"theta": y}
        means = carry["sums"] / carry["counts"].clamp(min=1)[:, None]
        return {"theta": y}, {"theta": w - posterior_delta(w, means, carry["counts"] > 0, self.rho)}


def posterior_delta(w: Tensor, samples: Tensor, known: Tensor, rho: float) -> Tensor:
    """Σ̂⁻¹ (w − x̄) of the samples (ℓ, d) that are known, which come first.

    With u_t = x_t − x̄_{t−1}, Σ̂_t / ρ_t = I + ρ (t − 1) S_t = Σ̂_{t−1} / ρ_{t−1} + γ_t u_t u_tᵀ, γ_t = ρ (t − 1) / t.
    Sherman and Morrison then give its inverse from the vectors v_t = (Σ̂_{t−1} / ρ_{t−1})⁻¹ u_t.
    """
    mean = samples[0]
    terms: list[tuple[Tensor, Tensor, Tensor]] = []

    def inverse(x: Tensor) -> Tensor:
        for u, v, factor in terms:
            x = x - factor * (u @ x) * v
        return x

    for t in range(2, len(samples) + 1):
        u = torch.where(known[t - 1], samples[t - 1] - mean, 0.0)
        v, gamma = inverse(u), rho * (t - 1) / t
        terms.append((u, v, gamma / (1 + gamma * (u @ v))))
        mean = mean + u / t
    return (1 + (known.to(w).sum() - 1) * rho) * inverse(w - mean)
