"""A round of Self-FL by sums alone: nobody sees a client's model or its σ_m².

With θ what was sent, d_m = θ_m − θ, and Σ over the K clients that answered:

    first sums     Σ d_m,  Σ ‖d_m‖²,  K,  the number of those that know their σ_m², and Σ σ_m² over these
    server         σ0² = Σ ‖d_m‖² − ‖Σ d_m‖²/K   (14),   and the mean σ_m², for those that do not know their own
    second sums    Σ w_m d_m,  Σ w_m,  with w_m = 1/(σ0² + σ_m²)
    server         θ̂ = θ + Σ w_m d_m / Σ w_m   (11)
    next round     S_m = Σ w_k − w_m: the server sends the total, and the client knows its own

These are the numbers of a plain round, but for rounding. What a plain server has that is no sum is a median: who does
not know its σ_m² counts with the mean of the others' here (`unknown = "mean"` has that in plain rounds, too).

All in double: σ0² is a difference of two sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from personafl.states import State

FLOOR = 1e-12


def first_terms(theta: Tensor, sent: Tensor, sigma2: Tensor) -> State:
    """What a client adds first; `sigma2` is −1 where it is not known. Or a row for each of several clients."""
    difference, known = (theta - sent).double(), sigma2 >= 0
    return {
        "difference": difference,
        "square": difference.square().sum(-1),
        "count": torch.ones_like(sigma2).double(),
        "known": known.double(),
        "sigma2": torch.where(known, sigma2, 0.0).double(),
    }


def between_sums(first: State, variance: str) -> State:
    """What the server tells everybody after the first sums: σ0², and the mean σ_m²."""
    spread = (first["square"] - first["difference"].square().sum() / first["count"]).clamp(min=0)
    mean = first["sigma2"] / first["known"].clamp(min=1)
    return {
        "sigma0_2": spread if variance == "sum" else spread / first["count"],
        "usual": torch.where(first["known"] > 0, mean, torch.ones_like(mean)),
    }


def second_terms(first: State, told: State, use_weights: bool) -> State:
    """What a client adds then. Weights are w_m/w with w that of σ_m² = 0, the largest that there can be."""
    sigma2 = torch.where(first["known"] > 0, first["sigma2"], told["usual"]).clamp(min=FLOOR)
    precision = (told["sigma0_2"] + FLOOR) / (told["sigma0_2"] + sigma2)
    weight = precision if use_weights else torch.ones_like(precision)
    return {"weighted": weight[..., None] * first["difference"], "weight": weight, "precision": precision}


def estimate(sent: Tensor, second: State) -> Tensor:
    """θ̂, by the second sums (11)."""
    return sent + (second["weighted"] / second["weight"]).to(sent)


def total_precision(told: State, second: State) -> Tensor:
    """Σ w_m."""
    return second["precision"] / (told["sigma0_2"] + FLOOR)


def add_up(terms: State) -> State:
    """The sums over clients, a row each."""
    return {name: value.sum(0) for name, value in terms.items()}
