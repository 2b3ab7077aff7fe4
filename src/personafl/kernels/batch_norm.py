"""Batch normalization for clients: by the client's own batch while it trains, by statistics of its data afterwards.

torch updates the running statistics of a layer in place while it trains; clients would overwrite each other's. Here no
buffer changes: `statistics.py` says where the statistics of a model for use come from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from personafl.kernels.frame import Frame
from personafl.kernels.statistics import Moments

_PLAIN = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def tracked_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """The layers whose statistics belong to the client, by name: those in training mode that keep running ones."""
    return {
        path: layer
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.training and layer.running_mean is not None
    }


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether a layer that `weighted` made has its mean and variance in the vector of a model for use."""
    return getattr(layer, "number", None) is not None


def goes_by_batch(module: nn.Module) -> bool:
    """Whether a layer keeps no statistics and normalizes by the batch always (track_running_stats=False)."""
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in module.modules())


class WeightedBatchNorm(nn.Module):
    """Batch normalization by the statistics of this client's batch, padding left out, or by statistics that are given.

    `number` says which of the layers it is that keep statistics; None for one that always goes by the batch.
    """

    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, layer: _BatchNorm, frame: Frame, number: int | None = None) -> None:
        super().__init__()
        self.eps, self.frame, self.number = layer.eps, frame, number
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, None if number is None else getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        channelwise = (1, -1, *(1 for _ in x.shape[2:]))
        mean, variance = _used(self, self.frame, self.number, x)
        out = (x - mean.view(channelwise)) * torch.rsqrt(variance.view(channelwise) + self.eps)
        if self.weight is not None:
            out = out * self.weight.view(channelwise) + self.bias.view(channelwise)
        return out


def weighted(layer: _BatchNorm, frame: Frame, number: int | None) -> nn.Module:
    """A layer that takes the place of `layer`.

    Where somebody's class does more than normalize (an activation, dropout), its own code runs on features that are
    normalized already: with mean 0 and variance 1 it changes nothing about them.
    """
    if type(layer).forward in _PLAIN:
        return WeightedBatchNorm(layer, frame, number)
    kind: Any = type(layer)

    class Normalized(kind):  # type: ignore[misc]
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not frame.fixed or number is None:
                channelwise = (1, -1, *(1 for _ in x.shape[2:]))
                mean, variance = _used(self, frame, number, x)
                x = (x - mean.view(channelwise)) * torch.rsqrt(variance.view(channelwise) + self.eps)
            return super().forward(x, *args, **kwargs)

    like = next((t for t in (layer.running_mean, layer.weight) if t is not None), torch.zeros(layer.num_features))
    layer.running_mean = torch.zeros_like(like, requires_grad=False)
    layer.running_var = torch.full_like(like, 1 - layer.eps, requires_grad=False)
    layer.track_running_stats, layer.training = True, False
    layer.number = number  # type: ignore[assignment]
    layer.__class__ = Normalized
    return layer


def _used(layer: Any, frame: Frame, number: int | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel that this call normalizes by."""
    if number is not None and frame.fixed:
        return layer.running_mean, layer.running_var
    now = _moments(x, frame.weight, -1 if number is None else number)
    if number is not None and frame.recorder is not None:
        now = frame.recorder.see(now)
    return now.mean.to(x.dtype), now.variance.to(x.dtype)


def _moments(x: Tensor, weight: Tensor | None, layer: int) -> Moments:
    """Of a batch; samples of weight 0 are padding."""
    over = (0, *range(2, x.dim()))
    channelwise = (1, -1, *(1 for _ in x.shape[2:]))
    weight = x.new_ones(len(x)) if weight is None else weight
    weight = weight.repeat_interleave(len(x) // len(weight))  # steps of a sequence may be rows too
    samples = weight.sum()
    # A client without samples is padding throughout: nothing to normalize by.
    share = (weight / samples.clamp(min=1e-12)).view(-1, *(1 for _ in x.shape[1:]))
    places = x[0, 0].numel()
    mean = (x * share).sum(over) / places
    variance = ((x - mean.view(channelwise)).square() * share).sum(over) / places
    return Moments(layer, samples * places, mean, variance)
