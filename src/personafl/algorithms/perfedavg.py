"""Per-FedAvg: a global model that is good after one gradient step on a client's data.

Fallah, Mokhtari, Ozdaglar: Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach. NeurIPS 2020.

    client   w̃ = w − α g(w; D),   g̃ = g(w̃; D′)
             first-order    w ← w − β g̃
             Hessian-free   w ← w − β [g̃ − α (g(w + δ g̃; D″) − g(w − δ g̃; D″)) / (2δ)]
    server   w ← mean w_i

D, D′, D″ are different batches of one step; β is the local learning rate, α and δ are `alpha` and `delta`. Sent: w
down, w_i up (1/1). A client keeps nothing. Personalized model: the current w after one α-step on a batch of the
client's training data, made anew before each evaluation. The papers' values: α .01 (.001 for CIFAR), β .001. Ours: the
first-order variant is the default, as the cheaper; δ = .001; the adapting batch has the local batch size. The local
optimizer takes the step along the meta-gradient; α-steps are plain gradient steps whatever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, Mean, Program, Uplink
from personafl.algorithms.extras import SeveralBatches
from personafl.algorithms.fedavg import FineTune
from personafl.algorithms.search_spaces import searched
from personafl.settings import Local, check
from personafl.states import State


@dataclass(frozen=True)
class Adapt(FineTune):
    """α-steps: those of SGD, because the meta-gradient is that of a model after such a step."""

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        given = ctx.local
        local = Local(momentum=given.momentum, weight_decay=given.weight_decay if given.optimizer == "sgd" else 0.0)
        return super().step(carry, sent, grad, replace(ctx, local=local, factors=None))


@dataclass(frozen=True)
class PerFedAvg(SeveralBatches, Algorithm):
    """A global model to start from, one gradient step away from everybody's own."""

    variant: Literal["first-order", "hessian-free"] = "first-order"
    """How the meta-gradient is taken: without second derivatives, or with them by differences."""
    alpha: float = searched(0.01, 0.003, 0.3)
    """α: the learning rate of the adapting step."""
    delta: float = 0.001
    """δ: the length of the differences of the Hessian-free variant."""
    adapt_steps: int = 1
    """Adapting steps on the client's own training data before its model is used."""

    about = About(
        name="perfedavg",
        paper="Fallah et al. 2020",
        personalized="w after one α-step on the client's training data",
        newcomer="takes one α-step from the final w",
    )
    uplink: ClassVar[Uplink] = {"theta": Mean(relative_to="theta")}

    def __post_init__(self) -> None:
        check("algorithm.alpha", self.alpha, self.alpha >= 0, "at least 0")
        check("algorithm.delta", self.delta, self.delta > 0, "above 0: the Hessian is found by a difference")
        check("algorithm.adapt_steps", self.adapt_steps, self.adapt_steps >= 0, "at least 0")

    @property
    def batches_per_step(self) -> int:
        return 3 if self.variant == "hessian-free" else 2

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        w = carry["theta"]
        direction = grad(w - self.alpha * grad(w, batch=0), batch=1)
        if self.variant == "hessian-free":
            ahead, behind = w + self.delta * direction, w - self.delta * direction
            curvature = (grad(ahead, batch=2) - grad(behind, batch=2)) / (2 * self.delta)
            direction = direction - self.alpha * curvature
        ctx.descend(carry, "theta", direction)
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {}, {"theta": carry["theta"]}

    def evaluation_program(self, last: bool) -> Program | None:
        return Adapt(self.adapt_steps, self.alpha)

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]
