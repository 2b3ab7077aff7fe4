"""FedBN: normalization layers are the client's own, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated learning on non-IID features via local batch normalization. ICLR 2021.

    client   (base, norms) ← SGD from (received base, own norms), both trained jointly
    server   base ← Σ p_i base_i, as fedavg

The norms are the weights and biases of the layers of batch normalization, or of all normalization layers (LayerNorm,
GroupNorm, …) with `norms = "all"`; the statistics of batch normalization are each client's own under every algorithm.
Sent: the base alone ((1−h)/(1−h), h the norms' share of the model). A client keeps its norms. Personalized model: the
current base with the client's norms. Ours: norms start from θ0's; a client that was never active has the current base
with those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, JobInfo, Mean, Sent, Uplink
from personafl.algorithms.extras import ForSomeModels
from personafl.algorithms.pieces import Pieces
from personafl.errors import ConfigError
from personafl.states import State


@dataclass(frozen=True)
class FedBN(ForSomeModels, Algorithm):
    """Shared layers with personal normalization between them."""

    norms: Literal["batch", "all"] = "batch"
    """Which layers stay with the client: those of batch normalization, or all that normalize."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    # Which pieces of the vector are norms: set by `prepare`.
    _pieces: ClassVar[Pieces] = Pieces(())
    about = About(
        name="fedbn",
        paper="Li et al. 2021",
        personalized="the current base with the client's norms",
        keeps="the parameters of its normalization layers",
        traffic=("1 − h", "1 − h"),
        newcomer="trains base and norms once from the final base and θ0's norms, keeps the norms",
    )

    @property
    def uplink(self) -> Uplink:
        return {"base": Mean(weights=self.weights, relative_to="base")}

    def prepare(self, job: JobInfo) -> Self:
        wanted = "BatchNorm" if self.norms == "batch" else "Norm"
        own = [bool(re.search(f"{wanted}(?![a-z])", kind)) for kind in job.kinds]
        if not any(own):
            other = ', or keep all normalization layers with norms = "all"' if self.norms == "batch" else ""
            raise ConfigError(
                f"algorithm fedbn: the model has no trainable {wanted} layer that clients could keep, but "
                f"{', '.join(dict.fromkeys(job.kinds))}: use fedavg or fedper{other}"
            )
        fitted = replace(self)
        pieces = zip((size for _, size in job.layers), own, strict=True)
        object.__setattr__(fitted, "_pieces", Pieces(tuple(pieces)))
        return fitted

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"base": self._pieces.split(theta0)[0].clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"norms": self._pieces.split(theta0)[1]}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({"base": server["base"]})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self._pieces.join(sent["base"], own["norms"])}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        base, norms = self._pieces.split(carry["theta"])
        return {"norms": norms}, {"base": base}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(sent["base"], own["norms"])

    def global_model(self, server: State) -> Tensor | None:
        return None
