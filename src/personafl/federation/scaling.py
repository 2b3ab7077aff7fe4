"""Features standardized by what the clients' training samples say together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.federation.arrays import Array, Stored

Fed = TypeVar("Fed", bound=Stored)

_ROWS_AT_ONCE = 4_096


def standardized(fed: Fed) -> Fed:
    """(x − mean)/std with the mean and standard deviation of each feature over all clients' training samples."""
    if "embedding" in fed.constants:
        raise ConfigError("normalize = 'standard': x are the rows of a table, not measurements; use none")
    if "mean" in fed.constants or "std" in fed.constants:
        raise ConfigError("normalize = 'standard': the features are standardized already; use none")
    count = max(1, int(fed.sizes("train").sum()))
    mean = sum((piece.sum(axis=0) for piece in _training(fed)), np.zeros(fed.x.shape[1:])) / count
    variance = sum((((piece - mean) ** 2).sum(axis=0) for piece in _training(fed)), np.zeros(fed.x.shape[1:])) / count
    # A feature that never changes becomes 0; what rounding leaves of its variance must not be blown up.
    constant = variance <= (1e-6 * mean) ** 2
    std = np.where(constant, 1.0, np.sqrt(variance))
    constants = {"mean": torch.from_numpy(mean).float(), "std": torch.from_numpy(std).float()}
    return standardized_as(fed, fed.constants | constants)


def standardized_as(fed: Fed, constants: Mapping[str, torch.Tensor]) -> Fed:
    """(x − mean)/std by the constants of another federation: for clients that join later. Without these, as it is."""
    if not {"mean", "std"} <= constants.keys():
        return fed
    mean, std = constants["mean"].numpy(), constants["std"].numpy()
    x = np.empty(fed.x.shape, np.float32)
    for start in range(0, len(x), _ROWS_AT_ONCE):
        x[start : start + _ROWS_AT_ONCE] = (fed.x[start : start + _ROWS_AT_ONCE].numpy() - mean) / std
    whole: Any = fed
    made: Fed = replace(whole, x=torch.from_numpy(x), constants=dict(constants))
    return made


def _training(fed: Stored) -> Iterator[Array]:
    """The training samples of all clients, some at a time, in double precision."""
    wanted = is_training(fed)
    for start in range(0, len(wanted), _ROWS_AT_ONCE):
        rows = fed.x[start : start + _ROWS_AT_ONCE].numpy()
        yield rows[wanted[start : start + _ROWS_AT_ONCE]].astype(np.float64)


def is_training(fed: Stored) -> NDArray[np.bool_]:
    """Which samples are for training, (N,)."""
    wanted = np.zeros(len(fed.y), bool)
    for start, end in zip(fed.starts("train"), fed.starts("val"), strict=True):
        wanted[start:end] = True
    return wanted
