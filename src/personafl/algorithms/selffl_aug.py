"""Augmented Self-FL: uncertainty from local optima instead of early-stopped models (Algorithm 2 of the preprint).

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-aware personalized federated learning, preprint, appendix D.

After its ℓ_m steps, which give the personalized θ_m^t as in Algorithm 1, a client trains on until it has approximately
converged, to θ_{m,t}:

    client   θ_m^t = ℓ_m steps of SGD from θ − (w_m / S_m)(θ_{m,t−1} − θ)                              [24]
             θ_{m,t} ← SGD on from θ_m^t, until it has converged
             σ_m² = empirical variance of its θ_{m,t} over rounds                                      [23]
    server   σ0² = empirical variance of the θ_{m,t};  θ̂ = Σ w_m θ_{m,t} / Σ w_m                 [25], [26]

Everything else (w_m, S_m, ℓ_m, how θ moves to θ̂) is as in `selffl`, options included.

Sent: θ, σ0², S_m down; θ_{m,t}, θ_m^t and σ_m² up: 2/1 and scalars. A client keeps what a client of `selffl` keeps,
θ_m^t and ℓ_m. Personalized model: θ_m^t. Ours: converged means that the parameters moved by less than `tolerance` times
their own length in a step, averaged over the last steps with factor 0.9 (single steps of SGD are noise); training ends
after `extra_steps` further steps in any case. The engine runs all `extra_steps`; a client that has converged stays put.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from personafl.algorithms.base import Context, Gradient, Mean, Uplink
from personafl.algorithms.optimizers import optimizer_state
from personafl.algorithms.selffl import SelfFL
from personafl.settings import check
from personafl.states import State, each


@dataclass(frozen=True)
class SelfFLAug(SelfFL):
    """Self-FL whose uncertainties come from local training to convergence."""

    extra_steps: int = 100
    """The most steps after ℓ_m, towards convergence."""
    tolerance: float = 1e-3
    """Converged: a step moves the parameters by less than this share of their length."""

    about = replace(
        SelfFL.about,
        name="selffl-aug",
        personalized="θ_m^t",
        keeps="θ_m^t, θ_{m,t}, its running mean, σ_m², a count, ℓ_m and the ℓ that (8) asked for",
        traffic=("2", "1"),
    )

    @property
    def uplink(self) -> Uplink:
        of_both = super().uplink
        # θ_m^t goes up as the preprint has it; the server does nothing with it.
        return {"theta": of_both["theta"], "personal": Mean(relative_to="theta"), "sigma2": of_both["sigma2"]}

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            "algorithm.sums", self.sums, not self.sums, "false: selffl can be computed by sums, not its augmented form"
        )
        check("algorithm.extra_steps", self.extra_steps, self.extra_steps >= 0, "at least 0")
        check("algorithm.tolerance", self.tolerance, self.tolerance >= 0, "at least 0")

    def new_client(self, theta0: Tensor, sent: State) -> State:
        own = super().new_client(theta0, sent)
        return {**own, "personal": sent["theta"], "ell": torch.zeros_like(own["t"])}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        carry, steps = super().begin(own, sent, ctx)
        ell = steps.to(own["t"].dtype)
        carry |= {"personal": carry["theta"], "ell": ell, "left": ell, "moved": torch.full_like(ell, -1.0)}
        extra = torch.where(sent["warm"] > 0, 0, self.extra_steps)
        return carry, steps + extra.to(steps.dtype)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        before, kept = carry["theta"].clone(), each(torch.clone, optimizer_state(carry))
        ctx.descend(carry, "theta", self._slope(grad, before), lr=carry.get("rate"))
        early = carry["left"] > 0
        going = early | (carry["moved"] < 0) | (carry["moved"] > self.tolerance)
        theta = torch.where(going, carry["theta"], before)
        size = torch.linalg.vector_norm(theta).clamp(min=1e-12)
        share = torch.linalg.vector_norm(theta - before) / size
        carry["theta"].copy_(theta)
        carry |= {name: torch.where(going, carry[name], value) for name, value in kept.items()}
        carry["personal"] = torch.where(early, theta, carry["personal"])
        moved = torch.where(carry["moved"] < 0, share, 0.9 * carry["moved"] + 0.1 * share)
        carry["moved"] = torch.where(going, moved, carry["moved"])
        carry["left"] = carry["left"] - 1
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta, personal = carry["theta"], carry["personal"]
        new = {
            "theta": theta,
            "personal": personal,
            "ell": carry["ell"],
            **self._remembered(own, carry, sent, ctx),
        }
        return new, {"theta": theta, "personal": personal, "sigma2": self._told(new)}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["personal"]

    def report(self, own: State, sent: State) -> State:
        """As Self-FL, and ℓ_m (the table's `steps` has the extra steps in it)."""
        return {**super().report(own, sent), "early_steps": own["ell"]}
