"""Which parameters a network has that is narrower than another: the first channels of each of its layers."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from personafl.algorithms.base import JobInfo
from personafl.errors import ConfigError

_NARROWED = r"Linear|Conv[123]d|BatchNorm[123]d"


def least_ratios(job: JobInfo) -> Tensor:
    """Of each parameter the width above which a network has it: that with ⌈r n⌉ of n channels has those below r.

    The inputs of the first layer and the outputs of the last are there at any width. Inputs of a linear layer that
    follow from flattening are narrowed by channels: all of a channel, or nothing.
    """
    modules = _layers(job)
    first, last = modules[0], modules[-1]
    parts, channels = [], 0
    for (name, _), kind, shape in zip(job.layers, job.kinds, job.shapes, strict=True):
        module = name.rpartition(".")[0]
        rows = torch.zeros(shape[0]) if module == last else _by_share(shape[0])
        least = rows.reshape(-1, *(1 for _ in shape[1:])).expand(shape)
        if len(shape) > 1:
            if module != first:
                flat = kind == "Linear" and channels > 0 and shape[1] % channels == 0
                inputs = _by_share(channels).repeat_interleave(shape[1] // channels) if flat else _by_share(shape[1])
                least = torch.maximum(least, inputs.reshape(1, -1, *(1 for _ in shape[2:])))
            channels = shape[0]
        parts.append(least.flatten())
    return torch.cat(parts)


def hidden_layers(job: JobInfo) -> Tensor:
    """Of each parameter whether (1) it belongs to a linear layer or a convolution that is not the last."""
    last = _layers(job)[-1]
    pieces = zip(job.layers, job.kinds, strict=True)
    parts = [
        torch.full((size,), float("Norm" not in kind and name.rpartition(".")[0] != last))
        for (name, size), kind in pieces
    ]
    return torch.cat(parts)


def _by_share(count: int) -> Tensor:
    # A little more than k/n, so that a width of 0.1 has 3 of 30 channels, however the division rounds.
    return torch.arange(count) / count + 1e-6 * (torch.arange(count) > 0)


def _layers(job: JobInfo) -> list[str]:
    """The linear layers and convolutions, in order."""
    if others := [kind for kind in dict.fromkeys(job.kinds) if not re.fullmatch(_NARROWED, kind)]:
        raise ConfigError(
            f"heterofl narrows linear layers, convolutions and batch normalization, and cannot narrow {others[0]}: "
            "use another model or another algorithm"
        )
    named = zip(job.layers, job.kinds, strict=True)
    modules = list(dict.fromkeys(name.rpartition(".")[0] for (name, _), kind in named if "Norm" not in kind))
    if len(modules) < 2:
        raise ConfigError("heterofl narrows hidden layers, and the model has none: use another model or fedavg")
    return modules
