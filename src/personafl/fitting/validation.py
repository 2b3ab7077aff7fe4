"""Validation data: a share of the training samples where nobody brought any; and training on it when all is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from personafl.errors import DataError
from personafl.federation import Federation
from personafl.inputs import each_input
from personafl.streams import generator

SHARE = 0.25


def with_validation(federation: Federation, seed: int, share: float = SHARE) -> Federation:
    """The federation with validation data: as it is where somebody has some, else with a share of the training data.

    Which samples these are follows from the seed. A client with a single training sample keeps it.

    Examples
    --------
    >>> clients = {"ann": {"train": ([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1]), "test": ([[5.0]], [1])}}
    >>> made = with_validation(Federation.from_clients(clients), seed=0)
    >>> made.sizes("train").tolist(), made.sizes("val").tolist(), made.sizes("test").tolist()
    ([3], [1], [1])
    """
    if federation.sizes("val").any():
        return federation
    if not (federation.sizes("train") > 1).any():
        raise DataError("nobody has validation data nor two training samples, of which one could be: fit cannot choose")
    sizes, starts, rng = federation.sizes("train"), federation.starts("train"), generator(seed, "fit validation")
    order, bounds = np.arange(len(federation.y)), federation.bounds.copy()
    for m, (start, n) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        order[start : start + n] = start + rng.permutation(n)
        bounds[m, 1] -= min(round(share * n) or 1, n - 1) if n > 1 else 0
    at = torch.from_numpy(order)
    note = f"nobody has validation data, and fit chooses on it: it takes {share:.0%} of each client's training samples"
    return replace(
        federation, x=each_input(lambda part: part[at], federation.x), y=federation.y[at], bounds=bounds,
        notes=(*federation.notes, note), scanned=True,
    )  # fmt: skip


def with_all_training(federation: Federation) -> Federation:
    """The federation with every client's validation samples among its training samples.

    Examples
    --------
    >>> one = {"train": ([[0.0]], [0]), "val": ([[1.0], [2.0]], [1, 0]), "test": ([[3.0]], [1])}
    >>> made = with_all_training(Federation.from_clients({"ann": one}))
    >>> made.sizes("train").tolist(), made.sizes("val").tolist(), made.sizes("test").tolist()
    ([3], [0], [1])
    """
    bounds = federation.bounds.copy()
    bounds[:, 1] = bounds[:, 2]
    return replace(federation, bounds=bounds, scanned=True)
