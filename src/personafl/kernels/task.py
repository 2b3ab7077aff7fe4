"""`Task`: a torch module, a loss and metrics, as functions of one flat parameter vector, or of K of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from personafl.errors import ModelError
from personafl.inputs import Inputs, each_input, tensors
from personafl.kernels import stacking, together
from personafl.kernels.client_task import LOSSES as LOSSES
from personafl.kernels.client_task import Batch as Batch
from personafl.kernels.client_task import ClientTask
from personafl.kernels.losses import Objective as Objective
from personafl.kernels.losses import mean_losses, weighted
from personafl.kernels.mlp import MLPKernel
from personafl.kernels.stacked_model import Move, Plan, StackedModel
from personafl.kernels.statistics import Recorder, running
from personafl.kernels.together import Together
from personafl.tasks import LearningTask, Metric
from personafl.tasks.classes import cross_entropy

FEW_CLASSES = 16
"""From so many on, torch's softmax of rows is as fast as that of columns."""


class Task(ClientTask):
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
    per_sample
        What engines do to the gradients of samples before a step sees their mean: clipping and noise, or None.

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
        super().__init__(module, loss, metrics)
        tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.named_parameters()))
        self.stacks_natively = stacking.supports(self._training) and not tied
        self._mlp = MLPKernel.of(self._training)
        self._together: Together | None = None

    def copy(self) -> Task:
        """The same task with modules of its own, for another thread."""
        other = Task(self.template, self.kind)
        other.precision, other.inner, other.per_sample = self.precision, self.inner, self.per_sample
        other.frame.draws = dict(self.frame.draws)
        if self._together is not None:
            other.frame.axes = self.frame.axes
            known = self._together
            models = other.stacked_models(known.plan) if known.models else {}
            other._together = Together(known.way, known.reasons, models, known.plan)
        other.feature_layer = self.feature_layer
        return other

    # --- what K clients compute -----------------------------------------------------------------------------

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

    def takes_steps_at_once(self, x: Inputs) -> bool:
        """Whether `descend_through` is faster than `descend_stacked` step by step."""
        return self._mlp is not None and self._is_native(x) and tensors(x)[0].device.type == "cpu"

    def descend_through(self, theta: Tensor, batches: Iterable[Batch], lr: float) -> None:
        """As `descend_stacked`, a step on each of the batches, which may be of fewer and fewer clients, the first ones.

        Each layer's weights are one block while it lasts, and are put back into the vectors at the end.
        """
        assert self._mlp is not None
        views = list(self.split(theta).values())
        blocks = [view.clone(memory_format=torch.contiguous_format) for view in views]
        live, now = len(theta), blocks
        for batch in batches:
            if len(batch.y) < live:
                live = len(batch.y)
                now = [block[:live] for block in blocks]
            slope = partial(_slope, self.objective, y=batch.y, weight=batch.weight, extra={})
            self._mlp.descend(now, batch.x, slope, lr)  # type: ignore[arg-type]
        for view, block in zip(views, blocks, strict=True):
            view.copy_(block)

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

        if native and self._mlp is not None:
            with torch.no_grad():
                return self._mlp.gradients(list(params.values()), batch.x, slope)  # type: ignore[arg-type]
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

    # --- how they are computed at once ----------------------------------------------------------------------

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

    def _shaped(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of K clients in the module's own shapes: those without axes have one in the vector's views."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return {n: p.reshape(len(p), *shapes[n]) if n in shapes else p for n, p in params.items()}

    def _move_constants(self, to: Move) -> None:
        super()._move_constants(to)
        for model in self._together.models.values() if self._together is not None else ():
            model.move(to)


def _sums(metric: Objective, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The sums of a metric over the samples of K clients."""
    values = metric(outputs.flatten(0, 1), y.flatten(0, 1))
    return weighted(values.unflatten(0, weight.shape), weight).sum(1)


def _slope(objective: Objective, outputs: Tensor, y: Tensor, weight: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
    """The gradient with respect to `outputs` of K clients' losses on batches whose samples have `weight` (K, B)."""
    if objective is cross_entropy and outputs.dim() == 3 and y.dtype == torch.int64:
        share = (weight / weight.sum(1, keepdim=True)).unsqueeze(-1)
        return _softmax(outputs).mul_(share).scatter_add_(2, y.unsqueeze(-1), -share)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        return torch.autograd.grad(mean_losses(objective, leaf, y, weight, extra).sum(), leaf)[0]


def _softmax(outputs: Tensor) -> Tensor:
    """Over the last axis. Of few classes, torch takes ten times as long for rows as for columns."""
    if outputs.shape[-1] >= FEW_CLASSES:
        return outputs.softmax(-1)
    return outputs.flatten(0, -2).t().softmax(0).t().view(outputs.shape)
