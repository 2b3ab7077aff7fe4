"""FedPer: the base layers are everybody's, the last layers are the client's own.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning with personalization layers. arXiv 1912.00818, 2019.

    client   (base, head) ← SGD from (received base, own head), both trained jointly
    server   base ← Σ p_i base_i, as fedavg

`head`, `head_names`: see `heads`. Sent: the base alone ((1−h)/(1−h), h the head's share of the model). A client keeps
its head. Personalized model: the current base with the client's head. Ours: heads start from θ0's; a client that was
never active has the current base with that head.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from personafl.algorithms.base import About, Context, Mean, Sent, Uplink
from personafl.algorithms.heads import WithHead
from personafl.states import State


@dataclass(frozen=True)
class FedPer(WithHead):
    """A shared base and a personal head."""

    about = About(
        name="fedper",
        paper="Arivazhagan et al. 2019",
        personalized="the current base with the client's head",
        keeps="its head",
        traffic=("1 − h", "1 − h"),
        newcomer="trains base and head once from the final base and θ0's head, keeps the head",
    )

    @property
    def uplink(self) -> Uplink:
        return {"base": Mean(weights=self.weights, relative_to="base")}

    def new_server(self, theta0: Tensor, clients: int) -> State:
        base, head = self._pieces.split(theta0)
        return {"base": base.clone(), "head0": head.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"head": self._pieces.split(theta0)[1]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"base": server["base"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self._pieces.join(sent["base"], own["head"])}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        base, head = self._pieces.split(carry["theta"])
        return {"head": head}, {"base": base}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(sent["base"], own["head"])

    def global_model(self, server: State) -> Tensor | None:
        return None
