"""How a model is computed for K clients at once, found out once and checked on real samples.

A `forward` that mixes the rows of its batch (`x.mean(0)`, a batch normalization written by hand, `len(x)`, one random
number for all) would be wrong without a word if it saw the rows of several clients. So each way is tried on a few
samples, for clients with different parameters, samples, random keys and with padding, and taken only if outputs and
gradients are those of the clients one by one. The ways, the fastest first:

- *stacked*: one pass for all rows, the layers hold K sets of weights (`stacked_model`);
- *mapped*: `torch.func.vmap` of the whole model;
- *looped*: not at once at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from personafl.inputs import Inputs, each_input, length, some, tensors
from personafl.kernels.features import NoFeatures
from personafl.kernels.frame import Frame
from personafl.kernels.stacked_model import PLANS, Plan, StackedModel
from personafl.kernels.watch_reads import WatchReads

TOLERANCE = 1e-3
"""Of the largest number; rounding is a hundredth of this, and what mixes rows is wrong in the first digit."""

GRADIENT_TOLERANCE = 1e-2
"""Of a gradient's length."""

COARSE = 10
"""Times the rounding of the model's own numbers, where these are bf16 or float16, either tolerance at least."""

Params = Mapping[str, Tensor]
Gradients = tuple[Tensor | None, ...]
Run = Callable[[bool, Params, Inputs, Tensor | None, Tensor], Tensor]
"""(training, parameters (K, …), x (K, B, …), keys (K,), weight (K, B)) to outputs (K, B, …)."""


class OneClient(Protocol):
    """A model with its parameters apart, as `Task` has it."""

    frame: Frame
    rounding: float

    def forward(self, training: bool, params: Params, x: Inputs, key: Tensor | None, weight: Tensor | None) -> Tensor:
        """Outputs of one client."""

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Named parameters of one vector or of K."""

    def stacked_models(self, plan: Plan) -> dict[bool, StackedModel]:
        """The model for K clients in training (True) and in use (False)."""


@dataclass
class Together:
    """The way that was taken, and why not the ones before it."""

    way: Literal["stacked", "mapped", "looped"]
    reasons: dict[str, str] = field(default_factory=dict)
    models: dict[bool, StackedModel] = field(default_factory=dict)
    plan: Plan = "rows"

    @property
    def reason(self) -> str | None:
        """Why the model is not stacked, in one line."""
        return "; ".join(f"not {way}: {reason}" for way, reason in self.reasons.items()) or None


def find(model: OneClient, theta0: Tensor, statistics: Tensor, x: Inputs) -> Together:
    """The first way that gives what the clients give one by one, on samples `x` (n, …).

    `statistics` (S,) follow the parameters `theta0` (P,) in a model for use.
    """
    if theta0.device.type == "meta":  # no values to compare
        return Together("stacked", {}, model.stacked_models("rows"), "rows")
    vectors = {True: theta0, False: torch.cat([theta0, statistics])}
    reasons: dict[str, str] = {}
    for plan in PLANS:
        model.frame.axes.clear()  # what was found while another plan failed
        model.frame.maps = False
        models = model.stacked_models(plan)
        reason = _wrong(model, _watched(models), vectors, x)
        if reason is None:
            for each in models.values():
                each.settle()
            return Together("stacked", {}, models, plan)
        reasons.setdefault("stacked", reason)
        if not models[True].outside_layers:
            break
    reason = _wrong(model, by_vmap(model), vectors, x)
    if reason is None:
        return Together("mapped", reasons)
    return Together("looped", reasons | {"mapped": reason})


def by_vmap(model: OneClient) -> Run:
    """All clients by vmap."""

    def run(training: bool, params: Params, x: Inputs, key: Tensor | None, weight: Tensor) -> Tensor:
        one = partial(model.forward, training)
        dims = (0, 0, None if key is None else 0, 0)
        mapped: Any = vmap(one, dims, randomness=model.frame.randomness(training))
        outputs: Tensor = mapped(params, x, key, weight)
        return outputs

    return run


def _watched(models: dict[bool, StackedModel]) -> Run:
    def run(training: bool, params: Params, x: Inputs, key: Tensor | None, weight: Tensor) -> Tensor:
        with WatchReads():  # type: ignore[no-untyped-call]
            return models[training](params, x, key, weight)

    return run


def _wrong(model: OneClient, run: Run, vectors: Mapping[bool, Tensor], x: Inputs) -> str | None:
    """What is wrong with a way of running K clients, or None."""
    try:
        for clients, samples in ((3, _samples(x)), (2, 2)):
            for training, vector in vectors.items():
                reason = _Probe.of(model, vector, x, clients, samples).compare(model, run, training)
                if reason is not None:
                    return reason
    except NoFeatures:
        raise  # whichever way the clients are computed
    except Exception as error:  # vmap and a module's own code raise many types, and each means the same here
        return _line(error)
    return None


def _line(error: Exception) -> str:
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__


def _samples(x: Inputs) -> int:
    """So many that K·B is no multiple of a length in the data: rows are told from time steps by their number."""
    lengths = {extent + more for part in tensors(x) for extent in part.shape[1:] for more in (-1, 0, 1)}
    return next((count for count in (3, 4, 5, 7) if not any(n > 0 and n % (3 * count) == 0 for n in lengths)), 3)


@dataclass
class _Probe:
    """K clients to try a way on."""

    params: dict[str, Tensor]
    x: Inputs
    key: Tensor
    weight: Tensor

    @classmethod
    def of(cls, model: OneClient, theta0: Tensor, x: Inputs, clients: int, samples: int) -> _Probe:
        device = theta0.device
        theta = torch.stack([_perturbed(theta0, 0.2, 0.02, seed) for seed in range(clients)])
        params = model.split(theta)
        row = torch.arange(clients * samples).view(clients, samples)
        weight = torch.ones(clients, samples)
        weight[1, -1] = 0.0  # padding is last, and is a sample of the same client
        row[1, -1] = row[1, 0]
        return cls(params, _filled(x, row), _keys(clients).to(device), weight.to(device))

    def compare(self, model: OneClient, run: Run, training: bool) -> str | None:
        leaves = {n: p.detach().requires_grad_(training) for n, p in self.params.items()}
        with torch.enable_grad():
            alone = [self._alone(model, training, leaves, k) for k in range(len(self.weight))]
            together = run(training, leaves, self.x, self.key if training else None, self.weight)
            found = torch.cat([together[k][: len(own)] for k, own in enumerate(alone)])
            expected = torch.cat(alone)
            if found.shape != expected.shape or not _close(found, expected, max(TOLERANCE, COARSE * model.rounding)):
                what = "training" if training else "evaluation"
                return f"clients' outputs in {what} are not those of each alone: the forward pass mixes rows"
            if not training or not expected.requires_grad:
                return None
            direction = _perturbed(torch.zeros_like(expected), 0.0, 1.0, 7)
            slopes = [
                torch.autograd.grad((out * direction).sum(), list(leaves.values()), allow_unused=True)
                for out in (found, expected)
            ]
        tolerance = max(GRADIENT_TOLERANCE, COARSE * model.rounding)
        wrong = _first_wrong(list(leaves), tolerance, *slopes)
        return None if wrong is None else f"clients' gradients of {wrong!r} are not those of each alone"

    def _alone(self, model: OneClient, training: bool, params: Params, k: int) -> Tensor:
        count = int(self.weight[k].sum())
        own = {name: value[k] for name, value in params.items()}
        x = each_input(lambda part: part[k, :count], self.x)
        return model.forward(training, own, x, self.key[k] if training else None, self.weight[k, :count])


def _filled(x: Inputs, row: Tensor) -> Inputs:
    """Samples (K, B, …) of a few; numbers are moved a little, so that no two are the same."""
    taken = some(x, row.flatten().to(tensors(x)[0].device) % length(x))

    def one(part: Tensor) -> Tensor:
        # Whole numbers may be places in a table.
        if part.is_floating_point() and not torch.equal(part, part.round()):
            noise = _perturbed(torch.zeros_like(part), 0.0, 0.1 * float(part.std()), 11)
            part = part + noise[row.flatten().to(part.device)]
        return part.view(*row.shape, *part.shape[1:])

    return each_input(one, taken)


def _perturbed(value: Tensor, relative: float, absolute: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(value.shape, generator=generator).to(value) for _ in range(2))
    # Clamped, so that variances stay positive.
    return value.detach() * (1 + relative * first.clamp(-2, 2)) + absolute * second


def _keys(count: int) -> Tensor:
    return torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(3))


def _close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether no number is off by more than the tolerance, of the largest."""
    found, expected = found.detach(), expected.detach()
    if not torch.isfinite(expected).all():
        return bool((torch.isfinite(found) == torch.isfinite(expected)).all())
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    error = float((found - expected).abs().max()) if expected.numel() else 0.0
    return error <= tolerance * max(largest, 1e-6)


def _first_wrong(names: list[str], tolerance: float, found: Gradients, expected: Gradients) -> str | None:
    """The first parameter whose gradient differs.

    By lengths: where rounding decides which of two nearly equal values a pooling or a ReLU lets through, single numbers
    may differ by more than rounding.
    """
    whole = math.sqrt(sum(float(e.square().sum()) for e in expected if e is not None))
    for name, f, e in zip(names, found, expected, strict=True):
        parts = [part for part in (f, e) if part is not None]
        if not parts:
            continue
        error = float((parts[0] - (parts[1] if len(parts) > 1 else 0)).norm())
        own = 0.0 if e is None else float(e.norm())
        if math.isfinite(whole) and not error <= tolerance * max(own, 0.01 * whole, 1e-9):
            return name
    return None
