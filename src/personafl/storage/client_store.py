"""What clients keep between rounds. Only clients that were ever active have a row, in memory or in mapped files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.files import disk_errors
from personafl.states import State

Ids = NDArray[np.int64]

BLOCK = 64 * 2**20
"""Bytes of a block of rows. Rows are added in blocks and never move."""


class ClientStore:
    """One row of state for each client that was ever seen.

    Parameters
    ----------
    like
        Something with the names, types and shapes of a row.
    clients
        How many clients there are.
    memory
        Megabytes of rows that are kept in memory; further rows are in memory-mapped files.
    folder
        Where these files are; without a folder everything is in memory. They have no name, so that nothing is left of
        them when the process ends, however it ends.

    Examples
    --------
    >>> store = ClientStore({"theta": torch.zeros(2)}, clients=1000)
    >>> store.put(np.array([7]), {"theta": torch.ones(1, 2)})
    >>> store.get(np.array([7]))["theta"].tolist(), store.known(np.array([3, 7])).tolist()
    ([[1.0, 1.0]], [False, True])
    """

    def __init__(self, like: State, clients: int, memory: int = 1024, folder: Path | None = None) -> None:
        self.like = {name: torch.empty_like(value) for name, value in like.items()}
        self.slots: Ids = np.full(clients, -1, np.int64)
        self._taken = 0  # slots that were ever given out
        self._free: Ids = np.arange(0)  # of these, those whose client was dropped
        self.row_bytes = sum(value.numel() * value.element_size() for value in like.values())
        self.blocks: list[State] = []
        self.mapped = 0
        self._block_rows = min(clients, max(1, BLOCK // max(self.row_bytes, 1)))
        self._memory, self._folder = memory * 2**20, folder

    def known(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these clients have a row."""
        return np.asarray(self.slots[ids] >= 0)

    def get(self, ids: Ids) -> State:
        """Copies of the states of these clients, stacked. All of them must have a row."""
        if not self.known(ids).all():
            raise KeyError(f"clients without a row: {ids[~self.known(ids)][:5].tolist()}")
        return self.rows(ids)

    def rows(self, ids: Ids) -> State:
        """As `get`, with zeros for clients that have no row."""
        pieces = self._pieces(self.slots[ids])
        if len(pieces) == 1 and len(pieces[0][1]) == len(ids):
            block, _, source = pieces[0]
            return {name: rows.index_select(0, source.to(rows.device)) for name, rows in self.blocks[block].items()}
        out = {name: value.new_zeros(len(ids), *value.shape) for name, value in self.like.items()}
        for block, to, source in pieces:
            for name, rows in self.blocks[block].items():
                found = rows.index_select(0, source.to(rows.device))
                out[name].index_copy_(0, to.to(out[name].device), found.to(out[name].device))
        return out

    def put(self, ids: Ids, state: State) -> None:
        """Store the states of these clients, each named once."""
        if len(np.unique(ids)) != len(ids):
            raise ValueError("a client is named twice")
        new = ids[self.slots[ids] < 0]
        if len(new):
            again, self._free = self._free[: len(new)], self._free[len(new) :]
            more = np.arange(self._taken, self._taken + len(new) - len(again))
            self._reserve(self._taken + len(more))
            self._taken += len(more)
            self.slots[new] = np.concatenate([again, more])
        pieces = self._pieces(self.slots[ids])
        for block, source, to in pieces:
            for name, rows in self.blocks[block].items():
                value = state[name] if len(pieces) == 1 else state[name].index_select(0, source.to(state[name].device))
                rows.index_copy_(0, to.to(rows.device), value.to(rows.device))

    def drop(self, ids: Ids) -> None:
        """Forget the states of these clients."""
        gone = ids[self.known(ids)]
        self._free = np.concatenate([self._free, self.slots[gone]])
        self.slots[gone] = -1

    def _pieces(self, slots: Ids) -> list[tuple[int, Tensor, Tensor]]:
        """Which blocks these slots lie in: its number, the places among the slots, the rows of the block."""
        block = np.where(slots >= 0, slots // self._block_rows, -1)
        touched = [(int(b), np.flatnonzero(block == b)) for b in np.unique(block) if b >= 0]
        return [(b, torch.from_numpy(at), torch.from_numpy(slots[at] - b * self._block_rows)) for b, at in touched]

    def _reserve(self, count: int) -> None:
        while len(self.blocks) * self._block_rows < count:
            rows = min(self._block_rows, len(self.slots) - len(self.blocks) * self._block_rows)
            in_memory = (
                self._folder is None or self._memory >= (len(self.blocks) + 1) * self._block_rows * self.row_bytes
            )
            shapes = {name: (rows, *value.shape) for name, value in self.like.items()}
            if in_memory:
                self.blocks.append({name: self.like[name].new_empty(shape) for name, shape in shapes.items()})
            else:
                self.blocks.append({name: self._map(shape, self.like[name].dtype) for name, shape in shapes.items()})
                self.mapped += 1

    def _map(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in a file without a name."""
        assert self._folder is not None
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        size = int(np.prod(shape)) * kind.itemsize
        with disk_errors(self._folder, "keeping clients' states in"), tempfile.TemporaryFile(dir=self._folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))  # a full disk is an error here, later a crash
            return torch.from_numpy(np.memmap(file, kind, "r+", shape=shape))
