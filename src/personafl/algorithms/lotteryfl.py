"""LotteryFL: each client looks for a sparse part of the network that does well on its data, its lottery ticket.

Li, Sun, Wang, Duan, Li, Chen, Li: LotteryFL: Personalized and communication-efficient federated learning with lottery
ticket hypothesis on non-IID datasets. arXiv 2008.03371, 2020.

    client   θ_i = θ ⊙ m_i,  θ the received model
             if its validation accuracy there is above `threshold`, and less than `target` of its weights are pruned:
                 m_i loses the smallest `prune_rate` of the |θ_i| that are left;  θ_i ← θ0 ⊙ m_i  (rewinding)
             θ_i ← θ_i − η ∇f_i(θ_i) ⊙ m_i
    server   every number of θ ← Σ p_i θ_i / Σ p_i over the clients whose m_i keeps it; as it was where nobody's does

Sent: θ down; θ_i and which numbers it lacks up (2/1; the paper sends what m_i keeps, and saves by that, which vectors
of full length do not show). A client keeps θ_i, its personalized model, m_i, and θ0. Weights are pruned, over all
layers together; biases and what has one axis stay. Ours: p_i ∝ n_i; m_i starts from 1, so a client that was never
active has θ; one without validation data never prunes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Uplink, Uploads
from personafl.algorithms.extras import ForSomeModels
from personafl.algorithms.heterofl import mean_of_holders
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State

MASKS = "which parameters a client lacks goes up as it is, without a bound that noise could be scaled by"
HOLDERS = "a mean is divided by the share of those who have a parameter, and no rule bounds what a client says it lacks"


@dataclass(frozen=True)
class LotteryFL(ForSomeModels, Algorithm):
    """Masks of one's own by magnitude, rewinding, and averages among those who keep a parameter."""

    prune_rate: float = 0.2
    """The share of the weights that are left which one pruning takes."""
    target: float = 0.5
    """The share of pruned weights at which a client prunes no more."""
    threshold: float = 0.5
    """The validation accuracy above which a client prunes."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    _prunable: ClassVar[Tensor] = torch.empty(0)  # which numbers of the vector: set by `prepare`
    about = About(
        name="lotteryfl",
        paper="Li et al. 2020",
        personalized="the client's pruned model, locally trained",
        keeps="θ_i, m_i, θ0",
        traffic=("2", "1"),
        newcomer="trains once from the final θ, pruned once where that does well on its validation data",
    )
    uses_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rate, target, threshold = self.prune_rate, self.target, self.threshold
        check("algorithm.prune_rate", rate, 0 <= rate < 1, "in [0, 1): the share of what is left that is pruned")
        check("algorithm.target", target, 0 <= target < 1, "in [0, 1): the share of all that is pruned in the end")
        check("algorithm.threshold", threshold, 0 <= threshold <= 1, "in [0, 1]: a share of right answers")

    @property
    def uplink(self) -> Uplink:
        return {
            "theta": Mean(weights=self.weights, relative_to="theta"),
            "lacks": Mean(weights=self.weights, unprotected=MASKS, unbounded=HOLDERS),
        }

    def prepare(self, job: JobInfo) -> Self:
        if not job.classification:
            raise ConfigError("lotteryfl prunes by validation accuracy: it needs a classification task")
        fitted, sizes = replace(self), torch.tensor([size for _, size in job.layers])
        prunable = torch.tensor([len(shape) > 1 for shape in job.shapes]).repeat_interleave(sizes)
        object.__setattr__(fitted, "_prunable", prunable)
        return fitted

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["theta"], "mask": torch.ones_like(theta0), "theta0": theta0}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.validation is not None
        theta, prunable = sent["theta"] * own["mask"], self._prunable.to(sent["theta"].device)
        left = (own["mask"] * prunable).sum()
        good = ctx.validation(theta)["correct"] > self.threshold
        prunes = good & (1 - left / prunable.sum() < self.target)
        mask = torch.where(prunes, self._pruned(theta, own["mask"], prunable, left), own["mask"])
        return {"theta": torch.where(prunes, own["theta0"] * mask, theta), "mask": mask}, ctx.steps

    def _pruned(self, theta: Tensor, mask: Tensor, prunable: Tensor, left: Tensor) -> Tensor:
        """The mask without the smallest of what is left: those below the first that stays."""
        size = torch.where((mask > 0) & prunable, theta.abs(), torch.inf)
        stays = torch.sort(size).values.gather(0, (self.prune_rate * left).long()[None])
        return mask * (size >= stays)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        ctx.descend(carry, "theta", grad(carry["theta"]) * carry["mask"])
        carry["theta"].mul_(carry["mask"])  # momentum that was kept may be of numbers pruned since
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta, mask = carry["theta"], carry["mask"]
        # What a client lacks goes up as it came, so that only its own part differs from what was sent.
        up = {"theta": torch.where(mask > 0, theta, sent["theta"]), "lacks": 1 - mask}
        return {"theta": theta, "mask": mask, "theta0": own["theta0"]}, up

    def aggregate(self, server: State, uploads: Uploads) -> State:
        return {"theta": mean_of_holders(server["theta"], uploads.mean("theta"), uploads.mean("lacks"))}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def report(self, own: State, sent: State) -> State:
        prunable = self._prunable.to(own["mask"].device)
        return {"kept": (own["mask"] * prunable).sum() / prunable.sum()}
