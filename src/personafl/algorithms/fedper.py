"""FedPer: the base layers are everybody's, the last layers are the client's own.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning with personalization layers. arXiv 1912.00818, 2019.

    client   (base, head) ← SGD from (received base, own head), both trained jointly
    server   base ← Σ p_i base_i, as fedavg

The head is the last `head` layers (a layer is a module with parameters of its own), or the parameters whose names start
with one of `head_names`, such as "fc2". Sent: the base alone ((1−h)/(1−h), h the head's share of the model). A client
keeps its head. Personalized model: the current base with the client's head. Ours: heads start from θ0's; a client that
was never active has the current base with that head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Sent, Uplink
from personafl.algorithms.extras import HasHead
from personafl.algorithms.parameter_groups import last_layers, rate_factors
from personafl.algorithms.pieces import Pieces
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedPer(HasHead, Algorithm):
    """A shared base and a personal head."""

    head: int = 1
    head_names: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    # Which pieces of the vector belong to the head: set by `prepare`.
    _pieces: ClassVar[Pieces] = Pieces(())
    about = About(
        name="fedper",
        paper="Arivazhagan et al. 2019",
        personalized="the current base with the client's head",
        keeps="its head",
        traffic=("1 − h", "1 − h"),
        newcomer="trains base and head once from the final base and θ0's head, keeps the head",
    )

    def __post_init__(self) -> None:
        check("algorithm.head", self.head, self.head >= 0, "at least 0")

    @property
    def uplink(self) -> Uplink:
        return {"base": Mean(weights=self.weights, relative_to="base")}

    def prepare(self, job: JobInfo) -> Self:
        modules = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in job.layers))
        count = len(modules)
        check("algorithm.head", self.head, self.head <= count, f"at most {count}, the number of the model's layers")
        last = last_layers(job.layers, self.head)
        for wanted in self.head_names:
            if not any(_within(name, wanted) for name, _ in job.layers):
                names = ", ".join(name for name, _ in job.layers)
                raise ConfigError(f"algorithm.head_names has {wanted!r}, but the model's parameters are {names}")
        pieces = [
            (
                size,
                any(_within(name, n) for n in self.head_names) if self.head_names else own,
            )
            for (name, size), own in zip(job.layers, last, strict=True)
        ]
        rate_factors(job.layers, job.local.groups, [own for _, own in pieces])  # each of them has a parameter
        fitted = replace(self)
        object.__setattr__(fitted, "_pieces", Pieces(tuple(pieces)))
        return fitted

    @property
    def head_pieces(self) -> tuple[bool, ...]:
        return tuple(own for _, own in self._pieces.sizes)

    def new_server(self, theta0: Tensor, clients: int) -> State:
        base, head = self._pieces.split(theta0)
        return {"base": base.clone(), "head0": head.clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"head": self._pieces.split(theta0)[1]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"base": server["base"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self._pieces.join(sent["base"], own["head"])}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        base, head = self._pieces.split(carry["theta"])
        return {"head": head}, {"base": base}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(sent["base"], own["head"])

    def global_model(self, server: State) -> Tensor | None:
        return None


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")
