"""What clients keep between rounds. Only clients that were ever active occupy room."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.algorithms.base import State

Ids = NDArray[np.int64]


class ClientStore:
    """One row of state per client, in memory; a client without a row has the default state.

    >>> store = ClientStore({"theta": torch.zeros(2)}, clients=1000)
    >>> store.put(np.array([7]), {"theta": torch.ones(1, 2)})
    >>> store.get(np.array([3, 7]))["theta"].tolist(), store.rows_used
    ([[0.0, 0.0], [1.0, 1.0]], 1)
    """

    def __init__(self, default: State, clients: int) -> None:
        self.default = {name: value.clone() for name, value in default.items()}
        self.slots: Ids = np.full(clients, -1, np.int64)
        self.rows: State = {name: value.new_empty((0, *value.shape)) for name, value in default.items()}
        self.rows_used = 0

    def get(self, ids: Ids) -> State:
        """Copies of the states of these clients, stacked."""
        slots = self.slots[ids]
        known = np.flatnonzero(slots >= 0)
        if len(known) == len(ids):
            index = torch.from_numpy(slots)
            return {name: rows.index_select(0, index.to(rows.device)) for name, rows in self.rows.items()}
        out = {name: value.expand(len(ids), *value.shape).clone() for name, value in self.default.items()}
        if len(known):
            to, source = torch.from_numpy(known), torch.from_numpy(slots[known])
            for name, rows in self.rows.items():
                out[name][to.to(rows.device)] = rows.index_select(0, source.to(rows.device))
        return out

    def put(self, ids: Ids, state: State) -> None:
        """Store the states of these clients, each named once."""
        if len(np.unique(ids)) != len(ids):
            raise ValueError("a client is named twice")
        new = ids[self.slots[ids] < 0]
        if len(new):
            self._reserve(self.rows_used + len(new))
            self.slots[new] = np.arange(self.rows_used, self.rows_used + len(new))
            self.rows_used += len(new)
        index = torch.from_numpy(self.slots[ids])
        for name, rows in self.rows.items():
            rows.index_copy_(0, index.to(rows.device), state[name])

    def _reserve(self, count: int) -> None:
        capacity = next((len(rows) for rows in self.rows.values()), count)
        if count <= capacity:
            return
        capacity = min(max(count, 2 * capacity), len(self.slots))
        for name, rows in self.rows.items():
            grown = rows.new_empty((capacity, *rows.shape[1:]))
            grown[: self.rows_used] = rows[: self.rows_used]
            self.rows[name] = grown

    def state(self) -> State:
        """Everything, for a checkpoint."""
        return {
            "slots": torch.from_numpy(self.slots),
            **{f"rows.{name}": rows[: self.rows_used] for name, rows in self.rows.items()},
        }

    def restore(self, state: State) -> None:
        """The inverse of `state`."""
        self.slots = state["slots"].numpy().copy()
        self.rows_used = int((self.slots >= 0).sum())
        self.rows = {name: state[f"rows.{name}"].clone() for name in self.default}
