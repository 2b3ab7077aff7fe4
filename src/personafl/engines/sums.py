"""Sums over each client's samples, from outputs of many clients' samples in one long batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from personafl.kernels.losses import Objective
from personafl.states import Ints

Sums = dict[str, NDArray[np.float64]]


class ClientSums:
    """Adds up what functions give for samples, for each of `count` clients; for losses that are means over samples."""

    def __init__(self, functions: Mapping[str, Objective], count: int) -> None:
        self._functions, self._count = functions, count
        self._sums: Sums = {}
        self._counted = np.zeros(count)

    def add(self, outputs: Tensor, y: Tensor, owner: Ints) -> None:
        """More samples, and whose each is."""
        for name, function in self._functions.items():
            values, counts = _counted(function(outputs, y))
            if name == "loss":
                values = values * counts
                self._counted += np.bincount(owner, counts, self._count)
            part = _by_owner(values, owner, self._count)
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def result(self, sizes: Ints) -> Sums:
        """The sums; that of the loss is the mean over what counts (samples, tokens) times the client's samples."""
        out = {name: self._sums.get(name, np.zeros(self._count)) for name in self._functions}
        known = self._counted > 0
        out["loss"] = out["loss"] * np.divide(sizes, self._counted, out=np.zeros(self._count), where=known)
        return out


def _by_owner(values: NDArray[np.float64], owner: Ints, count: int) -> NDArray[np.float64]:
    if values.ndim == 1:
        return np.bincount(owner, values, count).astype(np.float64)
    out = np.zeros((count, *values.shape[1:]))
    np.add.at(out, owner, values)
    return out


def _counted(found: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What an objective gives: values, and how much each sample counts."""
    values, counts = found if isinstance(found, tuple) else (found, None)
    exact = values.double().cpu().numpy()
    return exact, np.ones(len(exact)) if counts is None else counts.double().cpu().numpy()
