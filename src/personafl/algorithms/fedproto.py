"""FedProto: class prototypes go up and down instead of parameters.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated prototype learning across heterogeneous clients. AAAI 2022.

    client   θ_i ← θ_i − η ∇ (ℓ_S + λ ℓ_R),  ℓ_R = d(f, C̄_y),  from its own θ_i
             C_i^j = mean of the features f of its samples of class j, at the new θ_i
    server   C̄^j = Σ_i |D_ij| / N_j C_i^j, over the clients that have class j

Sent: C̄ down, and up, for each class, the sum of its features and its share of the client's samples, both of them means
over the client's samples: their means over clients give C̄ (C (d + 1) numbers each way, whatever the size of the
model). A client keeps θ_i, which is its personalized model. λ = 0 is `separate`.

Ours: the printed equation of the server has one more factor 1/|N_j|, which would draw features to zero; the authors'
code takes the unweighted mean over clients. d is the squared distance divided by the number of features and taken for
each sample, as in their code. A class has no pull until somebody has sent its prototype, so the first round has none,
and keeps its prototype while nobody who has it is active. Models predict by their own outputs; the paper's prediction
by the nearest prototype is not offered. All clients have one architecture here. A client that was never active has θ0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Context, Gradient, JobInfo, Mean, Sent, Uplink, Uploads
from personafl.algorithms.extras import ForSomeModels
from personafl.algorithms.prototypes import Alignment, ByClass, classes_and_width
from personafl.algorithms.search_spaces import searched
from personafl.algorithms.separate import Separate
from personafl.settings import check
from personafl.states import State

UNPROTECTED = "a prototype is a sum divided by a share, and a small share with noise may be anything"
UNBOUNDED = (
    "most clients lack a class, and what they send of it are zeros, which a robust rule would take for the usual"
)


@dataclass(frozen=True)
class FedProto(ForSomeModels, Separate):
    """Local training whose features are drawn to everybody's prototype of their class."""

    lam: float = searched(1.0, 0.03, 10.0)
    """λ: how strongly features are drawn to everybody's prototype of their class; 0 is training alone."""

    # The numbers of classes and features: set by `prepare`.
    _by_class: ClassVar[ByClass] = ByClass(0, 0)
    uses_training: ClassVar[bool] = True
    about = About(
        name="fedproto",
        paper="Tan et al. 2022",
        personalized="the client's own model",
        keeps="its model",
        traffic=("prototypes", "prototypes"),
        newcomer="trains once from the common initial weights, drawn to the final prototypes",
    )
    uplink: ClassVar[Uplink] = {"by_class": Mean(weights="samples", unprotected=UNPROTECTED, unbounded=UNBOUNDED)}

    def __post_init__(self) -> None:
        check("algorithm.lam", self.lam, self.lam >= 0, "at least 0: a negative λ would push features from prototypes")

    def prepare(self, job: JobInfo) -> Self:
        fitted = replace(self)
        object.__setattr__(fitted, "_by_class", ByClass(*classes_and_width(self.name, job)))
        return fitted

    def new_server(self, theta0: Tensor, clients: int) -> State:
        classes, width = self._by_class.classes, self._by_class.width
        return {"prototypes": theta0.new_zeros(classes, width), "known": theta0.new_zeros(classes)}

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({name: server[name] for name in ("prototypes", "known")})

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        term = Alignment(self.lam, self._by_class.width)
        gradient = grad(carry["theta"], objective=term, prototypes=sent["prototypes"], known=sent["known"])
        ctx.descend(carry, "theta", gradient)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        assert ctx.training is not None
        return {"theta": carry["theta"]}, {"by_class": ctx.training.mean(self._by_class, carry["theta"])}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        return with_prototypes(server, uploads)


def with_prototypes(server: State, uploads: Uploads) -> State:
    """The server's state with new prototypes of the classes that somebody sent."""
    sums, shares = uploads.mean("by_class").tensor_split([-1], -1)
    shares = shares[:, 0]
    seen = shares > 0
    new = sums / torch.where(seen, shares, 1.0)[:, None]
    prototypes = torch.where(seen[:, None], new, server["prototypes"])
    return {**server, "prototypes": prototypes, "known": torch.maximum(server["known"], seen.to(shares))}
