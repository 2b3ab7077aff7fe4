"""FedFomo: a client takes of other clients' models what lowers its own validation loss.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized federated learning with first order model optimization. ICLR 2021.

    client   g_j = (L_i(θ_i) − L_i(θ_j)) / ‖θ_j − θ_i‖     L_i the loss on its validation data, θ_j the models it gets
             w_j = max(g_j, 0) / Σ max(g_j, 0)
             θ_i ← θ_i + Σ w_j (θ_j − θ_i),  then local SGD
    server   P_ij ← P_ij + g_j;  sends client i the models of the `candidates` clients of the largest P_ij, each of them
             with probability ε_t = max(ε − round · decay, 0) one at random instead

Sent: `candidates` models down, θ_i and the g_j up (1 + scalars). A client keeps θ_i, its personalized model; the
server keeps the latest model of everybody.

Ours: θ_i is what the client trained last; five candidates, ε = 0.3 and a decay of 0.05 a round; where there are fewer
other clients, all of them. Clients that were never active are not sent to others, unless there are too few who were.
Chance follows from the run's initial weights, the client and the round. A client begins with the mean of the models
that it is first sent; one that was never active has the mean of all that were; a newcomer is sent those that were
liked most. Without validation data g = 0, and a client trains on from θ_i. θ_i is compared with nothing that was sent,
so `[privacy]` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Sent, Uplink, Uploads
from personafl.algorithms.extras import ReportsServer, SendsForEvaluation, Welcomes
from personafl.settings import check
from personafl.states import Ints, State
from personafl.streams import array_key, generator

CHOSEN = "its clients weigh the models of others themselves, by what each does on their own validation data"
UNPROTECTED = "a client's model goes on from the one that it kept, and what it measures goes up too"


@dataclass(frozen=True)
class FedFomo(SendsForEvaluation, Welcomes, ReportsServer, Algorithm):
    """Models of those that help, weighed by how much they do."""

    candidates: int = 5
    """How many other clients' models a client is sent."""
    explore: float = 0.3
    """ε: the chance that one of them is drawn at random, in the first round."""
    explore_decay: float = 0.05
    """By how much ε falls with each round."""

    uses_validation: ClassVar[bool] = True
    about = About(
        name="fedfomo",
        paper="Zhang et al. 2021",
        personalized="θ_i",
        keeps="θ_i",
        traffic=("1 + scalars", "`candidates`"),
        newcomer="takes of the models that others liked most what lowers its validation loss, and trains once",
    )
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="the server sends single models to other clients", unprotected=UNPROTECTED, unbounded=CHOSEN),
        "gains": Each(why="the server learns whose models help whom", unprotected=UNPROTECTED),
    }

    def __post_init__(self) -> None:
        check("algorithm.candidates", self.candidates, self.candidates >= 1, "at least 1 model")
        check("algorithm.explore", self.explore, 0 <= self.explore <= 1, "in [0, 1], a probability")
        check("algorithm.explore_decay", self.explore_decay, self.explore_decay >= 0, "at least 0")

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {
            "models": theta0.expand(clients, -1).clone(),
            "affinity": theta0.new_zeros(clients, clients),
            "seen": torch.zeros(clients, dtype=torch.bool, device=theta0.device),
            "round": torch.zeros((), dtype=torch.int64),
            "key": torch.tensor(array_key(theta0.cpu().numpy())),
        }

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["models"].mean(0)}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({}, {"models": server["models"][self._candidates(server, ids)]})

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        seen = server["seen"] if server["seen"].any() else ~server["seen"]
        return Sent({"models": server["models"][seen].mean(0, keepdim=True)})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.validation is not None
        theta, before = own["theta"], ctx.validation(own["theta"])["loss"]
        apart = [model - theta for model in sent["models"]]
        lower = [before - ctx.validation(model)["loss"] for model in sent["models"]]
        gains = torch.stack([less / gap.norm().clamp(min=1e-12) for less, gap in zip(lower, apart, strict=True)])
        positive = gains.clamp(min=0)
        weights = positive / positive.sum().clamp(min=1e-30)
        return {"theta": theta + weights @ torch.stack(apart), "gains": gains}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"theta": carry["theta"]}, {"theta": carry["theta"], "gains": carry["gains"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        ids = uploads.ids.to(server["models"].device)
        sent = self._candidates(server, uploads.ids)
        affinity = server["affinity"].index_put((ids[:, None], sent), uploads["gains"], accumulate=True)
        seen = server["seen"].index_fill(0, ids, True)
        server["models"].index_copy_(0, ids, uploads["theta"])
        return {**server, "affinity": affinity, "seen": seen, "round": server["round"] + 1}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report_server(self, server: State) -> State:
        return {"affinity": server["affinity"]}

    def welcome(self, server: State, upload: State) -> Sent:
        liked = server["affinity"].sum(0).masked_fill(~server["seen"], -torch.inf)
        best = torch.argsort(liked, descending=True, stable=True)[torch.arange(self.candidates) % len(liked)]
        return Sent({}, {"models": server["models"][best][None]})

    def _candidates(self, server: State, ids: Tensor) -> Tensor:
        """Whose models these clients get, (K, candidates): of each client the same whoever else is asked for."""
        affinity, seen = server["affinity"].cpu().numpy(), server["seen"].cpu().numpy()
        round, key = int(server["round"]), int(server["key"])
        chance = max(self.explore - round * self.explore_decay, 0.0)
        rows = []
        for i in ids.tolist():
            others = np.flatnonzero(np.arange(len(seen)) != i)
            known = others[seen[others]]
            others = known if len(known) >= self.candidates else others
            rows.append(self._choose(affinity[i], others, i, chance, generator(key, f"fedfomo {i}", round)))
        return torch.from_numpy(np.array(rows)).to(server["models"].device)

    def _choose(self, liking: np.ndarray, others: Ints, i: int, chance: float, draw: np.random.Generator) -> list[int]:
        """ε-greedy; ties are broken by chance. Where there are too few others, a client gets its own model."""
        shuffled, at_random = draw.permutation(others), draw.permutation(others).tolist()
        best = shuffled[np.argsort(-liking[shuffled], kind="stable")].tolist()
        chosen: list[int] = []
        for explores in draw.random(self.candidates) < chance:
            left = [j for j in (at_random if explores else best) if j not in chosen]
            chosen.append(left[0] if left else i)
        return chosen
