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

from collections.abc import Callable

import torch
from torch import Tensor

from personafl.algorithms.extras import TwoSums
from personafl.algorithms.uploads import Sent, Uploads
from personafl.states import State

FLOOR = 1e-12


class BySums(TwoSums):
    """What Self-FL does otherwise with `sums`."""

    sums: bool
    variance: str
    use_weights: bool
    smoothing: float | str
    prior: float
    _prior_at: Callable[[Tensor], State]
    _shrunk: Callable[[Tensor, Tensor, Tensor, State], Tensor]

    def _new_total(self, theta0: Tensor, clients: int) -> State:
        """What the server keeps: the total of the weights, and who is in it."""
        return {
            "theta": theta0.clone(),
            "sigma0_2": torch.full((), -1.0, device=theta0.device),
            "total": torch.zeros((), dtype=torch.float64, device=theta0.device),
            "counted": torch.zeros(clients, device=theta0.device),
            "round": torch.zeros((), dtype=torch.int64),
            **self._prior_at(theta0),
        }

    def _send_total(self, server: State, ids: Tensor) -> Sent:
        mine = server["counted"][ids.to(server["counted"].device)]
        shared = {"theta": server["theta"], "sigma0_2": server["sigma0_2"], "warm": torch.zeros_like(mine[0])}
        return Sent(shared, {"S": (server["total"] + self.prior).repeat(len(ids)), "mine": mine})

    def _others(self, own: State, sent: State) -> Tensor:
        """S_m; of a total, without this client's own part."""
        if not self.sums:
            return sent["S"]
        known = sent["sigma0_2"].clamp(min=0).double() + own["sigma2"].clamp(min=FLOOR).double()
        return (sent["S"] - sent["mine"] / known).clamp(min=0).float()

    def _aggregate_sums(self, server: State, uploads: Uploads) -> State:
        sums = uploads.values
        if uploads.groups is None:  # nobody has added them up on the way
            rows = first_terms(sums["theta"], server["theta"], sums["sigma2"])
            sums = add_up(rows)
            sums |= add_up(self.second_sums(rows, self.tell(sums)))
        told = self.tell(sums)
        counted = torch.zeros_like(server["counted"]).index_fill(0, uploads.ids.to(server["counted"].device), 1.0)
        share = len(uploads) / len(counted) if self.smoothing == "activity" else float(self.smoothing)
        mass = sums["weight"] / (told["sigma0_2"] + FLOOR)
        aim = self._shrunk(estimate(server["theta"], sums), mass, sums["known"] > 0, server)
        return {
            **server,
            "theta": torch.lerp(server["theta"], aim, share),
            "sigma0_2": told["sigma0_2"].float(),
            "total": total_precision(told, sums),
            "counted": counted,
            "round": server["round"] + 1,
        }

    @property
    def why_no_sums(self) -> str:
        return "" if self.sums else "its server sees each model and σ_m² unless algorithm.sums = true"

    def first_sums(self, up: State, sent: State) -> State:
        return first_terms(up["theta"], sent["theta"], up["sigma2"])

    def tell(self, first: State) -> State:
        return between_sums(first, self.variance)

    def second_sums(self, first: State, told: State) -> State:
        return second_terms(first, told, self.use_weights)


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
