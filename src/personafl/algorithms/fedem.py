"""FedEM: every client's data is a mixture of the same few distributions, each with a model; the shares are its own.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated multi-task learning under a mixture of distributions. NeurIPS 2021.

    client   E   q_i(m) ∝ π_m exp(−l(h_m(x_i), y_i))          at the received θ_1 … θ_M and its own π, for each sample
             M   π_m ← mean over its samples of q_i(m)
                 θ_m ← θ_m − η mean over the batch of q_i(m) ∇l(h_m(x_i), y_i)     from the received θ_m
    server   θ_m ← Σ p_i θ_{m,i},  p_i ∝ n_i

Sent: all components (M/M). A client keeps π alone, and its personalized model is Σ π_m h_m: for classes the mixture of
the probabilities, else of the outputs. It is a module of its own (`Mixture`) around M copies of the user's. Ours: the
first component starts from θ0, the others are drawn as IFCA's are, because equal components would stay equal (the paper
draws each anew). π starts uniform, which is what a client that was never active
has; a newcomer finds its π by `newcomer_rounds` E-steps and M-steps. The loss may not couple samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Sent, Uplink
from personafl.algorithms.extras import Welcomes, WrapsModule
from personafl.algorithms.search_spaces import searched_among
from personafl.algorithms.starts import several_starts
from personafl.errors import ConfigError
from personafl.kernels.outputs import logits
from personafl.settings import check
from personafl.states import State
from personafl.tasks import LearningTask


@dataclass(frozen=True)
class FedEM(WrapsModule, Welcomes, Algorithm):
    """A mixture of shared models, with shares of one's own."""

    components: int = searched_among(3, (2, 3, 4))
    """M: how many models are mixed; each costs a model of traffic and time."""
    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""

    about = About(
        name="fedem",
        paper="Marfoq et al. 2021",
        personalized="the shared components, mixed by the client's shares π",
        keeps="π",
        traffic=("M", "M"),
        newcomer="finds its shares π for the final components, by ten E- and M-steps",
    )
    uses_training: ClassVar[bool] = True
    newcomer_rounds: ClassVar[int] = 10
    # The losses (samples, M) of all components, and the sizes of the pieces of one: set by `prepare`.
    _losses: ClassVar[Callable[..., Any]]
    _sizes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check("algorithm.components", self.components, self.components >= 1, "at least 1")

    @property
    def uplink(self) -> Uplink:
        return {"theta": Mean(weights=self.weights, relative_to="theta")}

    def prepare(self, job: JobInfo) -> Self:
        if job.objective is None or getattr(job.objective, "couples_samples", False):
            raise ConfigError("algorithm fedem: it needs a loss for each sample, and this task's loss couples them")
        fitted = replace(self)
        object.__setattr__(fitted, "_losses", partial(_losses, job.objective, self.components))
        of_one = tuple(size for name, size in job.layers if name.startswith("components.0."))
        object.__setattr__(fitted, "_sizes", of_one)
        return fitted

    def wrapped(self, module: nn.Module, kind: LearningTask) -> nn.Module:
        return Mixture(module, self.components, kind.classification)

    def new_server(self, theta0: Tensor, clients: int) -> State:
        first = theta0[self.components :].chunk(self.components)[0]
        return {"theta": several_starts(first, self.components, self._sizes).flatten()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"shares": theta0[: self.components]}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        theta = torch.cat([own["shares"], sent["theta"]])
        shares = ctx.training.mean(self._objective(_responsibilities), theta, shares=own["shares"])
        return {"theta": theta, "received": theta, "shares": shares}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        before = carry["received"][: self.components]
        at = torch.cat([before, carry["theta"][self.components :]])
        objective = self._objective(_weighted)
        slope = grad(at, objective=objective, received=grad.features(carry["received"]), shares=before)
        ctx.descend(carry, "theta", torch.cat([torch.zeros_like(before), slope[self.components :]]))
        return carry

    def _objective(self, function: Callable[..., Any]) -> Any:
        objective = partial(function, self._losses)
        objective.uses_features = True  # type: ignore[attr-defined]
        return objective

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {"shares": carry["shares"]}, {"theta": carry["theta"][self.components :]}

    def welcome(self, server: State, upload: State) -> Sent:
        return Sent({"theta": server["theta"]})

    def personal(self, own: State, sent: State) -> Tensor:
        return torch.cat([own["shares"], sent["theta"]])

    def global_model(self, server: State) -> Tensor | None:
        return None

    def report(self, own: State, sent: State) -> State:
        return {f"share_{m}": share for m, share in enumerate(own["shares"])}


class Mixture(nn.Module):
    """Several copies of a module, whose predictions are mixed; their outputs are its features."""

    def __init__(self, module: nn.Module, count: int, probabilities: bool) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.full((count,), 1 / count))
        self.components = nn.ModuleList([module, *(_copied(module) for _ in range(1, count))])
        self.probabilities = probabilities
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.outputs_and_features(*args, **kwargs)[0]

    def outputs_and_features(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The mixture, and what each component puts out (samples, M · outputs)."""
        each = torch.stack([logits(component(*args, **kwargs)) for component in self.components], 1)
        shares = self.shares.reshape(-1, *(1 for _ in each.shape[2:]))
        if not self.probabilities:
            return (shares * each).sum(1), each.flatten(1)
        each = each.log_softmax(-1)
        return (each + shares.clamp(min=torch.finfo(shares.dtype).tiny).log()).logsumexp(1), each.flatten(1)


def _copied(module: nn.Module) -> nn.Module:
    """A copy with parameters and batch statistics of its own; constants, such as word vectors, are shared."""
    own = {id(kept) for layer in module.modules() if isinstance(layer, _BatchNorm) for kept in layer.buffers()}
    constants = [*module.buffers(), *(p for p in module.parameters() if not p.requires_grad)]
    return copy.deepcopy(module, {id(constant): constant for constant in constants if id(constant) not in own})


def _losses(objective: Callable[..., Any], count: int, features: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """The loss of each component for each sample (samples, M); and how much samples count, where that differs."""
    if features.shape[-1] == 1:  # without data, see `Samples.mean`
        features = features.expand(*features.shape[:-1], count)
    found = [objective(outputs, y) for outputs in features.unflatten(-1, (count, -1)).unbind(-2)]
    if isinstance(found[0], tuple):
        return torch.stack([values for values, _ in found], -1), found[0][1]
    return torch.stack(found, -1), None


def _responsibilities(losses: Any, outputs: Tensor, y: Tensor, features: Tensor, shares: Tensor) -> Tensor:
    """q_i(m), for each sample."""
    fit: Tensor = shares.clamp(min=torch.finfo(shares.dtype).tiny).log() - losses(features, y)[0]
    return fit.softmax(-1)


def _weighted(losses: Any, outputs: Tensor, y: Tensor, features: Tensor, received: Tensor, shares: Tensor) -> Any:
    """Σ_m q_i(m) l(h_m(x_i), y_i), for each sample; q at the received components."""
    q = _responsibilities(losses, outputs, y, received, shares).detach()
    values, counts = losses(features, y)
    total = (q * values).sum(-1)
    return total if counts is None else (total, counts)
