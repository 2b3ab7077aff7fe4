"""How many samples sites say that they have: for a run, each counts with no more than it said when it joined."""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np
import torch

from personafl.backends.flower.nodes import Nodes
from personafl.errors import DataError
from personafl.federation.arrays import SPLITS
from personafl.states import Ints, State
from personafl.training.evaluation import ClientIndex

log = logging.getLogger("personafl")


class DeclaredSizes:
    """The numbers of samples that sites declared when they joined, which are those of the client index."""

    def __init__(self, nodes: Nodes, client_index: ClientIndex) -> None:
        self._nodes, self._index = nodes, client_index
        # −1: it has not joined.
        self._declared = {split: np.full(len(client_index), -1, np.int64) for split in SPLITS}
        self._joined: set[int] = set()
        self._reported: set[tuple[int, str, int]] = set()  # larger claims that the log has
        self.note(nodes.where())

    def note(self, there: Collection[str]) -> None:
        """Take the numbers of sites that come late, or with other data: never more than at first."""
        for i, client in enumerate(self._index.ids):
            for split, sizes in self._index.sizes.items() if client in there else ():
                now, declared = getattr(self._nodes.site_info(client), split), self._declared[split]
                if declared[i] < 0:
                    declared[i] = now
                    self._joined.add(i)
                new = min(now, int(declared[i]))
                if new < now and (i, split, now) not in self._reported:
                    self._reported.add((i, split, now))
                    log.warning(
                        "%s says that it has %d %s samples, at first it said %d: it counts with these",
                        client, now, split, new,
                    )  # fmt: skip
                sizes[i] = new

    def joined(self) -> Ints:
        """Who joined since this was asked."""
        joined, self._joined = np.array(sorted(self._joined), np.int64), set()
        return joined

    def check(self, i: int) -> None:
        """Measures over more samples than a site has declared are not of what its row says."""
        info = self._nodes.site_info(self._index.ids[i])
        for split in ("val", "test"):
            if getattr(info, split) > self._declared[split][i]:
                raise DataError(f"it has more {split} samples than when it joined")

    def rows(self, ids: Ints) -> State:
        """What a checkpoint keeps of these clients."""
        return {f"declared_{split}": torch.from_numpy(sizes[ids]) for split, sizes in self._declared.items()}

    def put_rows(self, ids: Ints, rows: State) -> None:
        """Go on from a checkpoint; those of earlier versions have none of it."""
        for split, sizes in self._declared.items():
            if f"declared_{split}" in rows:
                sizes[ids] = rows[f"declared_{split}"].numpy()
        self.note(self._nodes.where())

    @property
    def row_bytes(self) -> int:
        """What `rows` takes for one client."""
        return 8 * len(self._declared)
