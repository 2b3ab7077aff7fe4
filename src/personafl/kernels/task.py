"""A torch module, a loss and metrics, as functions of one flat parameter vector."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.parameter import is_lazy

from personafl.errors import ModelError
from personafl.inputs import Inputs, described, each_input, some, tensors
from personafl.kernels import stacking, together
from personafl.kernels.batch_norm import goes_by_batch, tracked_layers
from personafl.kernels.features import WithFeatures, named_layer, uses_features
from personafl.kernels.frame import Frame
from personafl.kernels.layers import replace_layers
from personafl.kernels.losses import Objective as Objective
from personafl.kernels.losses import WithLoss, added_to_loss, couples_samples, mean_loss, mean_losses
from personafl.kernels.mlp import Chain
from personafl.kernels.outputs import logits
from personafl.kernels.randomness import keyed_draws, line_that_draws, other_generators
from personafl.kernels.stacked_model import LOW, Plan, StackedModel, low_types, move_constants, moves
from personafl.kernels.statistics import Enough, Moments, Recorder, running
from personafl.kernels.together import Together
from personafl.tasks import Classification, LearningTask, Metric, OwnTask, Regression
from personafl.tasks.classes import cross_entropy


@dataclass(frozen=True)
class Batch:
    """Samples of one client (or, with a leading axis on every field, of several).

    `weight` is 1 for a sample and 0 for padding; `key` seeds dropout for this client and step.
    """

    x: Inputs
    y: Tensor
    weight: Tensor
    key: Tensor


LOSSES: dict[str, type[LearningTask]] = {"cross_entropy": Classification, "mse": Regression}


class Task:
    """What clients learn: a module with its loss and metrics, as functions of a flat float32 vector.

    Parameters
    ----------
    module
        Any `nn.Module`. Parameters with `requires_grad=False` and buffers are constants that all clients share;
        the others make up the vector, in the order of `named_parameters()`. Modes are honoured: a submodule in `eval()`
        stays so while clients train.
    loss
        A task such as `pf.tasks.Multilabel()`, which has a loss and metrics; `"cross_entropy"` for
        `pf.tasks.Classification()`, `"mse"` for `pf.tasks.Regression()`; or a function `(outputs, y) -> value per
        sample`, which has no metrics.
    metrics
        More metrics: name to a function `(outputs, y) -> value per sample` or a `pf.Metric`.

    Attributes
    ----------
    kind
        The task: its loss is `objective`, and `metrics` are the functions whose sums over samples evaluation gives.
    inner
        The user's module, where an algorithm has put another one around it (`extras.WrapsModule`).

    Examples
    --------
    >>> task = Task(nn.Linear(3, 2))
    >>> task.size
    8
    >>> task.predict(task.theta0, torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | Objective | LearningTask = "cross_entropy",
        metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise ModelError(f"unknown loss {loss!r}: known are {', '.join(LOSSES)}, or a function (outputs, y)")
        for name, parameter in module.named_parameters():
            if is_lazy(parameter):
                raise ModelError(f"parameter {name!r} is not initialized: pass one batch through the lazy module first")
        kind = LOSSES[loss]() if isinstance(loss, str) else loss
        if not isinstance(kind, LearningTask):
            kind = OwnTask(own_loss=kind)
        self.kind: LearningTask = kind.with_own(None, metrics)
        self.objective: Objective = self.kind.objective
        self.metrics: dict[str, Objective] = self.kind.summed
        self.template = module
        self.inner: nn.Module | None = None
        self.frame = Frame()
        self._training = replace_layers(_copied(module), self.frame)
        self._inference = replace_layers(_copied(module), self.frame).eval()
        trainable = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ModelError(f"{type(module).__name__} has no trainable parameters: nothing to learn")
        self.names = list(trainable)
        self.kinds = tuple(_kind(module.get_submodule(name.rpartition(".")[0])) for name in self.names)
        self.shapes = [p.shape for p in trainable.values()]
        self._low = low_types(module)
        self.sizes = [p.numel() for p in trainable.values()]
        self.size = sum(self.sizes)
        self.theta0: Tensor = torch.cat([p.flatten().float() for p in trainable.values()])
        tracked = {
            f"{path}.{name}".lstrip("."): getattr(layer, name).detach().float()
            for path, layer in tracked_layers(module).items()
            for name in ("running_mean", "running_var")
        }
        self.statistic_names, self._running0 = list(tracked), list(tracked.values())
        self._statistic_sizes = [value.numel() for value in tracked.values()]
        self.full_size: int = self.size + sum(self._statistic_sizes)
        self._constants: dict[str, Tensor] = {
            **{n: p.detach() for n, p in module.named_parameters() if not p.requires_grad},
            **{n: b.detach() for n, b in self._inference.named_buffers() if n not in tracked},
        }
        tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.named_parameters()))
        types = [torch.float32, *(p.dtype for p in module.parameters() if not p.requires_grad)]
        self.rounding: float = max(torch.finfo(kind).eps for kind in types if kind.is_floating_point)
        self.couples_samples = couples_samples(self.objective) or goes_by_batch(module)
        self._activations: int | None = None
        self.stacks_natively = stacking.supports(self._training) and not tied
        self._chain = Chain.of(self._training)
        self._together: Together | None = None
        self._feature_layer = ""
        self._with_features: Task | None = None
        self._device = torch.device("cpu")

    # --- the vector and its views -------------------------------------------------------------------------

    def copy(self) -> Task:
        """The same task with modules of its own, for another thread."""
        other = Task(self.template, self.kind)
        other.precision, other.inner = self.precision, self.inner
        other.frame.draws = dict(self.frame.draws)
        if self._together is not None:
            other.frame.axes = self.frame.axes
            known = self._together
            models = other.stacked_models(known.plan) if known.models else {}
            other._together = Together(known.way, known.reasons, models, known.plan)
        other.feature_layer = self.feature_layer
        return other

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
    def with_features(self) -> Task:
        """The same task with features after the outputs; vectors of parameters are the same."""
        if self._with_features is None:
            self._with_features = Task(WithFeatures(self.template, self.feature_layer), self.kind)
        self._with_features.precision = self.precision
        return self._with_features

    def features_of(self, both: Tensor) -> Tensor:
        """The features in what `with_features` puts out."""
        return self._pair.split(both)[1]

    def resolved(self, objective: Objective | None) -> tuple[Task, Objective]:
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

    @property
    def _pair(self) -> WithFeatures:
        """The module of `with_features`."""
        pair = self.with_features.template
        assert isinstance(pair, WithFeatures)
        return pair

    @property
    def classification(self) -> bool:
        """Whether the model's outputs are the logits of classes."""
        return self.kind.classification

    @property
    def precision(self) -> str:
        """Of passes through the model: `float32`, or `bf16` by torch's autocast."""
        return self.frame.precision

    @precision.setter
    def precision(self, value: str) -> None:
        self.frame.precision = value

    def lacks_statistics(self, theta: Tensor) -> bool:
        """Whether batch normalization finds no statistics in this vector, and goes by the batch."""
        return bool(theta.shape[-1] < self.full_size)

    def takes_any_batch(self, theta: Tensor) -> bool:
        """Whether outputs and losses of a sample in evaluation are the same whatever is in the batch with it."""
        drawn = self.frame.draws.get(False, False)
        return not (self.couples_samples or self.lacks_statistics(theta) or drawn)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Named views into a vector (P,), or into K vectors (K, P); with statistics, where they follow (P + S)."""
        lead, pieces = theta.shape[:-1], self._pieces(theta)
        return {n: p.view(*lead, *(tuple(s) or (1,))) for n, (p, s) in pieces.items()}

    def _pieces(self, theta: Tensor) -> dict[str, tuple[Tensor, torch.Size]]:
        """The parts of a vector by their names, and the shapes that they have in the module."""
        names, sizes, shapes = self.names, self.sizes, self.shapes
        if theta.shape[-1] == self.full_size > self.size:
            names, sizes = names + self.statistic_names, sizes + self._statistic_sizes
            shapes = shapes + [value.shape for value in self._running0]
        return dict(zip(names, zip(torch.split(theta, sizes, -1), shapes, strict=True), strict=True))

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters and statistics, copied, with the module's own shapes."""
        lead = theta.shape[:-1]
        return {n: p.reshape((*lead, *s)).clone() for n, (p, s) in self._pieces(theta.detach()).items()}

    def vector(self, state: Mapping[str, Tensor]) -> Tensor:
        """Named parameters, and statistics where there are any, as one vector (the inverse of `state_dict`)."""
        missing = [n for n in self.names if n not in state]
        if missing:
            raise ModelError(f"the weights have no {missing[0]!r}: they belong to another model")
        for n, s in zip(self.names, self.shapes, strict=True):
            if state[n].shape != s:
                raise ModelError(f"weights {n!r} have shape {tuple(state[n].shape)}, the model wants {tuple(s)}")
        names = self.names + [n for n in self.statistic_names if n in state]
        return torch.cat([state[n].detach().flatten().float() for n in names])

    def module(self, theta: Tensor) -> nn.Module:
        """An ordinary module of the user's class with these parameters and statistics, in evaluation mode.

        Frozen parameters are not copied: they lie in the memory of those of the user's module.
        """
        return self.module_of(self.state_dict(theta.cpu()))

    def module_of(self, state: Mapping[str, Tensor]) -> nn.Module:
        """As `module`, from named tensors."""
        self.vector(state)  # raises where they belong to another model
        if missing := [n for n in self.statistic_names if n not in state]:
            raise ModelError(
                f"the weights have no {missing[0]!r}: statistics of batch normalization belong to a client's data, and "
                "this model was kept without any"
            )
        shared = {id(p): _shared(p) for p in self.template.parameters() if not p.requires_grad}
        net = copy.deepcopy(self.template, shared).cpu()
        net.load_state_dict(state, strict=False)
        return net.eval()

    # --- one client ----------------------------------------------------------------------------------------

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

    # --- many clients at once --------------------------------------------------------------------------------

    def gradient_stacked(
        self, theta: Tensor, batch: Batch, objective: Objective | None = None, **extra: Tensor
    ) -> Tensor:
        """Gradients of K clients: every tensor has a leading axis K."""
        task, resolved = self.resolved(objective)
        gradients = task._gradients(task.split(theta), batch, resolved, extra)
        return torch.cat([g.flatten(1) for g in gradients], 1)

    def descend_stacked(
        self, theta: Tensor, batch: Batch, lr: float, pull: float = 0.0, anchor: Tensor | None = None
    ) -> Tensor:
        """θ ← θ − lr (gradient + pull (θ − anchor)) for K clients, in place: no gradient of all parameters is made."""
        params = self.split(theta)
        gradients = self._gradients(params, batch, self.objective, {})
        if anchor is not None:
            theta.lerp_(anchor, lr * pull)
        for parameter, gradient in zip(params.values(), gradients, strict=True):
            parameter.sub_(gradient, alpha=lr)
        return theta

    def _gradients(
        self, params: dict[str, Tensor], batch: Batch, objective: Objective, extra: Mapping[str, Tensor]
    ) -> Sequence[Tensor]:
        """Gradients of K clients with respect to each parameter of the model."""
        self._bring_constants(batch.x)
        native = self._is_native(batch.x)
        way = None if native else self.together(batch.x)
        if way is not None and way.way != "stacked":

            def client_loss(params: dict[str, Tensor], x: Inputs, y: Tensor, w: Tensor, k: Tensor, e: Any) -> Tensor:
                return self._mean_loss(params, Batch(x, y, w, k), objective, e)

            mapped = vmap(grad(client_loss), randomness=self.frame.randomness(True))
            by_name = mapped(params, batch.x, batch.y, batch.weight, batch.key, extra)
            return list(by_name.values())

        def slope(outputs: Tensor) -> Tensor:
            return _slope(objective, outputs, batch.y, batch.weight, extra)

        if native and self._chain is not None:
            with torch.no_grad():
                return self._chain.gradients(list(params.values()), batch.x, slope)  # type: ignore[arg-type]
        with torch.enable_grad():
            leaves = {n: p.detach().requires_grad_() for n, p in params.items()}
            if way is None:
                outputs = stacking.forward(self._training, leaves, batch.x)  # type: ignore[arg-type]
            else:
                outputs = way.models[True](self._shaped(leaves), batch.x, batch.key, batch.weight)
            # The gradient of this sum is the slope itself. Handed over as such, torch would import sympy to look at it.
            found = torch.autograd.grad(
                (outputs * slope(outputs.detach())).sum(), list(leaves.values()), allow_unused=way is not None
            )
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, leaves.values(), strict=True)]

    def statistics_stacked(self, theta: Tensor, x: Inputs, weight: Tensor) -> Tensor:
        """`statistics` of K clients with K vectors: every tensor has a leading axis K."""
        self._bring_constants(x)
        way = self.together(x)
        if way.way == "stacked" and way.models[False].records:
            recorder = Recorder()
            way.models[False](self._shaped(self.split(theta)), x, None, weight, recorder)
            return running(recorder.seen, self._running0)
        found: Tensor = vmap(self.statistics, randomness=self.frame.randomness(False))(theta, x, weight)
        return found

    def predict_stacked(self, theta: Tensor, x: Inputs, weight: Tensor) -> Tensor:
        """`predict` for K clients with K vectors: every tensor has a leading axis K."""
        self._bring_constants(x)
        if self._is_native(x):
            return stacking.forward(self._inference, self.split(theta), x)  # type: ignore[arg-type]
        way = self.together(x)
        if way.way == "stacked":
            return way.models[False](self._shaped(self.split(theta)), x, None, weight)
        outputs: Tensor = vmap(self.predict, randomness=self.frame.randomness(False))(theta, x, weight)
        return outputs

    def evaluate_stacked(self, theta: Tensor, batch: Batch) -> dict[str, Tensor]:
        """`evaluate` for K clients with K vectors: every tensor has a leading axis K, and so have the sums."""
        outputs = self.predict_stacked(theta, batch.x, batch.weight)
        samples = batch.weight.sum(1)
        loss = torch.where(samples > 0, mean_losses(self.objective, outputs, batch.y, batch.weight) * samples, 0.0)
        return {"loss": loss} | {n: _sums(f, outputs, batch.y, batch.weight) for n, f in self.metrics.items()}

    # --- checks ----------------------------------------------------------------------------------------------

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

    def activation_size(self, x: Inputs) -> int:
        """How many numbers the model's layers put out for one sample, to plan memory by."""
        if self._activations is None:
            outputs: list[int] = []

            def count(module: nn.Module, inputs: Any, output: Any) -> None:
                each = getattr(module, "inner_outputs", 1)
                outputs.append(each * output.numel() if isinstance(output, Tensor) else 0)

            hooks = [m.register_forward_hook(count) for m in self._inference.modules()]
            with torch.no_grad():
                self.predict(self.theta0.to(tensors(x)[0].device), some(x, slice(1)))
            for hook in hooks:
                hook.remove()
            self._activations = sum(outputs)
        return self._activations

    def unstackable(self, x: Inputs, y: Tensor) -> str | None:
        """Why this model cannot run on the stacked engine (tried on a few samples), or None if it can."""
        way = self.way(x)
        return way.reason if way.way == "looped" else None

    def together(self, x: Inputs) -> Together:
        """How K clients are computed at once; found out on some of their samples (K, B, …) at the first call."""
        way = self._together or self.way(each_input(lambda part: part.flatten(0, 1)[:9], x))
        if way.way == "looped":
            raise ModelError(f"{type(self.template).__name__} cannot run for clients at once: {way.reason}")
        return way

    def knows_way(self, x: Inputs) -> bool:
        """Whether `way` answers at once."""
        return self._is_native(x) or self._together is not None

    def way(self, x: Inputs) -> Together:
        """How K clients are computed at once, and why; found out on samples (n, …) at the first call."""
        if self._is_native(x):
            return Together("stacked")
        if self._together is None:
            device = tensors(x)[0].device
            self._bring_constants(x)
            theta0, statistics = self.theta0.to(device), [value.flatten().to(device) for value in self._running0]
            precision, self.precision = self.precision, "float32"  # in which what is wrong stands out
            self._together = together.find(self, theta0, torch.cat([theta0[:0], *statistics]), x)
            self.precision = precision
        return self._together

    # --- for `together` ----------------------------------------------------------------------------------------

    def forward(
        self, training: bool, params: Mapping[str, Tensor], x: Inputs, key: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        """Outputs of one client whose parameters are apart."""
        return self._forward(self._training if training else self._inference, dict(params), x, key, weight)

    def stacked_models(self, plan: Plan) -> dict[bool, StackedModel]:
        """The model for K clients in training (True) and in use (False)."""
        return {
            mode: StackedModel(m, self.frame, plan, mode)
            for mode, m in ((True, self._training), (False, self._inference))
        }

    def _is_native(self, x: Inputs) -> bool:
        return self.stacks_natively and not isinstance(x, dict) and self.precision == "float32"

    def _bring_constants(self, x: Inputs) -> None:
        """Have frozen parameters and buffers where the samples are."""
        device = tensors(x)[0].device
        if device == self._device:
            return
        self._device = device
        to = moves(device)
        self._constants = {name: to(value) for name, value in self._constants.items()}
        for module in (self._training, self._inference):
            move_constants(module, to)
        for model in self._together.models.values() if self._together is not None else ():
            model.move(to)

    def _shaped(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of K clients in the module's own shapes: those without axes have one in the vector's views."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return {n: p.reshape(len(p), *shapes[n]) if n in shapes else p for n, p in params.items()}

    # --- inside ----------------------------------------------------------------------------------------------

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

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """As `evaluate`, of outputs that are there."""
        samples = weight.sum()
        loss = torch.where(samples > 0, mean_loss(self.objective, outputs, y, weight) * samples, 0.0)
        return {"loss": loss} | {n: _weighted(f(outputs, y), weight).sum(0) for n, f in self.metrics.items()}


def _kind(layer: nn.Module) -> str:
    """The name of a layer's class; where it is a kind of normalization (FrozenBN of BatchNorm2d), of that."""
    names = [kind.__name__ for kind in type(layer).__mro__]
    return next((name for name in names if re.search(r"Norm(?![a-z])", name)), names[0])


def _copied(module: nn.Module) -> nn.Module:
    """A copy with parameters of its own; constants, such as a large table of word vectors, are shared."""
    constants = [*module.buffers(), *(p for p in module.parameters() if not p.requires_grad)]
    try:
        return copy.deepcopy(module, {id(constant): constant for constant in constants})
    except RuntimeError as error:  # such as the old nn.utils.weight_norm
        reason = str(error).splitlines()[0]
        raise ModelError(f"{type(module).__name__} cannot be copied: {reason}") from error


def _shared(parameter: nn.Parameter) -> nn.Parameter:
    """The same memory, but for that of an accelerator, under a `requires_grad` of its own."""
    return nn.Parameter(parameter.detach().cpu(), requires_grad=False)


MARKED = 2**20
"""Bytes up to which a constant is kept whole to see whether it changes."""


def _mark(constant: Tensor) -> Tensor:
    """What is not the same after a change in place: a copy, or for a large one how often it was written to."""
    if constant.nbytes <= MARKED or constant.is_inference():
        return constant.clone()
    return torch.tensor(constant._version)


def _sums(metric: Objective, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The sums of a metric over the samples of K clients."""
    values = metric(outputs.flatten(0, 1), y.flatten(0, 1))
    return _weighted(values.unflatten(0, weight.shape), weight).sum(1)


def _weighted(values: Tensor, weight: Tensor) -> Tensor:
    """Values, or several for each sample, times the weights of samples."""
    return values * weight.reshape(*weight.shape, *(1 for _ in range(values.dim() - weight.dim())))


def _slope(objective: Objective, outputs: Tensor, y: Tensor, weight: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
    """The gradient with respect to `outputs` of K clients' losses on batches whose samples have `weight` (K, B)."""
    if objective is cross_entropy and outputs.dim() == 3 and y.dtype == torch.int64:
        share = (weight / weight.sum(1, keepdim=True)).unsqueeze(-1)
        return outputs.softmax(-1).mul_(share).scatter_add_(2, y.unsqueeze(-1), -share)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        return torch.autograd.grad(mean_losses(objective, leaf, y, weight, extra).sum(), leaf)[0]
