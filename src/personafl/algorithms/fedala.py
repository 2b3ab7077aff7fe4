"""FedALA: each client mixes its own model and the global one, number by number, before it trains.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive local aggregation for personalized federated learning.
AAAI 2023.

    client   θ̂ = θ_i + (Θ − θ_i) ⊙ W_i       in the last `layers` layers; Θ itself in those below
             W_i ← clip[0,1](W_i − η ∇_θ̂ f_i(θ̂) ⊙ (Θ − θ_i))      some times, θ̂ following
             θ_i ← SGD from θ̂
    server   Θ ← Σ p_i θ_i, as fedavg

η is `weight_lr`. Sent: Θ down, θ_i up (1/1). A client keeps θ_i, its personalized model, and W_i, which starts from 1
(Θ alone: FedAvg, as with `layers = 0`). The paper trains W_i to convergence in a client's second round (in its first
there is nothing to mix) and for one pass over a sample of its data (80%) in each round after. Ours: `start_steps` steps
in the second round, `weight_steps` in those after, each on a batch of the round, the first ones, from which the steps
of `[local]` then go on; schedules over steps count them too. W_i takes plain gradient steps whatever the optimizer is.
A client that was never active has Θ. `layers` counts layers: the authors' code counts tensors (a weight and a bias are
two), and its 0 is all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink
from personafl.algorithms.parameter_groups import last_layers
from personafl.algorithms.pieces import Pieces
from personafl.algorithms.search_spaces import searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Local training from an element-wise mixture of the client's model and the global one."""

    layers: int = searched_among(1, (1, 2))
    """How many of the last layers are mixed number by number; 0 is `fedavg`."""
    weight_lr: float = 1.0
    """η of the mixing weights W."""
    start_steps: int = 40
    """Steps for W in a client's second round."""
    weight_steps: int = 1
    """Steps for W in each round after."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    # Which pieces of the vector are mixed: set by `prepare`.
    _pieces: ClassVar[Pieces] = Pieces(())
    about = About(
        name="fedala",
        paper="Zhang et al. 2023",
        personalized="the locally trained θ_i",
        keeps="θ_i, W_i, how often it was active",
    )

    def __post_init__(self) -> None:
        check("algorithm.layers", self.layers, self.layers >= 0, "at least 0 (0: fedavg)")
        check("algorithm.weight_lr", self.weight_lr, self.weight_lr >= 0, "at least 0")
        check("algorithm.start_steps", self.start_steps, self.start_steps >= 0, "at least 0")
        check("algorithm.weight_steps", self.weight_steps, self.weight_steps >= 0, "at least 0")

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def prepare(self, job: JobInfo) -> Self:
        count = len({name.rpartition(".")[0] for name, _ in job.layers})
        most = f"at most {count}, the number of the model's layers"
        check("algorithm.layers", self.layers, self.layers <= count, most)
        fitted, sizes = replace(self), (size for _, size in job.layers)
        pieces = Pieces(tuple(zip(sizes, last_layers(job.layers, self.layers), strict=True)))
        object.__setattr__(fitted, "_pieces", pieces)
        return fitted

    def new_client(self, theta0: Tensor, sent: State) -> State:
        mixed = self._pieces.split(sent["theta"])[1]
        return {"theta": sent["theta"], "W": torch.ones_like(mixed), "rounds": theta0.new_zeros(())}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        weighing = torch.where(own["rounds"] > 1, self.weight_steps, self.start_steps)
        weighing = torch.where(own["rounds"] > 0, weighing, 0) if self.layers else torch.zeros_like(ctx.steps)
        mixed = self._pieces.split(own["theta"])[1]
        carry = {"theta": self._mix(mixed, own["W"], sent), "W": own["W"], "mine": mixed, "left": weighing}
        return carry, weighing + ctx.steps

    def _mix(self, mine: Tensor, W: Tensor, sent: State) -> Tensor:
        below, received = self._pieces.split(sent["theta"])
        # So written, W = 1 gives what was received to the last digit.
        return self._pieces.join(below, torch.where(W == 1, received, mine + (received - mine) * W))

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        if not self.layers or ctx.step >= max(self.start_steps, self.weight_steps):  # nobody has weights to train
            ctx.descend(carry, "theta", grad)
            return carry
        mine, weighing, slope = carry["mine"], carry["left"] > 0, grad(carry["theta"])
        apart = self._pieces.split(sent["theta"])[1] - mine
        W = (carry["W"] - self.weight_lr * self._pieces.split(slope)[1] * apart).clamp(0.0, 1.0)
        trained = {name: value.clone() for name, value in carry.items() if name not in ("W", "mine", "left")}
        ctx.descend(trained, "theta", slope)
        waiting = {name: carry.get(name, torch.zeros_like(value)) for name, value in trained.items()}
        mixed = {**waiting, "theta": self._mix(mine, W, sent)}
        carry |= {name: torch.where(weighing, mixed[name], value) for name, value in trained.items()}
        return carry | {"W": torch.where(weighing, W, carry["W"]), "left": carry["left"] - 1}

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta = carry["theta"]
        return {"theta": theta, "W": carry["W"], "rounds": own["rounds"] + 1}, {"theta": theta}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def report(self, own: State, sent: State) -> State:
        return {"global_share": own["W"].mean()} if self.layers else {}
