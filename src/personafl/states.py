"""The words that everybody uses: what states and messages are, and how many clients' states are handled as one.

A state of one client is a flat dictionary of tensors. The states of K clients are the same dictionary with one more
axis in front, a row for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

State = dict[str, Tensor]
"""What a client or the server keeps, or a message between them."""

Ints = NDArray[np.int64]
"""Positions or counts of clients."""


def each(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The same function of every tensor.

    >>> each(lambda value: value + 1, {"theta": torch.zeros(2)})
    {'theta': tensor([1., 1.])}
    """
    return {name: function(value) for name, value in state.items()}


def rows(state: State, at: Tensor) -> State:
    """Some rows of the states of many clients."""
    return {name: value.index_select(0, at.to(value.device)) for name, value in state.items()}


def row(state: State, at: int) -> State:
    """The state of one client of many."""
    return {name: value[at] for name, value in state.items()}


def joined(parts: Sequence[State]) -> State:
    """The states of several groups of clients as one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def moved(state: State, device: torch.device | str) -> State:
    """The same state on a device."""
    return {name: value.to(device) for name, value in state.items()}
