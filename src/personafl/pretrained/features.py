"""The pass through a frozen backbone: the features of each sample, computed once and kept in the cache.

What is kept goes by samples: another split or partition of the same samples, or some of them, finds their features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.inputs import Inputs, dtype_of, each_input, length, parts, shape_of, some, written_shape
from personafl.pretrained.backbone import Backbone
from personafl.storage.cache import entries, forget, scattered

Rows = NDArray[Any]
Places = NDArray[np.intp]
Piece = tuple[Places, Rows]
"""Places of samples, and their features."""
_Known = tuple[Places, Places, Rows]  # places of samples, the rows of their features, and the array of these

_PROBES = 8  # samples that are computed again to see whether what is kept is still what the backbone gives
_COPIED = 4096  # rows that are copied at a time


@dataclass(frozen=True)
class Pass:
    """All samples through a backbone, each distinct one once.

    Samples are computed in the order of their hashes, so that the same samples have the same features to the last bit,
    however they are split: rounding goes by the batch that a sample is in. `check` sees all that is computed.
    """

    x: Inputs
    backbone: Backbone
    batch_size: int = 64
    device: str = "cpu"
    progress: bool = False
    check: Callable[[Places, Rows], None] = lambda places, rows: None

    def kept(self) -> Path | None:
        """The .npy file in the cache with the features of all samples; None where the cache cannot be written."""
        marks = sample_hashes(self.x)
        settings = {
            "version": 2,
            "shape": written_shape(shape_of(self.x)),
            "dtype": dtype_of(self.x),
            "backbone": self.backbone.key,
        }
        known = self._known(marks, entries("features", settings))
        return scattered("features", settings, marks, lambda: self._pieces(marks, known))

    def computed(self) -> Rows:
        """The features of all samples in memory, and nothing on the disk."""
        made: Rows | None = None
        for places, rows in self._pieces(sample_hashes(self.x), []):
            made = np.empty((length(self.x), *rows.shape[1:]), rows.dtype) if made is None else made
            made[places] = rows
        assert made is not None  # a federation has samples
        return made

    def _known(self, marks: Rows, found: list[tuple[Path, dict[str, Rows]]]) -> list[_Known]:
        """Which rows of which entries are features of these samples; those of the same samples in this order first."""
        lacking, known = np.ones(len(marks), bool), []
        for folder, arrays in sorted(found, key=lambda entry: not np.array_equal(entry[1]["marks"], marks)):
            places, rows = _common(marks, arrays["marks"])
            places, rows = places[lacking[places]], rows[lacking[places]]
            if not len(places):
                continue
            if self._unchanged(places, rows, arrays["x"]):
                known.append((places, rows, arrays["x"]))
                lacking[places] = False
            else:
                forget(folder)
        return known

    def _unchanged(self, places: Places, rows: Places, kept: Rows) -> bool:
        """The code of a module has no hash: a forward that was changed is found out by a few samples."""
        probes = np.unique(np.linspace(0, len(places) - 1, _PROBES).astype(np.intp))
        again = np.concatenate([features for _, features in self._through(places[probes])])
        there = kept[rows[probes]]
        return there.shape == again.shape and np.allclose(there, again, rtol=1e-3, atol=1e-4 * np.abs(again).max())

    def _pieces(self, marks: Rows, known: list[_Known]) -> Iterator[Piece]:
        """Features that are known, then those that are not."""
        lacking = np.ones(len(marks), bool)
        for places, rows, kept in known:
            lacking[places] = False
            for start in range(0, len(places), _COPIED):
                yield places[start : start + _COPIED], kept[rows[start : start + _COPIED]]
        _, first, which = np.unique(marks[lacking], return_index=True, return_inverse=True)
        left, order, done = np.flatnonzero(lacking), np.argsort(which, kind="stable"), 0
        ends = np.cumsum(np.bincount(which, minlength=len(first)))  # of the samples that are alike
        for batch, features in self._through(left[first], self.progress):
            end = int(ends[batch.stop - 1])
            same, done = order[done:end], end
            self.check(left[same], features[which[same] - batch.start])
            yield left[same], features[which[same] - batch.start]

    def _through(self, samples: Places, progress: bool = False) -> Iterator[tuple[range, Rows]]:
        """The features of some samples, batch after batch."""
        home = next((value.device for value in self.backbone.parameters()), torch.device("cpu"))
        starts = range(0, len(samples), self.batch_size)
        try:
            self.backbone.to(self.device)
            for start in _shown(starts, self.backbone.name) if progress else starts:
                which = samples[start : start + self.batch_size]
                batch = each_input(lambda value: value.to(self.device), some(self.x, torch.from_numpy(which)))
                yield range(start, start + len(which)), self.backbone.features(batch).cpu().numpy()
        finally:
            self.backbone.to(home)


def _common(wanted: Rows, marks: Rows) -> tuple[Places, Places]:
    """Places of the wanted samples that are among others, and their places there."""
    order = np.argsort(marks, kind="stable")
    at = order[np.searchsorted(marks, wanted, sorter=order).clip(max=len(order) - 1)]
    places = np.flatnonzero(marks[at] == wanted)
    return places, at[places]


def sample_hashes(x: Inputs) -> Rows:
    """16 bytes for each sample, by the values of all its inputs.

    >>> marks = sample_hashes(torch.tensor([[1.0], [2.0], [1.0]]))
    >>> marks.shape, bool(marks[0] == marks[2]), bool(marks[0] == marks[1])
    ((3,), True, False)
    """
    arrays = [value.numpy() for _, value in sorted(parts(x).items())]
    made = [
        blake2b(b"".join(np.ascontiguousarray(array[i]).tobytes() for array in arrays), digest_size=16).digest()
        for i in range(length(x))
    ]
    return np.array(made, "S16")


def _shown(starts: range, name: str) -> Iterator[int]:
    """With a progress bar on a terminal; silent where the output is piped."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(starts, f"features of {name}", console=console, disable=not console.is_interactive)
