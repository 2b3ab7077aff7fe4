"""The clients' rows as checkpoints keep them: a log, so that a checkpoint costs what changed since the one before.

A checkpoint writes the rows of the clients that were active since the last one to a file of its own and names the older
files that still hold the current row of somebody. So that the log does not grow for ever, the oldest file is given up
whenever all files together have more than `SPARE` times as many rows as there are clients with a row: what is still
current in it is written once more, with the rows that changed. Small logs, up to `WHOLE`, are a single file always.

Which files there are and what is in them follows from the rounds at which checkpoints were made, not from the process:
a run that was killed and resumed writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.files import checksum, write_rows
from personafl.states import State
from personafl.storage.reading import open_tensors

Ids = NDArray[np.int64]

WHOLE = 32 * 2**20
SPARE = 2
AT_ONCE = 16 * 2**20


class ClientLog:
    """Which file holds the current row of each client, and who changed since.

    Parameters
    ----------
    clients
        How many clients there are.
    row_bytes
        The size of a client's row.
    """

    def __init__(self, clients: int, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.files: dict[int, dict[str, Any]] = {}  # round: what its file must be
        self._where = np.zeros(clients, np.int32)  # the round of the file with a client's current row; 0: it has none
        self._changed = np.zeros(clients, np.bool_)
        self._held = 0

    @property
    def rows_at_once(self) -> int:
        """How many rows to read or write at a time."""
        return max(1, AT_ONCE // max(self.row_bytes, 1))

    def change(self, ids: Ids) -> None:
        """These clients' rows are not what the files say any more."""
        self._changed[ids] = True

    def write(self, folder: Path, round: int, rows: Callable[[Ids], State]) -> None:
        """Write what changed, and what is still current in files that are given up."""
        ids = self._take(round)
        if not len(ids):
            return
        pieces = np.array_split(ids, -(-len(ids) // self.rows_at_once))
        path = folder / file_name(round)
        write_rows(path, len(ids), ({"ids": piece, **rows(piece)} for piece in pieces))
        self.files[round] = {"rows": len(ids), "bytes": path.stat().st_size, "sha256": checksum(path)}

    def read(self, folder: Path, files: dict[int, dict[str, Any]], put: Callable[[Ids, State], None]) -> None:
        """Hand every client's current row to `put`, some at a time: the newest that is in a file."""
        self.files = dict(files)
        for round in sorted(files, reverse=True):
            with open_tensors(folder / file_name(round)) as file:
                everybody = self._ids(file)
                names = [name for name in file.keys() if name != "ids"]  # noqa: SIM118 (it is not a dictionary)
                for first in range(0, len(everybody), self.rows_at_once):
                    some = slice(first, first + self.rows_at_once)
                    current = self._where[everybody[some]] == 0
                    ids = everybody[some][current]
                    state = {name: file.get_slice(name)[some][current] for name in names}
                    self._where[ids] = round
                    put(ids, state)
        self._held = int((self._where > 0).sum())

    def _ids(self, file: Any) -> Ids:
        """Whose rows a file has: a ValueError where these are no clients, or a tensor has not a row for each."""
        sizes = {name: file.get_slice(name).get_shape()[:1] for name in list(file.keys())}
        ids = file.get_tensor("ids").numpy()
        if any(size != [len(ids)] for size in sizes.values()) or ids.dtype != np.int64 or ids.ndim != 1:
            raise ValueError("its tensors have not a row for each of its ids")
        if len(ids) and not (0 <= ids.min() and ids.max() < len(self._where) and len(np.unique(ids)) == len(ids)):
            raise ValueError("its ids are not those of clients of this run")
        return ids  # type: ignore[no-any-return]

    def _take(self, round: int) -> Ids:
        """The clients whose rows this round's file gets."""
        ids = np.flatnonzero(self._changed)
        self._changed[ids] = False
        self._held += int((self._where[ids] == 0).sum())
        self._where[ids] = round
        sizes = {old: int(known["rows"]) for old, known in self.files.items()}
        small = self._held * self.row_bytes <= WHOLE
        while sizes and (small or sum(sizes.values()) + len(ids) > SPARE * self._held):
            oldest = min(sizes)
            moved = np.flatnonzero(self._where == oldest)
            self._where[moved] = round
            ids = np.concatenate([ids, moved])
            del sizes[oldest], self.files[oldest]
        return np.sort(ids)


def file_name(round: int) -> str:
    """What a round's file of the log is called."""
    return f"clients-{round:06d}.safetensors"
