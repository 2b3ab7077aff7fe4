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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from personafl.inputs import Inputs, each_input, length, some, tensors
from personafl.kernels.frame import Frame
from personafl.kernels.stacked_model import StackedModel
from personafl.kernels.watch_reads import WatchReads

TOLERANCE = 1e-3
"""Of the largest number; rounding is a hundredth of this, and what mixes rows is wrong in the first digit."""

Params = Mapping[str, Tensor]
Run = Callable[[bool, Params, Inputs, Tensor, Tensor], Tensor]
"""(training, parameters (K, …), x (K, B, …), keys (K,), weight (K, B)) to outputs (K, B, …)."""


class OneClient(Protocol):
    """A model with its parameters apart, as `Task` has it."""

    frame: Frame

    def forward(self, training: bool, params: Params, x: Inputs, key: Tensor | None, weight: Tensor | None) -> Tensor:
        """Outputs of one client."""

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Named parameters of one vector or of K."""

    def stacked_models(self, unknown: Literal["mapped", "looped"]) -> dict[bool, StackedModel]:
        """The model for K clients in training (True) and in use (False)."""


@dataclass
class Together:
    """The way that was taken, and why not the ones before it."""

    way: Literal["stacked", "mapped", "looped"]
    reasons: dict[str, str] = field(default_factory=dict)
    models: dict[bool, StackedModel] = field(default_factory=dict)
    unknown: Literal["mapped", "looped"] = "mapped"

    @property
    def reason(self) -> str | None:
        """Why the model is not stacked, in one line."""
        return "; ".join(f"not {way}: {reason}" for way, reason in self.reasons.items()) or None


def find(model: OneClient, theta0: Tensor, x: Inputs) -> Together:
    """The first way that gives what the clients give one by one, on samples `x` (n, …)."""
    reasons: dict[str, str] = {}
    kinds: tuple[Literal["mapped", "looped"], ...] = ("mapped", "looped")
    for unknown in kinds:
        try:
            models = model.stacked_models(unknown)
        except Exception as error:
            reasons["stacked"] = _line(error)
            break
        reason = _wrong(model, _watched(models), theta0, x)
        if reason is None:
            return Together("stacked", {}, models, unknown)
        reasons["stacked"] = reason
        if "mapped" not in models[True].ways.values():
            break
    reason = _wrong(model, by_vmap(model), theta0, x)
    if reason is None:
        return Together("mapped", reasons)
    return Together("looped", reasons | {"mapped": reason})


def by_vmap(model: OneClient) -> Run:
    """All clients by vmap."""

    def run(training: bool, params: Params, x: Inputs, key: Tensor, weight: Tensor) -> Tensor:
        randomness = model.frame.randomness(training)
        own = key if training else None
        outputs: Tensor = vmap(
            lambda *client: model.forward(training, *client), (0, 0, 0 if training else None, 0), randomness=randomness
        )(params, x, own, weight)
        return outputs

    return run


def _watched(models: dict[bool, StackedModel]) -> Run:
    def run(training: bool, params: Params, x: Inputs, key: Tensor, weight: Tensor) -> Tensor:
        with WatchReads():  # type: ignore[no-untyped-call]
            return models[training](params, x, key if training else None, weight)

    return run


def _wrong(model: OneClient, run: Run, theta0: Tensor, x: Inputs) -> str | None:
    """What is wrong with a way of running K clients, or None."""
    try:
        for clients, samples in ((3, _samples(x)), (2, 2)):
            probe = _Probe.of(model, theta0, x, clients, samples)
            if theta0.device.type == "meta":
                run(True, probe.params, probe.x, probe.key, probe.weight)
                return None
            reason = probe.compare(model, run)
            if reason is not None:
                return reason
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
        if device.type == "meta":
            theta = torch.empty(clients, len(theta0), device=device)
        else:
            theta = torch.stack([_perturbed(theta0, 0.2, 0.02, seed) for seed in range(clients)])
        params = model.split(theta)
        row = torch.arange(clients * samples).view(clients, samples)
        weight = torch.ones(clients, samples)
        weight[1, -1] = 0.0  # padding is last, and is a sample of the same client
        row[1, -1] = row[1, 0]
        return cls(params, _filled(x, row), _keys(clients).to(device), weight.to(device))

    def compare(self, model: OneClient, run: Run) -> str | None:
        for training, what in ((True, "training"), (False, "evaluation")):
            leaves = {n: p.detach().requires_grad_() for n, p in self.params.items()}
            with torch.enable_grad():
                alone = [self._alone(model, training, leaves, k) for k in range(len(self.weight))]
                together = run(training, leaves, self.x, self.key, self.weight)
                found = torch.cat([together[k][: len(own)] for k, own in enumerate(alone)])
                expected = torch.cat(alone)
                if found.shape != expected.shape or not _close(found, expected):
                    return f"clients' outputs in {what} depend on each other: the forward pass mixes rows"
                if training and expected.requires_grad:
                    direction = _perturbed(torch.zeros_like(expected), 0.0, 1.0, 7)
                    slopes = [
                        torch.autograd.grad((out * direction).sum(), list(leaves.values()), allow_unused=True)
                        for out in (found, expected)
                    ]
                    wrong = _first_wrong(list(leaves), *slopes)
                    if wrong is not None:
                        return f"clients' gradients of {wrong!r} depend on each other"
        return None

    def _alone(self, model: OneClient, training: bool, params: Params, k: int) -> Tensor:
        count = int(self.weight[k].sum())
        own = {name: value[k] for name, value in params.items()}
        x = each_input(lambda part: part[k, :count], self.x)
        return model.forward(training, own, x, self.key[k] if training else None, self.weight[k, :count])


def _filled(x: Inputs, row: Tensor) -> Inputs:
    """Samples (K, B, …) of a few; numbers are moved a little, so that no two are the same."""
    taken = some(x, row.flatten().to(tensors(x)[0].device) % length(x))

    def one(part: Tensor) -> Tensor:
        if part.is_floating_point() and part.device.type != "meta":
            size = float(part.std()) if part.numel() > 1 else 1.0
            noise = _perturbed(torch.zeros_like(part), 0.0, 0.1 * size, 11)
            noise = noise.flatten(1)[row.flatten()].view(part.shape) if len(part) == row.numel() else noise
            part = part + noise
        return part.unflatten(0, row.shape)

    return each_input(one, taken)


def _perturbed(value: Tensor, relative: float, absolute: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(value.shape, generator=generator).to(value) for _ in range(2))
    return value.detach() * (1 + relative * first) + absolute * second


def _keys(count: int) -> Tensor:
    return torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(3))


def _close(found: Tensor, expected: Tensor, scale: float | None = None) -> bool:
    found, expected = found.detach(), expected.detach()
    if not torch.isfinite(expected).all():
        return bool((torch.isfinite(found) == torch.isfinite(expected)).all())
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    error = float((found - expected).abs().max()) if expected.numel() else 0.0
    return error <= TOLERANCE * max(largest, 0.1 * (scale or 0.0), 1e-6)


def _first_wrong(names: list[str], found: tuple[Tensor | None, ...], expected: tuple[Tensor | None, ...]) -> str | None:
    scale = max((float(e.abs().max()) for e in expected if e is not None), default=0.0)
    for name, f, e in zip(names, found, expected, strict=True):
        if f is None and e is None:
            continue
        left = torch.zeros_like(e) if f is None else f  # type: ignore[arg-type]
        right = torch.zeros_like(left) if e is None else e
        if not _close(left, right, scale):
            return name
    return None
