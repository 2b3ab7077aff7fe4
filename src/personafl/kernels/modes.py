"""What of a module is not trained, its hashes, and which of its layers stay in evaluation mode, in few words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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


def frozen_hashes(module: nn.Module) -> dict[str, str]:
    """The SHA-256 of every frozen parameter: its type, its shape and its numbers.

    >>> net = nn.Linear(2, 1)
    >>> _ = net.weight.requires_grad_(False).fill_(0.5)
    >>> {name: value[:8] for name, value in frozen_hashes(net).items()}
    {'weight': 'c3c3202b'}
    """
    return {name: _hash(p.detach()) for name, p in module.named_parameters() if not p.requires_grad}


def whole_hash(hashes: Mapping[str, str]) -> str:
    """One for all of them, whatever their order."""
    listed = "".join(f"{value} {name}\n" for name, value in sorted(hashes.items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _hash(value: Tensor) -> str:
    found = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


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
