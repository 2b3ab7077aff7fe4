"""Layers that hold K clients' weights and see K·B rows: those of the first client, then those of the second, …

Each class below is a layer of torch whose parameters have a leading axis K. `exchange` makes them of a module's own
layers; everything else about the layer stays as it was: its settings, its hooks, its place in the module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from personafl.kernels import convolution
from personafl.kernels.batch_norm import WeightedBatchNorm
from personafl.kernels.frame import Frame
from personafl.kernels.frame import NoRows as NoRows
from personafl.kernels.linear import casts, linear
from personafl.kernels.statistics import Moments

FEW_CHANNELS, MANY_CHANNELS = 12, 32
"""Up to so many channels windows are faster along one axis, and clients as groups faster in images."""

MUCH = 2**21
"""Multiplications of a client's batch from which on groups are faster along one axis, too."""

LONG = 2**14
"""From so many numbers of a client on, one client's after another are normalized faster: they stay in the cache."""


class ByClient(nn.Module):
    """What these layers have in common."""

    frame: Frame
    path: str

    def _clients(self) -> int:
        assert self.frame.clients is not None
        return self.frame.clients

    def _axis(self, x: Tensor) -> int:
        axis = self.frame.axis(self, x)
        if axis is None:
            raise NoRows(f"layer {self.path!r} is used on something other than samples")
        return axis

    def _apart(self, x: Tensor) -> Tensor:
        """(K·B, …) to (K, B, …)."""
        if self._axis(x) != 0:
            raise NoRows(f"layer {self.path!r} does not see one row per sample")
        apart: Tensor = x.unflatten(0, (self._clients(), -1))
        return apart


def linear_rows(x: Tensor, axis: int, clients: int, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x weightᵀ + bias` where the rows of K clients are along an axis of `x`, and weights have a leading axis K."""
    if axis == 0:
        return linear(x.reshape(clients, -1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)
    by_client = x.unflatten(1, (clients, -1)).transpose(0, 1)
    out = linear(by_client.reshape(clients, -1, x.shape[-1]), weight, bias)
    return out.view(*by_client.shape[:-1], -1).transpose(0, 1).flatten(1, 2)


class Linear(ByClient, nn.Linear):
    """A product for each client, as one batched product."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 2:  # frozen
            return _affine(F.linear(x, self.weight), self._axis(x), self._clients(), None, self.bias)
        return linear_rows(x, self._axis(x), self._clients(), self.weight, self.bias)


class Bilinear(ByClient, nn.Bilinear):
    """`nn.Bilinear` for each client."""

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        left, right = self._apart(input1), self._apart(input2)
        out = torch.einsum("kb...i,koij,kb...j->kb...o", left, self.weight, right)
        if self.bias is not None:
            out = out + _between(self.bias, out, 0)
        return out.flatten(0, 1)


# --- normalization -------------------------------------------------------------------------------------------------


def _between(parameter: Tensor, apart: Tensor, axis: int) -> Tensor:
    """(K, *shape) with as many axes as (…, K, B, …, *shape), K being axis `axis`."""
    missing = apart.dim() - axis - parameter.dim()
    return parameter.view(parameter.shape[0], *(1,) * missing, *parameter.shape[1:])


def _affine(x: Tensor, axis: int, clients: int, weight: Tensor | None, bias: Tensor | None, after: int = 0) -> Tensor:
    """Each client's `x · weight + bias`; the parameters' own axes are the last of `x` but `after`."""
    if weight is None and bias is None:
        return x
    apart = x.unflatten(axis, (clients, -1))

    def placed(parameter: Tensor) -> Tensor:
        return _between(parameter.view(*parameter.shape, *(1,) * after), apart, axis)

    if weight is None or bias is None:
        apart = apart + placed(bias) if bias is not None else apart * placed(weight)  # type: ignore[arg-type]
    else:
        apart = torch.addcmul(placed(bias), apart, placed(weight))
    out: Tensor = apart.flatten(axis, axis + 1)
    return out


def _long(layer: Any, x: Tensor) -> bool:
    """Whether clients are normalized one after another, with scale and shift on the way."""
    enough = x.device.type == "cpu" and x.numel() >= LONG * layer._clients()
    return enough and layer.weight is not None and layer._axis(x) == 0


def _normalized_one_by_one(function: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _one_by_one(lambda x, weight, bias: function(x, weight=weight, bias=bias), x, weight, bias)


class LayerNorm(ByClient, nn.LayerNorm):
    """The normalization of torch, with scale and shift of each client."""

    def forward(self, input: Tensor) -> Tensor:
        if _long(self, input):
            one = partial(F.layer_norm, normalized_shape=self.normalized_shape, eps=self.eps)
            return _normalized_one_by_one(one, self._apart(input), self.weight, self.bias)
        x = F.layer_norm(input, self.normalized_shape, None, None, self.eps)
        return _affine(x, self._axis(input), self._clients(), self.weight, self.bias)


class RMSNorm(ByClient, nn.RMSNorm):
    """The normalization of torch, with the scale of each client."""

    def forward(self, x: Tensor) -> Tensor:
        normal = F.rms_norm(x, self.normalized_shape, None, self.eps)
        return _affine(normal, self._axis(x), self._clients(), self.weight, None)


class GroupNorm(ByClient, nn.GroupNorm):
    """The normalization of torch, with scale and shift of each client."""

    def forward(self, input: Tensor) -> Tensor:
        if _long(self, input):
            one = partial(F.group_norm, num_groups=self.num_groups, eps=self.eps)
            return _normalized_one_by_one(one, self._apart(input), self.weight, self.bias)
        x = F.group_norm(input, self.num_groups, None, None, self.eps)
        return _affine(x, self._axis(input), self._clients(), self.weight, self.bias, input.dim() - 2)


class InstanceNorm(ByClient, _InstanceNorm):
    """The normalization of torch, with scale and shift of each client."""

    def forward(self, input: Tensor) -> Tensor:
        x = F.instance_norm(input, eps=self.eps)
        return _affine(x, self._axis(input), self._clients(), self.weight, self.bias, input.dim() - 2)


class BatchNorm(ByClient, WeightedBatchNorm):
    """By the statistics of each client's own batch, padding left out, or by those (K, channels) that are given."""

    def forward(self, x: Tensor) -> Tensor:
        apart = self._apart(x)
        channelwise = (len(apart), 1, -1, *(1,) * (apart.dim() - 3))
        if self.number is not None and self.frame.fixed:
            assert self.running_mean is not None and self.running_var is not None
            mean, variance = self.running_mean.view(channelwise), self.running_var.view(channelwise)
            out = ((apart - mean) * torch.rsqrt(variance + self.eps)).flatten(0, 1)
            return _affine(out, 0, self._clients(), self.weight, self.bias, x.dim() - 2)
        if _long(self, x) and self.frame.recorder is None and self._nothing_padded():
            one = partial(F.batch_norm, running_mean=None, running_var=None, training=True, eps=self.eps)
            return _normalized_one_by_one(one, apart, self.weight, self.bias)
        weight = apart.new_ones(apart.shape[:2]) if self.frame.weight is None else self.frame.weight.to(x.dtype)
        weight = weight.repeat_interleave(apart.shape[1] // weight.shape[1], 1)  # steps of a sequence may be rows too
        share = (weight / weight.sum(1, keepdim=True).clamp(min=1e-12)).unsqueeze(2)
        # Sums over a sample's places come first: what is left to weight are few numbers.
        places = tuple(range(3, apart.dim()))
        mean = (_means(apart, places) * share).sum(1).view(channelwise)
        centred = apart - mean
        variance = (_means(centred.square(), places) * share).sum(1).view(channelwise)
        if self.number is not None and self.frame.recorder is not None:
            count = weight.sum(1) * x[0, 0].numel()
            self.frame.recorder.see(Moments(self.number, count, mean.flatten(1), variance.flatten(1)))
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is None or self.bias is None:
            return _affine((centred * scale).flatten(0, 1), 0, len(apart), self.weight, self.bias, x.dim() - 2)
        scale = scale * self.weight.view(channelwise)
        return torch.addcmul(self.bias.view(channelwise), centred, scale).flatten(0, 1)

    def _nothing_padded(self) -> bool:
        weight = self.frame.weight
        return weight is None or bool((weight.detach().numpy() == 1).all())


def _means(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    return values.mean(axes) if axes else values


# --- tables --------------------------------------------------------------------------------------------------------


class Embedding(ByClient, nn.Embedding):
    """The tables of all clients as one, with an offset for each client."""

    def forward(self, input: Tensor) -> Tensor:
        axis, clients = self.frame.axis(self, input), self._clients()
        if axis is None:
            return self._same_for_all(input)
        words = torch.arange(clients, device=input.device) * self.num_embeddings
        own = input.unflatten(axis, (clients, -1)) + words.view(-1, *(1,) * (input.dim() - axis))
        out = F.embedding(own, self.weight.flatten(0, 1)).flatten(axis, axis + 1)
        return out if self.padding_idx is None else _untrained(out, input == self.padding_idx)

    def _same_for_all(self, ids: Tensor) -> Tensor:
        """Positions rather than tokens: each sample gets its client's vectors, and so the result has rows."""
        clients = self._clients()
        vectors = self.weight[:, ids.view(-1)]
        if self.padding_idx is not None:
            vectors = _untrained(vectors, (ids.view(-1) == self.padding_idx).expand(clients, -1))
        shape = ids.shape[1:] if ids.dim() > 1 and len(ids) == 1 else ids.shape
        rows = vectors.view(clients, 1, *shape, -1)
        return rows.expand(-1, self.frame.rows // clients, *rows.shape[2:]).flatten(0, 1)


def _untrained(vectors: Tensor, which: Tensor) -> Tensor:
    """The same vectors, some without a gradient."""
    return torch.where(which.unsqueeze(-1), vectors.detach(), vectors)


class EmbeddingBag(ByClient, nn.EmbeddingBag):
    """As `Embedding`, for bags of tokens."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if offsets is not None:
            raise NoRows(f"layer {self.path!r} takes offsets into one list of tokens")
        words = torch.arange(self._clients(), device=input.device) * self.num_embeddings
        own = (self._apart(input) + words.view(-1, 1, 1)).flatten(0, 1)
        table = self.weight.flatten(0, 1)
        return F.embedding_bag(own, table, mode=self.mode, per_sample_weights=per_sample_weights)


# --- convolutions --------------------------------------------------------------------------------------------------


def _one_by_one(function: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`function(x, weight, bias)` for one client after another; `x` is (K, B, …), the result (K·B, …)."""
    # unbind, because the gradient of an index is as large as what was indexed, for every client again.
    biases = [None] * len(x) if bias is None else bias.unbind(0)
    return torch.cat([function(*own) for own in zip(x.unbind(0), weight.unbind(0), biases, strict=True)])


def _grouped(layer: _ConvNd, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All clients as the groups of one convolution; `x` is (K, B, …), the result (K·B, …)."""
    function: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 4]
    bias = None if bias is None else bias.flatten()
    rows, groups = x.transpose(0, 1).flatten(1, 2), layer.groups * len(x)
    out = function(rows, weight.flatten(0, 1), bias, layer.stride, layer.padding, layer.dilation, groups)
    by_sample: Tensor = out.unflatten(1, (len(x), -1))
    return by_sample.transpose(0, 1).flatten(0, 1)


def _windows(layer: nn.Conv1d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution along one axis as the product of weights and windows; `x` is (K, B, …), the result (K·B, …)."""
    padding = int(layer.padding[0]) if layer.padding != "valid" else 0
    padded = F.pad(x, (padding, padding)) if padding else x
    windows = padded.unfold(3, layer.kernel_size[0], layer.stride[0]).permute(0, 2, 4, 1, 3)
    products = torch.bmm(weight.flatten(2), windows.reshape(len(x), weight[0, 0].numel(), -1))
    products = products if bias is None else products + bias.unsqueeze(2)
    by_sample: Tensor = products.unflatten(2, (x.shape[1], -1))
    return by_sample.transpose(1, 2).flatten(0, 1)


class Convolution(ByClient, _ConvNd):
    """The fastest of four ways, measured on a CPU with 10 and 32 clients and samples."""

    def forward(self, input: Tensor) -> Tensor:
        x = self._apart(input)
        if self.weight.dim() == input.dim():  # frozen
            out = self._conv_forward(input, self.weight, None)
            return _affine(out, 0, self._clients(), None, self.bias, input.dim() - 2)
        if self.padding_mode != "zeros":
            return _one_by_one(self._conv_forward, x, self.weight, self.bias)
        if isinstance(self, nn.Conv2d) and convolution.narrow(self) and not casts(x.device):
            return convolution.convolution(self, x, self.weight, self.bias).flatten(0, 1)
        if isinstance(self, nn.Conv1d) and self._narrow(x):
            return _windows(self, x, self.weight, self.bias)
        if isinstance(self, nn.Conv1d) or self.groups > 1 or self.in_channels <= MANY_CHANNELS:
            return _grouped(self, x, self.weight, self.bias)
        return _one_by_one(self._conv_forward, x, self.weight, self.bias)

    def _narrow(self, x: Tensor) -> bool:
        plain = self.groups == 1 and self.padding != "same" and self.dilation == (1,)
        work = x.shape[1] * x.shape[-1] * self.weight[0].numel()
        return plain and self.in_channels <= FEW_CHANNELS and work < MUCH


class Conv1d(Convolution, nn.Conv1d):
    """`nn.Conv1d` for each client."""


class Conv2d(Convolution, nn.Conv2d):
    """`nn.Conv2d` for each client."""


class Conv3d(Convolution, nn.Conv3d):
    """`nn.Conv3d` for each client."""


class Transposed(ByClient, _ConvTransposeNd):
    """A transposed convolution, for one client after another."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        axes = input.dim() - 2
        padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, axes, self.dilation  # type: ignore
        )  # fmt: skip
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]

        def one(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            settings: Any = (self.stride, self.padding, padding, self.groups, self.dilation)
            return function(x, weight, bias, *settings)

        return _one_by_one(one, self._apart(input), self.weight, self.bias)


SHARE_WEIGHT = (Linear, Convolution)
"""Layers that take a frozen weight as it is, without an axis for clients, where only their bias is trained."""
