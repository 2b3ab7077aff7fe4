"""HeteroFL: clients that can afford less train narrower networks, the first channels of the wide one.

Diao, Ding, Tarokh: HeteroFL: Computation and communication efficient federated learning for heterogeneous clients.
ICLR 2021.

    client   W_i = the first ⌈r_i n⌉ of the n outputs, and inputs, of every hidden layer of W; SGD on these alone
    server   every number of W ← the mean over the clients that have it; as it was where nobody has

Inputs of the model and its outputs are never narrowed. While a client trains, what hidden layers put out is divided by
r_i (`scaler`), as dropout does it, so that wide and narrow networks are alike in scale; in use it is not. A division by
r is one of a layer's weights and biases: with s = 1/r for hidden layers and 1 elsewhere, the gradient is s ∇f(s ⊙ W).
Batch normalization goes by the batch, and statistics are made at the end, as the paper's static one: here always.

A narrow network is the vector W with zeros, and computes what the small one would. What this does not show: the time
and traffic that narrow clients save, because vectors have their full length (1/1; the paper's r² of the weights). A
client keeps W_i, its personalized model; W is the global one. `ratios` go round the clients in their order, or round
the groups of the federation (`assign = "groups"`). Ours: a client that was never active has its part of W; a newcomer
is as wide as the first client; the masked loss for missing classes, the paper's third device, is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Gradient, JobInfo, Mean, Sent, Uplink, Uploads
from personafl.algorithms.extras import ForSomeModels
from personafl.algorithms.widths import hidden_layers, least_ratios
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class HeteroFL(ForSomeModels, Algorithm):
    """Sub-networks of several widths, averaged where they overlap."""

    ratios: tuple[float, ...] = (1.0, 0.5, 0.25)
    """The widths of clients' networks, as shares of the whole."""
    assign: Literal["clients", "groups"] = "clients"
    """Whether widths go round the clients, or round the federation's groups."""
    scaler: bool = True
    """Whether narrow networks are scaled in training as wide ones are."""
    weights: Literal["samples", "equal"] = "equal"
    """How clients count in the mean: by their training samples, or all the same."""

    # Of each number of the vector: the width above which a network has it, and whether it is a hidden layer's. And of
    # each client its width. All set by `prepare`.
    _least: ClassVar[Tensor] = torch.empty(0)
    _hidden: ClassVar[Tensor] = torch.empty(0)
    _widths: ClassVar[Tensor] = torch.empty(0)
    about = About(
        name="heterofl",
        paper="Diao et al. 2021",
        personalized="the client's sub-network, locally trained",
        keeps="its sub-network",
        newcomer="trains once from its part of the final W, as wide as the first client",
    )

    def __post_init__(self) -> None:
        some = len(self.ratios) > 0 and all(0 < ratio <= 1 for ratio in self.ratios)
        check("algorithm.ratios", self.ratios, some, "one or more, above 0 and at most 1")
        check("algorithm.assign", self.assign, self.assign in ("clients", "groups"), '"clients" or "groups"')

    @property
    def uplink(self) -> Uplink:
        narrow = "who lacks a parameter answers what was sent, and the mean is corrected for their share"
        return {"theta": Mean(weights=self.weights, relative_to="theta", irreplaceable=narrow)}

    def prepare(self, job: JobInfo) -> Self:
        if self.assign == "groups" and job.groups is None:
            raise ConfigError('algorithm.assign = "groups": must be "clients", the federation has no groups')
        named = job.groups if self.assign == "groups" and job.groups is not None else tuple(range(job.clients))
        place = {name: k for k, name in enumerate(sorted(set(named)))}  # type: ignore[type-var]
        widths = [self.ratios[place[name] % len(self.ratios)] for name in named]
        fitted = replace(self)
        for name, value in (("least", least_ratios(job)), ("hidden", hidden_layers(job)), ("widths", widths)):
            object.__setattr__(fitted, f"_{name}", torch.as_tensor(value, dtype=torch.float32))
        return fitted

    def _has(self, ratio: Tensor | float, like: Tensor) -> Tensor:
        """Which numbers of the vector a network of this width has."""
        return self._least.to(like.device) < ratio

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {"theta": sent["theta"] * self._has(sent["ratio"], theta0)}

    def send(self, server: State, ids: Tensor) -> Sent:
        theta = server["theta"]
        return Sent({"theta": theta}, {"ratio": self._widths[ids.cpu()].to(theta.device)})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        theta = sent["theta"]
        return {"theta": theta * self._has(sent["ratio"], theta)}, ctx.steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        theta, ratio = carry["theta"], sent["ratio"]
        scale = 1 + self._hidden.to(theta.device) * (1 / ratio - 1) if self.scaler else torch.ones_like(theta)
        ctx.descend(carry, "theta", grad(scale * theta) * scale * self._has(ratio, theta))
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta = carry["theta"]
        # What a client does not have goes up as it came, so that only its own part differs from what was sent.
        return {"theta": theta}, {"theta": torch.where(self._has(sent["ratio"], theta), theta, sent["theta"])}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        theta, mean = server["theta"], uploads.mean("theta")
        samples, widths = uploads.samples, self._widths[uploads.ids.cpu()]
        shares = uploads.limit((samples if self.weights == "samples" else torch.ones_like(samples)).double())
        lacking = torch.zeros_like(theta)
        for ratio in widths.unique():
            share = (shares * (widths == ratio).to(shares.device)).sum() / shares.sum()
            lacking += share.to(theta) * ~self._has(float(ratio), theta)
        return {"theta": mean_of_holders(theta, mean, lacking)}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def report(self, own: State, sent: State) -> State:
        return {"width": sent["ratio"]}


def mean_of_holders(sent: Tensor, mean: Tensor, lacking: Tensor) -> Tensor:
    """The mean over those who have a number, where the others, a share `lacking` of all, answered what was sent.

    To the bit the mean where nobody lacks it, and what was sent where everybody does.

    >>> mean_of_holders(torch.tensor([4.0, 4.0]), torch.tensor([5.0, 4.0]), torch.tensor([0.5, 1.0]))
    tensor([6., 4.])
    """
    holding = 1 - lacking
    spread = mean + (mean - sent) * lacking / holding.clamp(min=1e-12)
    return torch.where(holding > 1e-6, spread, sent)
