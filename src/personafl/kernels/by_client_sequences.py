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
from personafl.kernels.recurrent import WIDE, lstm_steps

States = Tensor | tuple[Tensor, ...] | None


class Recurrent(ByClient, nn.RNNBase):
    """An LSTM, GRU or RNN: torch's own, client after client, but for narrow LSTMs from their usual beginning."""

    def forward(self, input: Tensor, hx: States = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        if isinstance(input, PackedSequence):
            raise NoRows(f"layer {self.path!r} takes a packed sequence")
        rows, dropout = 0 if self.batch_first else 1, self.dropout if self.training and self.num_layers > 1 else 0.0
        if self.mode == "LSTM" and not dropout and hx is None and self.hidden_size < WIDE and self.proj_size == 0:
            return self._narrow_lstm(input, rows)
        clients = self._clients()
        inputs = input.unflatten(rows, (clients, -1)).unbind(rows)
        states = self._states(inputs[0], hx)
        weights = zip(*(getattr(self, name).unbind(0) for name in self._flat_weights_names), strict=True)
        settings = (self.bias, self.num_layers, dropout, self.training, self.bidirectional, self.batch_first)
        function = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
        found = [
            function[self.mode](own, state, list(flat), *settings)
            for _, own, state, flat in zip(self.frame.each_client(), inputs, states, weights, strict=True)
        ]
        outputs, *last = zip(*found, strict=True)
        ends = tuple(torch.cat(parts, 1) for parts in last)
        return torch.cat(outputs, rows), ends if self.mode == "LSTM" else ends[0]

    def _states(self, one: Tensor, hx: States) -> list[Any]:
        """What each client begins with."""
        clients, samples = self._clients(), one.shape[0 if self.batch_first else 1]
        layers = self.num_layers * (2 if self.bidirectional else 1)
        if hx is None:
            zeros = one.new_zeros(layers, samples, self.hidden_size)
            if self.mode != "LSTM":
                return [zeros] * clients
            first = one.new_zeros(layers, samples, self.proj_size) if self.proj_size else zeros
            return [(first, zeros)] * clients
        if isinstance(hx, Tensor):
            return list(hx.unflatten(1, (clients, -1)).unbind(1))
        parts = [part.unflatten(1, (clients, -1)).unbind(1) for part in hx]
        return list(zip(*parts, strict=True))

    def _narrow_lstm(self, input: Tensor, rows: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        clients = self._clients()
        x = input.unflatten(rows, (clients, -1)).movedim(rows, 0)
        x = x.transpose(1, 2) if self.batch_first else x  # (K, T, B, features)
        hidden, memory = [], []
        for layer in range(self.num_layers):
            directions = [self._direction(x, layer, backwards) for backwards in range(2 if self.bidirectional else 1)]
            x = torch.cat([outputs for outputs, _, _ in directions], -1)
            hidden += [h for _, h, _ in directions]
            memory += [c for _, _, c in directions]
        out = x.transpose(1, 2) if self.batch_first else x
        outputs = out.movedim(0, rows).flatten(rows, rows + 1)
        h, c = (torch.stack([part.flatten(0, 1) for part in parts]) for parts in (hidden, memory))
        return outputs, (h, c)

    def _direction(self, x: Tensor, layer: int, backwards: int) -> tuple[Tensor, Tensor, Tensor]:
        suffix = f"_l{layer}{'_reverse' * backwards}"
        w_ih, w_hh = getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}")
        bias = getattr(self, f"bias_ih{suffix}") + getattr(self, f"bias_hh{suffix}") if self.bias else None
        x = x.flip(1) if backwards else x
        inputs = linear(x.flatten(1, 2), w_ih, bias).unflatten(1, x.shape[1:3])
        outputs, memory = lstm_steps(inputs, w_hh)
        return outputs.flip(1) if backwards else outputs, outputs[:, -1], memory


class MultiheadAttention(ByClient, nn.MultiheadAttention):
    """The projections by client; attention itself sees K·B rows."""

    def forward(  # type: ignore[override]
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
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

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
