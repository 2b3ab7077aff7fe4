"""Features beside outputs: what a layer of the model sees or gives, for objectives that ask for it.

`WithFeatures` is the user's module in another one, whose outputs are those of the module followed by the features, in
one tensor (batch, n + d). Its parameters are the same in the same order, so a parameter vector serves both, and as it
is an ordinary module every way of computing one works for it. An objective with the attribute `uses_features = True` is
called as `objective(outputs, y, features=…, **extra)`: `of_both` takes the columns apart for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.kernels.outputs import logits
from personafl.registry import suggestion
from personafl.tasks.base import Objective

Side = Literal["input", "output"]


class NoFeatures(ModelError):
    """The model has no features as they are asked for, however it is computed."""


def uses_features(objective: Objective | None) -> TypeGuard[Objective]:
    """Whether an objective is to be called with features."""
    return bool(getattr(objective, "uses_features", False))


class WithFeatures(nn.Module):
    """A module whose outputs (batch, n) are followed by its features (batch, d).

    Parameters
    ----------
    module
        The user's.
    layer
        "NAME" or "NAME.output" for what a layer gives, "NAME.input" for what it is given. Empty: what the module
        returns beside its outputs, or what its method `outputs_and_features` does where it has one; else the input of
        its last layer with parameters.
    setting
        What names it, for an error.
    """

    def __init__(self, module: nn.Module, layer: str = "", setting: str = "local.features") -> None:
        super().__init__()
        self.module = module
        self.named = bool(layer)
        self.place, self.side = named_layer(module, layer, setting) if layer else (last_layer(module), "input")
        self.width = _Width()
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs and features side by side."""
        with self._seen() as seen, self._last_call() as calls:
            returned = getattr(self.module, "outputs_and_features", self.module)(*args, **kwargs)
        outputs = logits(returned)
        if outputs.dim() != 2:
            raise NoFeatures(
                f"features are for models with outputs (batch, n): {type(self.module).__name__} gives outputs of shape "
                f"{tuple(outputs.shape)}"
            )
        features = None if self.named else returned_features(returned, outputs)
        features = self._of_layer(seen, calls, outputs) if features is None else features
        self.width.outputs = outputs.shape[1]
        return torch.cat([outputs, features.flatten(1)], 1)

    def split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features of what `forward` gave, whatever axes come before the columns."""
        return both[..., : self.width.outputs], both[..., self.width.outputs :]

    def of_both(self, objective: Objective) -> Objective:
        """An objective of outputs, and of features where it uses them, as one of what `forward` gives."""

        def joined(both: Tensor, y: Tensor, **extra: Any) -> Any:
            outputs, features = self.split(both)
            more = {"features": features} if uses_features(objective) else {}
            return objective(outputs, y, **more, **extra)

        joined.couples_samples = getattr(objective, "couples_samples", False)  # type: ignore[attr-defined]
        return joined

    def _of_layer(self, seen: list[Tensor], calls: list[str], outputs: Tensor) -> Tensor:
        what = f"the {self.side} of layer {self.place!r}"
        if calls and calls[-1] != self.place:
            raise NoFeatures(
                f"features: layer {self.place!r} has the last parameters, but {calls[-1]!r} is computed after it: "
                f"{_HOW}"
            )
        if not seen:
            raise NoFeatures(f"features: {what} is not seen in the forward pass: {_HOW}")
        if seen[-1].dim() < 2 or len(seen[-1]) != len(outputs):
            raise NoFeatures(
                f"features: {what} has shape {tuple(seen[-1].shape)} for {len(outputs)} samples: its first axis must "
                f"be that of the samples; {_HOW}"
            )
        return seen[-1]

    @contextmanager
    def _seen(self) -> Iterator[list[Tensor]]:
        """What the layer is given, or gives, in the meantime: call after call."""
        layer, found, depth = self.module.get_submodule(self.place), list[Tensor](), 0

        def keep(value: Any) -> None:
            tensor = _first_tensor(value)
            if tensor is not None:
                found.append(tensor.clone())  # as it is now: what comes next may change it in place

        def before(layer: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal depth
            # A layer that is computed client by client is called again inside.
            if depth == 0 and self.side == "input":
                keep((*args, *kwargs.values()))
            depth += 1

        def after(layer: nn.Module, args: Any, output: Any) -> None:
            nonlocal depth
            depth -= 1
            if depth == 0 and self.side == "output":
                keep(output)

        hooks = [layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)]
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _last_call(self) -> Iterator[list[str]]:
        """Which layers with parameters are computed in the meantime; looked at in the first pass alone."""
        calls, hooks = list[str](), []
        if not self.named and not self.width.outputs:
            for path, layer in self.module.named_modules():
                if layer._parameters and ".parametrizations." not in path:
                    note = partial(_note, calls, path)
                    hooks.append(layer.register_forward_pre_hook(note))
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()


def _note(calls: list[str], path: str, layer: nn.Module, args: Any) -> None:
    calls.append(path)


class _Width:
    """The number of outputs, known after a forward pass; the copies of a module share it."""

    outputs = 0

    def __deepcopy__(self, memo: Any) -> _Width:
        return self


_HOW = 'name another layer as local.features, such as "body.output" or "head.input"'


def returned_features(returned: Any, outputs: Tensor) -> Tensor | None:
    """What a module returns as features: `features` of a mapping or an object, the second of a pair (batch, …).

    >>> returned_features({"logits": torch.zeros(2, 3), "features": torch.ones(2, 1)}, torch.zeros(2, 3))
    tensor([[1.],
            [1.]])
    """
    found = returned.get("features") if isinstance(returned, Mapping) else getattr(returned, "features", None)
    if found is None and type(returned) in (tuple, list) and len(returned) == 2:
        # Of two axes: a hidden state (layers, batch, …) comes second as well.
        found = returned[1] if isinstance(returned[1], Tensor) and returned[1].dim() == 2 else None
    return found if isinstance(found, Tensor) and found.dim() > 1 and len(found) == len(outputs) else None


def last_layer(module: nn.Module) -> str:
    """The path of the last layer that has parameters of its own.

    >>> last_layer(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Softplus()))
    '2'
    """
    *_, name = (name for name, _ in module.named_parameters())
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


def named_layer(module: nn.Module, layer: str, setting: str = "local.features") -> tuple[str, Side]:
    """A layer as somebody names it: its path, and which side of it.

    >>> named_layer(nn.Sequential(nn.Linear(3, 2)), "0.input")
    ('0', 'input')
    """
    known = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    path, _, side = layer.rpartition(".")
    if layer in known:
        return layer, "output"
    if path in known and side in ("input", "output"):
        return path, "input" if side == "input" else "output"
    names = f"{', '.join(known[:12])}{', …' if len(known) > 12 else ''}" or "none"
    raise ConfigError(
        f"{setting} = {layer!r}: {type(module).__name__} has no such layer{suggestion(layer, known)}; write one "
        f'of its layers ({names}), and "NAME.input" for what a layer is given'
    )


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    parts: Any = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for found in map(_first_tensor, parts) if found is not None), None)
