"""MOON: a client's features are drawn to those of the global model and away from those of its model before.

Li, He, Song: Model-contrastive federated learning. CVPR 2021.

    client   y ← w,  then  y ← y − η ∇ (ℓ_sup + μ ℓ_con)
             ℓ_con = − log  exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ))
    server   w ← Σ p_i y_i, as fedavg

z, z_glob, z_prev are the features of a sample by y, by the w that was received, and by the model that the client had at
the end of its round before; sim is the cosine. Only z has a gradient, the other two models are in evaluation mode.

Sent: w down, y up (1/1). Personalized model: the locally trained y_i, which the client keeps and which is its previous
model in its next round. μ = 0 is fedavg. Ours: features are as `local.features` says, by default what goes into the
last layer (the paper puts a projection head of two layers before it: give a model that has one); ℓ_sup is the task's
loss, whatever it is; a client's first round has z_prev = z_glob, so ℓ_con has no gradient (the authors' code leaves it
out there, which is the same).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from personafl.algorithms.base import Context, Gradient
from personafl.algorithms.fedavg import FedAvg
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class Contrast:
    """μ ℓ_con, for each sample."""

    mu: float
    temperature: float

    uses_features: ClassVar[bool] = True
    added_to_loss: ClassVar[bool] = True

    def __call__(
        self, outputs: Tensor, y: Tensor, features: Tensor, global_features: Tensor, previous_features: Tensor
    ) -> Tensor:
        positive = F.cosine_similarity(features, global_features, -1)
        negative = F.cosine_similarity(features, previous_features, -1)
        # − log e^p / (e^p + e^n) = log(1 + e^(n − p))
        return self.mu * F.softplus((negative - positive) / self.temperature)


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg whose local training contrasts features."""

    mu: float = searched(1.0, 0.03, 10.0)
    """μ: how much the contrast counts beside the loss; 0 is `fedavg`."""
    temperature: float = 0.5
    """τ: how sharply the contrast tells similar features from others."""

    about = replace(
        FedAvg.about, name="moon", paper="Li, He, Song 2021", keeps="y_i, its previous model of the next round"
    )

    def __post_init__(self) -> None:
        check("algorithm.mu", self.mu, self.mu >= 0, "at least 0: a negative μ would push features from the global's")
        check("algorithm.temperature", self.temperature, self.temperature > 0, "above 0")

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"], "previous": own["theta"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        gradient = grad(
            carry["theta"],
            objective=Contrast(self.mu, self.temperature),
            global_features=grad.features(sent["theta"]),
            previous_features=grad.features(carry["previous"]),
        )
        ctx.descend(carry, "theta", gradient)
        return carry
