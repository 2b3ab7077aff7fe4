"""A torch module, a loss and metrics, as functions of ONE client's parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from personafl.errors import ModelError
from personafl.inputs import Inputs, described, some, tensors
from personafl.kernels.batch import Batch as Batch
from personafl.kernels.batch_norm import goes_by_batch
from personafl.kernels.features import WithFeatures, named_layer, uses_features
from personafl.kernels.frame import Frame
from personafl.kernels.layers import replace_layers
from personafl.kernels.losses import Objective, WithLoss, added_to_loss, couples_samples, mean_loss, weighted
from personafl.kernels.outputs import logits
from personafl.kernels.per_sample import PerSample
from personafl.kernels.randomness import keyed_draws, line_that_draws, other_generators
from personafl.kernels.stacked_model import LOW, Move, low_types, move_constants, moves
from personafl.kernels.statistics import Enough, Moments, Recorder, running
from personafl.kernels.vector import ParameterVector
from personafl.kernels.work_size import WorkSize, pass_size
from personafl.tasks import Classification, LearningTask, Metric, OwnTask, Regression

LOSSES: dict[str, type[LearningTask]] = {"cross_entropy": Classification, "mse": Regression}


class ClientTask(ParameterVector):
    """The part of a `Task`, which documents the parameters, that computes for one client."""

    def __init__(
        self,
        module: nn.Module,
        loss: str | Objective | LearningTask = "cross_entropy",
        metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise ModelError(f"unknown loss {loss!r}: known are {', '.join(LOSSES)}, or a function (outputs, y)")
        super().__init__(module)
        kind = LOSSES[loss]() if isinstance(loss, str) else loss
        if not isinstance(kind, LearningTask):
            kind = OwnTask(own_loss=kind)
        self.kind: LearningTask = kind.with_own(None, metrics)
        self.objective: Objective = self.kind.objective
        self.metrics: dict[str, Objective] = self.kind.summed
        self.inner: nn.Module | None = None
        self.per_sample: PerSample | None = None
        self.frame = Frame()
        self._training = replace_layers(_copied(module), self.frame)
        self._inference = replace_layers(_copied(module), self.frame).eval()
        self._low = low_types(module)
        self._constants: dict[str, Tensor] = {
            **{n: p.detach() for n, p in module.named_parameters() if not p.requires_grad},
            **{n: b.detach() for n, b in self._inference.named_buffers() if n not in self.statistic_names},
        }
        types = [torch.float32, *(p.dtype for p in module.parameters() if not p.requires_grad)]
        self.rounding: float = max(torch.finfo(kind).eps for kind in types if kind.is_floating_point)
        self.couples_samples = couples_samples(self.objective) or goes_by_batch(module)
        self._size: WorkSize | None = None
        self._feature_layer = ""
        self._with_features: Self | None = None
        self._device = torch.device("cpu")

    @property
    def precision(self) -> str:
        """Of passes through the model: `float32`, or `bf16` by torch's autocast."""
        return self.frame.precision

    @precision.setter
    def precision(self, value: str) -> None:
        self.frame.precision = value

    @property
    def classification(self) -> bool:
        """Whether the model's outputs are the logits of classes."""
        return self.kind.classification

    # --- features -------------------------------------------------------------------------------------------

    @property
    def feature_layer(self) -> str:
        """Which layer's input or output are the features, see `features.WithFeatures`."""
        return self._feature_layer

    @feature_layer.setter
    def feature_layer(self, layer: str) -> None:
        if layer:
            named_layer(self.template, layer)  # raises where there is none
        self._feature_layer, self._with_features = layer, None

    @property
    def with_features(self) -> Self:
        """The same task with features after the outputs; vectors of parameters are the same."""
        if self._with_features is None:
            self._with_features = type(self)(WithFeatures(self.template, self.feature_layer), self.kind)
        self._with_features.precision = self.precision
        return self._with_features

    def features_of(self, both: Tensor) -> Tensor:
        """The features in what `with_features` puts out."""
        return self._pair.split(both)[1]

    @property
    def _pair(self) -> WithFeatures:
        """The module of `with_features`."""
        pair = self.with_features.template
        assert isinstance(pair, WithFeatures)
        return pair

    def resolved(self, objective: Objective | None) -> tuple[Self, Objective]:
        """An objective as programs give it, as one of outputs alone, and the task whose outputs it takes.

        The loss is added where the objective has `added_to_loss`, and features come after the outputs where it has
        `uses_features`.
        """
        if objective is None:
            return self, self.objective
        task, loss, term = self, self.objective, objective
        if uses_features(objective):
            task, loss, term = self.with_features, self._pair.of_both(loss), self._pair.of_both(term)
        return task, WithLoss(loss, term) if added_to_loss(objective) else term

    # --- passes through the model ---------------------------------------------------------------------------

    def predict(self, theta: Tensor, x: Inputs, weight: Tensor | None = None) -> Tensor:
        """Outputs in evaluation mode. `weight` marks padding, for layers that normalize over the batch.

        Batch normalization goes by the statistics in the vector (P + S,). A vector of parameters alone (P,), as
        programs have it while they train, has none: then it goes by this batch, as in training.
        """
        return self._forward(self._inference, self.split(theta), x, None, weight)

    def statistics(self, theta: Tensor, x: Inputs, weight: Tensor) -> Tensor:
        """What layers of batch normalization keep (S,) after these samples in one batch: see `statistics.py`.

        Only these layers are in training mode: dropout does nothing here, as where the statistics are used.
        """
        recorder = Recorder()
        self._forward(self._inference, self.split(theta), x, None, weight, recorder)
        return running(recorder.seen, self._running0)

    def moments(self, theta: Tensor, x: Inputs, known: Sequence[Moments]) -> Moments | None:
        """What the call of such a layer sees that comes after those whose moments over all data are known, if any."""
        try:
            self._forward(self._inference, self.split(theta), x, None, None, Recorder(known))
        except Enough as enough:
            return enough.moments
        return None

    def running(self, seen: Sequence[Moments]) -> Tensor:
        """The statistics (S,) from the moments of all calls; those that the module came with where there are none."""
        return running(seen, self._running0)

    def loss(self, theta: Tensor, batch: Batch, objective: Objective | None = None, **extra: Tensor) -> Tensor:
        """Mean loss over a batch, in training mode."""
        task, resolved = self.resolved(objective)
        return task._mean_loss(task.split(theta), batch, resolved, extra)

    def gradient(self, theta: Tensor, batch: Batch, objective: Objective | None = None, **extra: Tensor) -> Tensor:
        """Gradient of `loss` for one client, by plain autograd."""
        task, resolved = self.resolved(objective)
        with torch.enable_grad():
            params = {n: p.detach().requires_grad_() for n, p in task.split(theta).items()}
            value = task._mean_loss(params, batch, resolved, extra)
            grads = torch.autograd.grad(value, list(params.values()), allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(params.values(), grads, strict=True)
            ]
        )

    def evaluate(self, theta: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums over the samples of the loss and of what metrics are made of, in evaluation mode."""
        return self.sums(self.predict(theta, batch.x, batch.weight), batch.y, batch.weight)

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """As `evaluate`, of outputs that are there."""
        samples = weight.sum()
        loss = torch.where(samples > 0, mean_loss(self.objective, outputs, y, weight) * samples, 0.0)
        return {"loss": loss} | {n: weighted(f(outputs, y), weight).sum(0) for n, f in self.metrics.items()}

    def takes_any_batch(self, theta: Tensor) -> bool:
        """Whether outputs and losses of a sample in evaluation are the same whatever is in the batch with it."""
        drawn = self.frame.draws.get(False, False)
        return not (self.couples_samples or self.lacks_statistics(theta) or drawn)

    def activation_size(self, x: Inputs) -> int:
        """How many numbers the model's layers put out for one sample, to plan memory by."""
        return self.work_size(x).outputs

    def work_size(self, x: Inputs) -> WorkSize:
        """How much the model computes for one sample, the first of `x`."""
        if self._size is None:
            theta = self.theta0.to(tensors(x)[0].device)
            with torch.no_grad():
                self._size = pass_size(self._inference, lambda: self.predict(theta, some(x, slice(1))))
        return self._size

    def _forward(
        self, module: nn.Module, params: dict[str, Tensor], x: Inputs, key: Tensor | None, weight: Tensor | None,
        recorder: Recorder | None = None,
    ) -> Tensor:  # fmt: skip
        self.frame.enter(key, weight, fixed=len(params) > len(self.names), recorder=recorder)
        shaped = dict(params)
        shaped |= {n: params[n].reshape(s) for n, s in zip(self.names, self.shapes, strict=True)}
        shaped |= {n: shaped[n].to(kind) for n, kind in self._low.items()}
        inputs: tuple[Any, ...] = ((), x) if isinstance(x, dict) else ((x,),)
        self._bring_constants(x)
        with keyed_draws(self.frame, module is self._training), self.frame.autocast(self._device):
            outputs = logits(functional_call(module, (shaped, self._constants), *inputs))
        return outputs.float() if outputs.dtype in LOW else outputs

    def _mean_loss(
        self, params: dict[str, Tensor], batch: Batch, objective: Objective, extra: Mapping[str, Tensor]
    ) -> Tensor:
        outputs = self._forward(self._training, params, batch.x, batch.key, batch.weight)
        return mean_loss(objective, outputs, batch.y, batch.weight, extra)

    def _bring_constants(self, x: Inputs) -> None:
        """Have frozen parameters and buffers where the samples are."""
        device = tensors(x)[0].device
        if device == self._device:
            return
        self._device = device
        self._move_constants(moves(device))

    def _move_constants(self, to: Move) -> None:
        self._constants = {name: to(value) for name, value in self._constants.items()}
        for module in (self._training, self._inference):
            move_constants(module, to)

    # --- checks ---------------------------------------------------------------------------------------------

    def check(self, x: Inputs, y: Tensor) -> None:
        """Try the model on a few real samples; say what is wrong before training starts.

        Raises
        ------
        ModelError
            The model cannot read the samples, its outputs do not fit the labels, it draws random numbers that are not
            torch's, or it changes its buffers in place.
        """
        self._bring_constants(x)
        before = {n: _mark(b) for n, b in self._constants.items()}
        others = other_generators()
        batch = Batch(x, y, torch.ones(len(y), device=y.device), torch.zeros((), dtype=torch.int64, device=y.device))
        try:
            with torch.no_grad():
                outputs = self.predict(self.theta0.to(y.device), x)
                self.kind.check_outputs(outputs, y)
                self._check_values(outputs, y)
                self.loss(self.theta0.to(y.device), batch)
        except ModelError:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ModelError(
                f"{type(self.template).__name__} fails on a batch of features {described(x)} and labels "
                f"{described(y)}: {reason}"
            ) from error
        for name, old in before.items():
            if not torch.equal(_mark(self._constants[name]), old):
                layer = name.rpartition(".")[0]
                raise ModelError(
                    f"buffer {name!r} is changed in place by the forward pass, so clients would share it: "
                    f"make layer {layer!r} free of state, or keep its statistics per batch"
                )
        if other_generators() != others:
            where = line_that_draws(lambda: self.loss(self.theta0.to(y.device), batch))
            raise ModelError(
                f"{type(self.template).__name__} draws from Python's or NumPy's random generator in its forward pass "
                f"({where}), which no client's seed controls: use torch.rand, torch.randint, … there"
            )

    def _check_values(self, outputs: Tensor, y: Tensor) -> None:
        """Whether losses and metrics give what they should."""
        found = {} if couples_samples(self.objective) else {"loss": self.objective(outputs, y)}
        found |= {m.name: m.function(outputs, y) for m in self.kind.measures if m.per == "sample"}
        for name, values in found.items():
            for part in values if isinstance(values, tuple) else (values,):
                if tuple(part.shape) != (len(y),):
                    raise ModelError(
                        f"{name} gives values of shape {tuple(part.shape)} for {len(y)} samples: it must give one "
                        "value per sample (for a torch loss: reduction='none')"
                    )


def _copied(module: nn.Module) -> nn.Module:
    """A copy with parameters of its own; constants, such as a large table of word vectors, are shared."""
    constants = [*module.buffers(), *(p for p in module.parameters() if not p.requires_grad)]
    try:
        return copy.deepcopy(module, {id(constant): constant for constant in constants})
    except RuntimeError as error:  # such as the old nn.utils.weight_norm
        reason = str(error).splitlines()[0]
        raise ModelError(f"{type(module).__name__} cannot be copied: {reason}") from error


MARKED = 2**20
"""Bytes up to which a constant is kept whole to see whether it changes."""


def _mark(constant: Tensor) -> Tensor:
    """What is not the same after a change in place: a copy, or for a large one how often it was written to."""
    if constant.nbytes <= MARKED or constant.is_inference():
        return constant.clone()
    return torch.tensor(constant._version)
