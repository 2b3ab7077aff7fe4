"""LG-FedAvg: the representation is the client's own, the last layers are everybody's: FedPer the other way round.

Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think locally, act globally: Federated learning with
local and global representations. arXiv 2001.01523, 2020.

    client   (ℓ_i, g_i) ← SGD from (own ℓ_i, received g), both trained jointly
    server   g ← Σ p_i g_i, p_i ∝ n_i

ℓ_i is the body of the model, g its head (`head`, `head_names`: see `heads`). Sent: the head alone (h/h, its share of
the model). A client keeps its body. Personalized model: the client's body with the current head. For clients that were
not there the paper takes an ensemble of everybody's models (its authors' code also their average), for which everybody
would have to hand over the body; here no body is ever sent, so there is no global model, and a newcomer trains a body
of its own. Ours: bodies start from θ0's (the authors' code starts from a model that FedAvg has trained); a client that
was never active has the current head with that body, which do not fit each other well.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from personafl.algorithms.base import About, Context, Mean, Sent, Uplink
from personafl.algorithms.heads import HeadAndBody
from personafl.states import State


@dataclass(frozen=True)
class LGFedAvg(HeadAndBody):
    """A personal representation under a shared head."""

    about = About(
        name="lg-fedavg",
        paper="Liang et al. 2020",
        personalized="the client's body with the current head",
        keeps="its body",
        traffic=("h", "h"),
        newcomer="trains body and head once from θ0's body and the final head, keeps the body",
    )

    @property
    def uplink(self) -> Uplink:
        return {"head": Mean(weights=self.weights, relative_to="head")}

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"head": self._pieces.split(theta0)[1].clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"body": self._pieces.split(theta0)[0]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"head": server["head"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self._pieces.join(own["body"], sent["head"])}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        body, head = self._pieces.split(carry["theta"])
        return {"body": body}, {"head": head}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(own["body"], sent["head"])

    def global_model(self, server: State) -> Tensor | None:
        return None
