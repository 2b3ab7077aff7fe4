"""FedRoD: a generic model trained as if classes were balanced, and a personal head on top of it.

Chen, Chao: On bridging generic and personalized federated learning for image classification. ICLR 2022.

    client   (θ, ψ) ← (θ, ψ) − η ∇ CE(ψ(z) + γ log n_i, y)     z = θ(x); n_i the client's samples of each class
             φ_i ← φ_i − η ∇_φ CE(ψ(z) + φ_i(z), y)             nothing of this reaches θ or ψ
    server   (θ, ψ) ← Σ p_i (θ_i, ψ_i), as fedavg

θ is the body, ψ the generic head, φ_i the personal one (the paper's linear form; its hypernetwork that makes φ_i from
n_i is not here). Both heads are linear, so ψ + φ_i is one linear layer: the personalized model is the vector
(θ, ψ + φ_i), and the gradient of φ_i is the head's part of the gradient there. The last layer must therefore be an
`nn.Linear` whose outputs are the model's. γ = 1 is the paper's balanced softmax; with γ = 0 the generic model is
FedAvg's. Sent: (θ, ψ) (1/1). A client keeps φ_i. Personalized model: (θ, ψ + φ_i) with the current θ and ψ. Ours: φ_i
starts from 0, so a client that was never active has the generic model (others start it from a copy of ψ, which doubles
the logits); both gradients of a step are taken at the same point, before either moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Context, Gradient, JobInfo, Mean, Uplink
from personafl.algorithms.extras import ForSomeModels
from personafl.algorithms.heads import WithHead
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State
from personafl.tasks.classes import cross_entropy


@dataclass(frozen=True)
class FedRoD(ForSomeModels, WithHead):
    """A generic model with balanced softmax, and a personal head beside its own."""

    gamma: float = 1.0
    """γ: how strongly the loss of the generic model is balanced over classes; 0 is the plain loss."""

    _classes: ClassVar[int] = 0  # set by `prepare`
    about = About(
        name="fedrod",
        paper="Chen, Chao 2022",
        personalized="the current generic model with the sum of both heads",
        keeps="its head",
        newcomer="trains its head, from 0, and the generic model once from the final one, keeps its head",
    )
    uses_training: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.gamma", self.gamma, self.gamma >= 0, "at least 0 (0: classes as they are)")

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def prepare(self, job: JobInfo) -> Self:
        if not job.classification:
            raise ConfigError("fedrod balances classes: it needs a classification task")
        fitted = super().prepare(job)
        pieces = zip(job.layers, job.kinds, job.shapes, fitted.head_pieces, strict=True)
        head = [(name.rpartition(".")[0], kind, shape) for (name, _), kind, shape, own in pieces if own]
        if {kind for _, kind, _ in head} != {"Linear"} or len({module for module, _, _ in head}) != 1:
            found = ", ".join(dict.fromkeys(f"{kind} {module!r}" for module, kind, _ in head)) or "nothing"
            raise ConfigError(f"fedrod adds two heads up: its head must be one layer nn.Linear, the last, not {found}")
        object.__setattr__(fitted, "_classes", head[0][2][0])
        return fitted

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"head": torch.zeros_like(self._pieces.split(theta0)[1])}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        shares = ctx.training.mean(self._one_hot, sent["theta"])
        # A class that the client does not have: its logit counts for nothing, and stays finite.
        prior = self.gamma * shares.clamp(min=1e-30).log()
        return {"theta": sent["theta"], "head": own["head"], "prior": prior}, ctx.steps

    def _one_hot(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (y.unsqueeze(-1) == torch.arange(self._classes, device=y.device)).float()

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        body, generic = self._pieces.split(carry["theta"])
        whole = self._pieces.join(body, generic + carry["head"])
        personal = self._pieces.split(grad(whole))[1]
        balanced = grad(carry["theta"], objective=balanced_softmax, prior=carry["prior"])
        ctx.descend(carry, "theta", balanced)
        self.for_part(ctx, head=True).descend(carry, "head", personal)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"head": carry["head"]}, {"theta": carry["theta"]}

    def personal(self, own: State, sent: State) -> Tensor:
        body, generic = self._pieces.split(sent["theta"])
        return self._pieces.join(body, generic + own["head"])


def balanced_softmax(outputs: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """−log (n_y^γ exp(g_y) / Σ_c n_c^γ exp(g_c)) for each sample; `prior` is γ log n, up to a constant."""
    return cross_entropy(outputs + prior, y)
