"""Recurrent layers and attention with K clients' weights and K·B rows."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from personafl.kernels.by_client import ByClient, NoRows, linear_rows
from personafl.kernels.linear import linear
from personafl.kernels.recurrent import WIDE, gru_steps, lstm_steps, rnn_steps

States = Tensor | tuple[Tensor, ...] | None


class Recurrent(ByClient, nn.RNNBase):
    """An LSTM, GRU or RNN.

    Narrow ones are batched products of all clients at each step. Wide ones, and those that begin with a state of their
    own, are torch's, client after client.
    """

    def forward(self, input: Tensor, hx: States = None) -> tuple[Tensor, Any]:
        if isinstance(input, PackedSequence):
            raise NoRows(f"layer {self.path!r} takes a packed sequence")
        rows, layers = 0 if self.batch_first else 1, range(self.num_layers)
        x = input.unflatten(rows, (self._clients(), -1)).movedim(rows, 0)
        x = x.transpose(1, 2) if self.batch_first else x  # (K, T, B, features)
        narrow = hx is None and self.hidden_size < WIDE and self.proj_size == 0
        drops = self.training and self.dropout > 0
        if narrow or drops:
            ends = []
            for layer in layers:
                if layer > 0 and drops:
                    x = self._dropped(x)
                x, *end = self._narrow(x, layer) if narrow else self._wide(x, [layer], hx)
                ends.append(end)
            states = [torch.cat(parts) for parts in zip(*ends, strict=True)]
        else:
            x, *states = self._wide(x, list(layers), hx)
        out = x.transpose(1, 2) if self.batch_first else x
        out = out.movedim(0, rows).flatten(rows, rows + 1)
        return out, tuple(states) if self.mode == "LSTM" else states[0]

    def _dropped(self, x: Tensor) -> Tensor:
        """Dropout between layers, on (T, K·B, features) as torch has it, so that a draw falls on the same places."""
        rows = F.dropout(x.transpose(0, 1).flatten(1, 2), self.dropout)
        apart: Tensor = rows.unflatten(1, (len(x), -1))
        return apart.transpose(0, 1)

    # --- all clients at each step ----------------------------------------------------------------------------

    def _narrow(self, x: Tensor, layer: int) -> list[Tensor]:
        """Outputs (K, T, B, …) of one layer, and its last states (directions, K·B, hidden)."""
        directions = [self._direction(x, layer, backwards) for backwards in range(1 + self.bidirectional)]
        outputs, *ends = zip(*directions, strict=True)
        return [torch.cat(outputs, -1), *(torch.stack(parts).flatten(1, 2) for parts in ends)]

    def _direction(self, x: Tensor, layer: int, backwards: int) -> tuple[Tensor, ...]:
        w_ih, w_hh, *biases = self._weights(layer, backwards)
        b_ih, b_hh = biases if biases else (None, None)
        if b_ih is not None and b_hh is not None and self.mode != "GRU":
            b_ih = b_ih + b_hh
        x = x.flip(1) if backwards else x
        inputs = linear(x.flatten(1, 2), w_ih, b_ih).unflatten(1, x.shape[1:3])
        if self.mode == "LSTM":
            outputs, *memory = lstm_steps(inputs, w_hh)
        else:
            memory = []
            outputs = gru_steps(inputs, w_hh, b_hh) if self.mode == "GRU" else rnn_steps(inputs, w_hh, self._squash())
        return outputs.flip(1) if backwards else outputs, outputs[:, -1], *memory

    def _weights(self, layer: int, backwards: int) -> list[Tensor]:
        kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        kinds += ["weight_hr"] if self.proj_size else []
        return [getattr(self, f"{kind}_l{layer}{'_reverse' * backwards}") for kind in kinds]

    def _squash(self) -> str:
        return "tanh" if self.mode == "RNN_TANH" else "relu"

    # --- torch's own, client after client --------------------------------------------------------------------

    def _wide(self, x: Tensor, layers: list[int], hx: States) -> list[Tensor]:
        """Outputs (K, T, B, …) of some layers, and their last states (layers · directions, K·B, hidden)."""
        directions = 1 + self.bidirectional
        flat = [w for layer in layers for backwards in range(directions) for w in self._weights(layer, backwards)]
        weights = zip(*(weight.unbind(0) for weight in flat), strict=True)
        states = self._states(x, slice(directions * layers[0], directions * (layers[-1] + 1)), hx)
        settings = (self.bias, len(layers), 0.0, self.training, self.bidirectional, False)
        function: Any = getattr(torch, self.mode.lower())
        clients = zip(x.unbind(0), states, weights, strict=True)
        outputs, *ends = zip(*(function(own, h, list(w), *settings) for own, h, w in clients), strict=True)
        return [torch.stack(outputs), *(torch.cat(parts, 1) for parts in ends)]

    def _states(self, x: Tensor, which: slice, hx: States) -> list[Any]:
        """What some layers of each client begin with."""
        if hx is None:
            layers = len(range(*which.indices(self.num_layers * (1 + self.bidirectional))))
            memory = x.new_zeros(layers, x.shape[2], self.hidden_size)
            first = x.new_zeros(layers, x.shape[2], self.proj_size) if self.proj_size else memory
            return [(first, memory) if self.mode == "LSTM" else first] * len(x)
        if isinstance(hx, Tensor):
            return list(hx[which].unflatten(1, (len(x), -1)).unbind(1))
        parts = [part[which].unflatten(1, (len(x), -1)).unbind(1) for part in hx]
        return list(zip(*parts, strict=True))


class MultiheadAttention(ByClient, nn.MultiheadAttention):
    """The projections by client; attention itself sees K·B rows."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3 or self.bias_k is not None or self.add_zero_attn:
            raise NoRows(f"layer {self.path!r} has no rows, or adds keys of its own")
        rows = 0 if self.batch_first else 1
        q, k, v = (self._heads(part, rows) for part in self._projected(query, key, value, rows))
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        causal = is_causal and key_padding_mask is None and not need_weights
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = self._weights(q, k, mask, p)
            out = torch.matmul(weights, v)
        else:
            out = F.scaled_dot_product_attention(q, k, v, None if causal else mask, p, causal)
        joined = out.transpose(1, 2).flatten(2)  # (K·B, steps, features)
        joined = joined if self.batch_first else joined.transpose(0, 1)
        result = linear_rows(joined, rows, self._clients(), self.out_proj.weight, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return result, weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, rows: int) -> list[Tensor]:
        if self._qkv_same_embed_dim and query is key and key is value:
            packed = linear_rows(query, rows, self._clients(), self.in_proj_weight, self.in_proj_bias)
            return list(packed.chunk(3, -1))
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3, 1)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3, 1)
        parts = zip((query, key, value), weights, biases, strict=True)
        return [linear_rows(x, rows, self._clients(), weight, bias) for x, weight, bias in parts]

    def _heads(self, x: Tensor, rows: int) -> Tensor:
        x = x if rows == 0 else x.transpose(0, 1)
        heads: Tensor = x.unflatten(2, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2)

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """What is added before the softmax, for (K·B, heads, steps, steps)."""
        if mask is not None:
            mask = _added(mask, q)
            mask = mask.unflatten(0, (-1, self.num_heads)) if mask.dim() == 3 else mask
        if padding is None:
            return mask
        added = _added(padding, q).view(len(q), 1, 1, k.shape[2])
        return added.expand(-1, self.num_heads, -1, -1) if mask is None else mask + added

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, p: float) -> Tensor:
        scores = torch.matmul(q * math.sqrt(1.0 / self.head_dim), k.transpose(2, 3))
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        # In torch's own shape, (rows · heads, steps, steps), so that a draw falls on the same places.
        return F.dropout(weights.flatten(0, 1), p).view(weights.shape) if p > 0 else weights


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
