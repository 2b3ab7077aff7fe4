"""Recurrent layers that run for one client, under vmap, and for K clients at once.

`nn.LSTM` is the fastest for one client, and has no rule for vmap. So `Lstm` is `nn.LSTM` for one client, and the same
arithmetic written out under vmap. For K clients `stacked_lstm` has one matrix product for the inputs of all steps and
one a step for what is carried on. Its backward pass leaves the gradient of the recurrent weights to the end, where it
is one product over all steps. Wide layers are torch's own, client after client: at every step, the product for all
clients would fetch all their weights from memory, while those of one client stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from personafl.kernels.linear import in_full

WIDE = 128
"""From this many hidden units on, measured with batches of 10."""


class Lstm(nn.LSTM):
    """A layer of long short-term memory (Hochreiter and Schmidhuber 1997): (B, T, features) to (B, T, hidden).

    >>> Lstm(3, 4)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 4])
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor
    inner_outputs: ClassVar[int] = 5  # the gates and the memory are kept beside each output

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        if torch._C._are_functorch_transforms_active():
            return self._written_out(x)
        outputs: Tensor = super().forward(x)[0]
        return outputs

    def _written_out(self, x: Tensor) -> Tensor:
        inputs = F.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        h = c = inputs.new_zeros(len(x), self.hidden_size)
        outputs = []
        for z in inputs.unbind(1):
            i, f, g, o = _gates(z + h @ self.weight_hh_l0.T)
            c = f * c + i * g
            h = o * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1)


class LastStep(nn.Module):
    """The last of a sequence's steps: (…, T, d) to (…, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., -1, :]


class WordVectors(nn.Module):
    """Token ids to the vectors of a table (words, features) that is never trained: (…,) to (…, features)."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        # Every model of a run has the same table: it is no part of what is saved with one of them.
        self.register_buffer("table", table, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)


def stacked_lstm(
    linear: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
) -> Tensor:
    """`Lstm` for K clients: `x` is (K, B, T, features), each weight has a leading axis K; gives (K, B, T, hidden).

    `linear(rows, weight, bias)` computes `rows weightᵀ + bias` for K clients.
    """
    if w_hh.shape[2] >= WIDE and x.device.type == "cpu":
        zeros = x.new_zeros(1, x.shape[1], w_hh.shape[2])
        # unbind, because the gradient of an index is as large as what was indexed, for every client again.
        clients = zip(*(tensor.unbind(0) for tensor in (x, w_ih, w_hh, b_ih, b_hh)), strict=True)
        return torch.stack(
            [torch.lstm(own, (zeros, zeros), weights, True, 1, 0.0, True, False, True)[0] for own, *weights in clients]
        )
    by_step = x.transpose(1, 2)
    inputs = linear(by_step.flatten(1, 2), w_ih, b_ih + b_hh).unflatten(1, by_step.shape[1:3])
    return lstm_steps(inputs, w_hh)[0].transpose(1, 2)


def lstm_steps(inputs: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """What an LSTM makes of the inputs (K, T, B, 4·hidden) of its gates: outputs (K, T, B, hidden), the last memory."""
    outputs, memory = in_full(_Recurrence, inputs, w_hh)
    return outputs, memory


class _Recurrence(torch.autograd.Function):
    """See `lstm_steps`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        h = c = inputs.new_zeros(*inputs[:, 0].shape[:2], weight.shape[2])
        outputs, kept = [h], []
        for z in inputs.unbind(1):
            i, f, g, o = _gates(torch.baddbmm(z, h, weight.transpose(1, 2)))
            kept += [i, f, g, o, c]
            c = f * c + i * g
            squashed = c.tanh()
            h = o * squashed
            kept.append(squashed)
            outputs.append(h)
        stacked = torch.stack(outputs, 1)
        ctx.save_for_backward(weight, stacked, *kept)
        return stacked[:, 1:], c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        to_outputs, to_memory = grads
        weight, outputs, *kept = ctx.saved_tensors
        to_h, to_c = torch.zeros_like(outputs[:, 0]), to_memory
        steps: list[Tensor] = []
        for t in reversed(range(to_outputs.shape[1])):
            i, f, g, o, c, squashed = kept[6 * t : 6 * t + 6]
            to_h = to_h + to_outputs[:, t]
            to_c = to_c + to_h * o * (1 - squashed * squashed)
            to_gates = torch.cat(
                [to_c * g * i * (1 - i), to_c * c * f * (1 - f), to_c * i * (1 - g * g), to_h * squashed * o * (1 - o)],
                -1,
            )
            steps.append(to_gates)
            to_h = torch.bmm(to_gates, weight)
            to_c = to_c * f
        to_inputs = torch.stack(steps[::-1], 1)
        # All steps at once: a product for each, added up, would write the whole weight matrix at every step.
        to_weight = torch.bmm(to_inputs.flatten(1, 2).transpose(1, 2), outputs[:, :-1].flatten(1, 2))
        return to_inputs, to_weight


def gru_steps(inputs: Tensor, w_hh: Tensor, b_hh: Tensor | None) -> Tensor:
    """What a GRU (Cho et al. 2014) makes of the inputs (K, T, B, 3·hidden) of its gates: outputs (K, T, B, hidden)."""
    outputs: Tensor = in_full(_GatedRecurrence, inputs, w_hh, b_hh)
    return outputs


class _GatedRecurrence(torch.autograd.Function):
    """See `gru_steps`. As in `_Recurrence`, the gradient of the weights is one product over all steps."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        h = inputs.new_zeros(*inputs[:, 0].shape[:2], weight.shape[2])
        outputs, kept = [h], []
        for x in inputs.unbind(1):
            carried = torch.bmm(h, weight.transpose(1, 2))
            x_r, x_z, x_n = x.chunk(3, -1)
            h_r, h_z, h_n = (carried if bias is None else carried.add_(bias.unsqueeze(1))).chunk(3, -1)
            r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
            n = torch.addcmul(x_n, r, h_n).tanh()
            kept += [r, z, n, h_n]
            h = torch.lerp(n, h, z)
            outputs.append(h)
        stacked = torch.stack(outputs, 1)
        ctx.save_for_backward(weight, stacked, *kept)
        return stacked[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (to_outputs,) = grads
        weight, outputs, *kept = ctx.saved_tensors
        to_h = torch.zeros_like(outputs[:, 0])
        to_inputs: list[Tensor] = []
        to_carried: list[Tensor] = []
        for t in reversed(range(to_outputs.shape[1])):
            r, z, n, h_n = kept[4 * t : 4 * t + 4]
            to_h = to_h + to_outputs[:, t]
            to_n = to_h * (1 - z) * (1 - n * n)
            to_z = to_h * (outputs[:, t] - n) * z * (1 - z)
            to_r = to_n * h_n * r * (1 - r)
            to_inputs.append(torch.cat([to_r, to_z, to_n], -1))
            to_carried.append(torch.cat([to_r, to_z, to_n * r], -1))
            to_h = torch.baddbmm(to_h * z, to_carried[-1], weight)
        carried = torch.stack(to_carried[::-1], 1).flatten(1, 2)
        to_weight = torch.bmm(carried.transpose(1, 2), outputs[:, :-1].flatten(1, 2))
        return torch.stack(to_inputs[::-1], 1), to_weight, carried.sum(1) if ctx.needs_input_grad[2] else None


def rnn_steps(inputs: Tensor, w_hh: Tensor, nonlinearity: str) -> Tensor:
    """What an Elman network makes of its inputs (K, T, B, hidden): outputs of the same shape."""
    outputs: Tensor = in_full(_PlainRecurrence, inputs, w_hh, nonlinearity)
    return outputs


class _PlainRecurrence(torch.autograd.Function):
    """See `rnn_steps`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, nonlinearity: str) -> Tensor:
        squash = torch.tanh_ if nonlinearity == "tanh" else torch.relu_
        outputs = [torch.zeros_like(inputs[:, 0])]
        for x in inputs.unbind(1):
            outputs.append(squash(torch.baddbmm(x, outputs[-1], weight.transpose(1, 2))))
        stacked = torch.stack(outputs, 1)
        ctx.save_for_backward(weight, stacked)
        ctx.tanh = nonlinearity == "tanh"
        return stacked[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (to_outputs,) = grads
        weight, outputs = ctx.saved_tensors
        to_h = torch.zeros_like(outputs[:, 0])
        steps: list[Tensor] = []
        for t in reversed(range(to_outputs.shape[1])):
            h = outputs[:, t + 1]
            to_h = (to_h + to_outputs[:, t]) * ((1 - h * h) if ctx.tanh else h > 0)
            steps.append(to_h)
            to_h = torch.bmm(to_h, weight)
        to_inputs = torch.stack(steps[::-1], 1)
        to_weight = torch.bmm(to_inputs.flatten(1, 2).transpose(1, 2), outputs[:, :-1].flatten(1, 2))
        return to_inputs, to_weight, None


def _gates(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, forget, candidate and output gate, in torch's order."""
    i, f, g, o = z.chunk(4, -1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
