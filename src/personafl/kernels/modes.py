"""What of a module is not trained, and which of its layers stay in evaluation mode, in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

MOST = 12
"""Names that are written out."""


def frozen_and_eval(module: nn.Module) -> dict[str, Any]:
    """How many numbers are frozen and the names of what holds them; the layers in eval(). Nothing of what is not so.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()), nn.Linear(2, 2))
    >>> _ = net[1].eval().requires_grad_(False)
    >>> frozen_and_eval(net)
    {'frozen_parameters': 4, 'frozen': ['1'], 'eval': ['1']}
    """
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    out: dict[str, Any] = {"frozen_parameters": frozen, "frozen": _few(_topmost(module, _is_frozen))} if frozen else {}
    names = _few(_topmost(module, lambda layer: not any(below.training for below in layer.modules())))
    return out | ({"eval": names} if names else {})


def _is_frozen(layer: nn.Module) -> bool:
    parameters = list(layer.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _topmost(module: nn.Module, holds: Callable[[nn.Module], bool], path: str = "") -> Iterator[str]:
    """The names of the largest parts of which something holds."""
    if holds(module):
        yield path or "(the model)"
        return
    if holds is _is_frozen:
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                yield f"{path}.{name}".lstrip(".")
    for name, child in module.named_children():
        yield from _topmost(child, holds, f"{path}.{name}".lstrip("."))


def _few(names: Iterator[str]) -> list[str]:
    every = list(names)
    return every if len(every) <= MOST else [*every[:MOST], f"and {len(every) - MOST} more"]
