"""kNN-Per: the global model and, beside it, the client's memory of its own samples.

Marfoq, Neglia, Kameni, Vidal: Personalized federated learning through local memorization. ICML 2022.

    training   w by fedavg
    client     remembers (φ_w(x_i), y_i) of its training samples: their features by the final w, and their classes
               p_kNN(y | x) ∝ Σ over the `neighbours` nearest, 1{y_i = y} exp(−‖φ_w(x) − φ_w(x_i)‖ / scale)
               p(y | x) = λ p_kNN(y | x) + (1 − λ) p_w(y | x),  λ by the accuracy on its validation data

Sent: w down, y up (1/1), as `fedavg`. A client keeps nothing: the memory is made anew before each evaluation, of at
most `memory` samples, evenly spaced where there are more. The personalized model is a module of its own (`WithMemory`)
around the user's, whose vector has the keys, the labels and λ beside w; its outputs are log-probabilities. λ = 0 is the
global model of fedavg, λ = 1 a classifier by neighbours.

Ours: features are what the layer `layer` gives or is given, as `local.features` has it, by default what goes into the
last layer; it must be linear, so that their number is known. λ is the smallest of 0, .1, …, 1 with the best accuracy,
or `lam` for everybody; a client without validation data has .5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personafl.algorithms.base import Context, Gradient, JobInfo, Program
from personafl.algorithms.extras import ForSomeModels, WrapsModule
from personafl.algorithms.fedavg import FedAvg
from personafl.errors import ConfigError
from personafl.kernels.features import WithFeatures
from personafl.settings import check
from personafl.states import State
from personafl.tasks import LearningTask

GRID = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class KNNPer(ForSomeModels, WrapsModule, FedAvg):
    """FedAvg's model, mixed with the nearest of the client's own samples."""

    neighbours: int = 10
    """How many of the nearest training samples vote."""
    memory: int = 200
    """How many training samples a client remembers, at the most."""
    scale: float = 1.0
    """The distance between features over which a neighbour's vote fades."""
    lam: float | None = None
    """λ: the share of the neighbours in the answer. Left out: chosen on validation data."""
    layer: str = ""
    """The layer whose features are compared. Empty: what goes into the last layer."""

    # The shape of the keys and the number of classes: set by `prepare`.
    _shape: ClassVar[tuple[int, int, int]] = (0, 0, 0)
    about = replace(
        FedAvg.about,
        name="knnper",
        paper="Marfoq et al. 2022",
        personalized="the global model, mixed with the nearest of the client's training samples",
        keeps="nothing",
        newcomer="remembers its samples by the final global model",
    )

    def __post_init__(self) -> None:
        check("algorithm.memory", self.memory, self.memory >= 1, "at least 1 sample")
        fit = 1 <= self.neighbours <= self.memory
        check("algorithm.neighbours", self.neighbours, fit, f"at least 1, and at most {self.memory}, the memory")
        check("algorithm.scale", self.scale, self.scale > 0, "above 0")
        check("algorithm.lam", self.lam, self.lam is None or 0 <= self.lam <= 1, "in [0, 1], or left out")

    def wrapped(self, module: nn.Module, kind: LearningTask) -> nn.Module:
        if not kind.classification:
            raise ConfigError(f"{self.name} lets the classes of neighbours vote: it needs a classification task")
        return WithMemory(WithFeatures(module, self.layer, "algorithm.layer"), self)

    def prepare(self, job: JobInfo) -> Self:
        fitted, (rows, width) = replace(self), job.shapes[0]
        object.__setattr__(fitted, "_shape", (rows, width, job.shapes[-1][0]))
        return fitted

    @property
    def _empty(self) -> int:
        """How many numbers the memory has: keys, labels and λ; all are 0 where there is none."""
        rows, width, _ = self._shape
        return rows * width + rows + 1

    def _without_memory(self, theta: Tensor) -> Tensor:
        return torch.cat([theta.new_zeros(self._empty), theta])

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"theta": theta0[self._empty :].clone()}

    def new_client(self, theta0: Tensor, sent: State) -> State:
        return {}

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self._without_memory(sent["theta"])}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {}, {"theta": carry["theta"][self._empty :]}

    def evaluation_program(self, last: bool) -> Program | None:
        return Remember(self)

    def personal(self, own: State, sent: State) -> Tensor:
        return torch.cat([own["memory"], sent["theta"]])

    def global_model(self, server: State) -> Tensor | None:
        return self._without_memory(server["theta"])

    def report(self, own: State, sent: State) -> State:
        return {"knn_share": own["memory"][-1] if "memory" in own else torch.full_like(sent["theta"][0], torch.nan)}


@dataclass(frozen=True)
class Remember(Program):
    """Fills the memory with the client's training samples, and chooses λ."""

    algorithm: KNNPer

    uses_training: ClassVar[bool] = True
    uses_validation: ClassVar[bool] = True

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": self.algorithm._without_memory(sent["theta"])}, torch.zeros_like(ctx.steps)

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        return carry

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        assert ctx.training is not None and ctx.validation is not None
        rows, width, classes = self.algorithm._shape
        samples = ctx.training.mean(Keys(rows, width), carry["theta"])
        memory = torch.cat([samples[:, :width].flatten(), samples[:, width]])
        if self.algorithm.lam is not None:
            share = torch.full_like(memory[:1], self.algorithm.lam)
        else:
            theta = torch.cat([memory, memory.new_zeros(1), sent["theta"]])
            found = ctx.validation.mean(Accuracies(classes), theta)
            grid = torch.tensor(GRID, device=found.device)
            best = grid.gather(0, torch.argmax(found[:-1] - 1e-6 * grid, 0, keepdim=True))
            share = torch.where(found[-1:] > 0, best, 0.5)
        return {"memory": torch.cat([memory, share])}, {}


class WithMemory(nn.Module):
    """A module with a memory: its outputs are logarithms of mixed probabilities; in training those of the module."""

    def __init__(self, pair: WithFeatures, algorithm: KNNPer) -> None:
        super().__init__()
        self.memory = Neighbours(algorithm, width_of(pair))
        self.pair = pair

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs, features = self.pair.split(self.pair(*args, **kwargs))
        return outputs if self.training else self.memory(outputs, features)[0]

    def outputs_and_features(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The features, and the probabilities by the module and by the neighbours."""
        outputs, features = self.pair.split(self.pair(*args, **kwargs))
        mixed, votes = self.memory(outputs.detach(), features.detach())
        return outputs if self.training else mixed, torch.cat([features, outputs.softmax(-1), votes], -1)


class Neighbours(nn.Module):
    """Keys, labels (from 1; 0 for a place without a sample) and λ."""

    def __init__(self, algorithm: KNNPer, width: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(algorithm.memory, width))
        self.labels = nn.Parameter(torch.zeros(algorithm.memory))
        self.share = nn.Parameter(torch.zeros(1))
        self.neighbours, self.scale = algorithm.neighbours, algorithm.scale

    def forward(self, outputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """log(λ p_kNN + (1 − λ) p), and p_kNN."""
        keys, labels, share = self.keys.detach(), self.labels.detach().round().long(), self.share.detach()
        features = features.to(keys.dtype)
        distance = torch.cdist(features, keys, compute_mode="donot_use_mm_for_euclid_dist")
        near, at = (-distance / self.scale).masked_fill(labels == 0, -1e30).topk(self.neighbours, -1)
        weight = (near - near[:, :1]).exp() * (near > -1e29)
        of_class = F.one_hot(labels[at], outputs.shape[-1] + 1)[..., 1:].to(weight)
        votes = (weight.unsqueeze(-1) * of_class).sum(1) / weight.sum(-1, keepdim=True).clamp(min=1e-30)
        tiny = torch.finfo(votes.dtype).tiny
        by_votes = share.clamp(min=tiny).log() + votes.clamp(min=tiny).log()
        by_model = (1 - share).clamp(min=tiny).log() + outputs.float().log_softmax(-1)
        return torch.logaddexp(by_votes, by_model), votes


@dataclass(frozen=True)
class Keys:
    """Features and labels (from 1) of at most `rows` samples, evenly spaced where there are more; 0 where fewer."""

    rows: int
    width: int

    uses_features: ClassVar[bool] = True
    couples_samples: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, y: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        samples = torch.cat([features[:, : self.width], (y + 1).to(features).unsqueeze(1)], 1) * weight.unsqueeze(1)
        samples = F.pad(samples, (0, 0, 0, max(self.rows - len(samples), 0)))
        place = torch.arange(self.rows, device=weight.device)
        place = (place * weight.sum().clamp(min=self.rows) / self.rows).floor().long()
        return samples.index_select(0, place)


@dataclass(frozen=True)
class Accuracies:
    """Whether the mixture is right for each λ of the grid, and 1, for each sample."""

    classes: int

    uses_features: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """How many features it takes: the classes' probabilities by the model and by the neighbours."""
        return 2 * self.classes

    def __call__(self, outputs: Tensor, y: Tensor, features: Tensor) -> Tensor:
        model, votes = features[:, -2 * self.classes :].split(self.classes, -1)
        share = torch.tensor(GRID, device=features.device)[:, None]
        mixed = share * votes.unsqueeze(1) + (1 - share) * model.unsqueeze(1)
        right = (mixed.argmax(-1) == y.unsqueeze(1)).to(features)
        return F.pad(right, (0, 1), value=1.0)


def width_of(pair: WithFeatures) -> int:
    """The number of features, which go into or come out of a linear layer."""
    layer = pair.module.get_submodule(pair.place)
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"knnper: layer {pair.place!r} is a {type(layer).__name__}, and the number of features must be known: name "
            'a linear layer as algorithm.layer, by its output ("fc1") or its input ("fc2.input")'
        )
    return layer.in_features if pair.side == "input" else layer.out_features
