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
from personafl.federation.ragged import MASK
from personafl.inputs import Inputs, parts, whole

Fed = TypeVar("Fed", bound=Stored)

_ROWS_AT_ONCE = 4_096


def standardized(fed: Fed) -> Fed:
    """(x − mean)/std with the mean and standard deviation of each feature over all clients' training samples.

    Of several inputs, those that are floats; of samples that were padded, what is real.
    """
    if "embedding" in fed.constants:
        raise ConfigError("normalize = 'standard': x are the rows of a table, not measurements; use none")
    inputs = _measurements(fed)
    if any(constant_name(what, name) in fed.constants for what in ("mean", "std") for name in inputs):
        raise ConfigError("normalize = 'standard': the features are standardized already; use none")
    constants = dict(fed.constants)
    for name, value in inputs.items():
        found = zip(("mean", "std"), _mean_and_std(fed, value, _mask(fed.x, name)), strict=True)
        constants |= {constant_name(what, name): torch.from_numpy(array).float() for what, array in found}
    return standardized_as(fed, constants)


def standardized_as(fed: Fed, constants: Mapping[str, torch.Tensor]) -> Fed:
    """(x − mean)/std by the constants of another federation: for clients that join later. Without these, as it is."""
    made = dict(parts(fed.x))
    for name, value in made.items():
        known = [constants.get(constant_name(what, name)) for what in ("mean", "std")]
        if known[0] is not None and known[1] is not None:
            made[name] = _scaled(value, known[0].numpy(), known[1].numpy(), _mask(fed.x, name))
    if all(made[name] is value for name, value in parts(fed.x).items()):
        return fed
    changed: Any = fed
    scaled: Fed = replace(changed, x=whole(made), constants=dict(constants))
    return scaled


def constant_name(what: str, name: str) -> str:
    """What a constant of an input is called among all constants.

    >>> constant_name("mean", ""), constant_name("mean", "image")
    ('mean', 'mean_image')
    """
    return f"{what}_{name}" if name else what


def _measurements(fed: Stored) -> dict[str, torch.Tensor]:
    """The inputs that are standardized: one tensor whatever it is, and of several those that are floats."""
    if not isinstance(fed.x, dict):
        return {"": fed.x}
    floats = {name: value for name, value in fed.x.items() if value.is_floating_point()}
    if not floats:
        raise ConfigError("normalize = 'standard': none of the inputs is floats, so none is a measurement; use none")
    return floats


def _mask(x: Inputs, name: str) -> torch.Tensor | None:
    """What is real of an input that was padded."""
    if not isinstance(x, dict):
        return None
    found = x.get(f"{name}_{MASK}", x.get(MASK))
    padded = found is not None and name != MASK and x[name].ndim >= 2 and x[name].shape[:2] == found.shape
    return found if padded else None


def _mean_and_std(fed: Stored, value: torch.Tensor, mask: torch.Tensor | None) -> tuple[Array, Array]:
    """Of each feature; of padded samples the places along the length are no features, so all of them are taken."""
    shape = value.shape[1 if mask is None else 2 :]
    count = max(1, sum(len(piece) for piece in _training(fed, value, mask)))
    mean = sum((piece.sum(axis=0) for piece in _training(fed, value, mask)), np.zeros(shape)) / count
    variance = (
        sum((((piece - mean) ** 2).sum(axis=0) for piece in _training(fed, value, mask)), np.zeros(shape)) / count
    )
    # A feature that never changes becomes 0; what rounding leaves of its variance must not be blown up.
    constant = variance <= (1e-6 * mean) ** 2
    return np.asarray(mean), np.where(constant, 1.0, np.sqrt(variance))


def _scaled(value: torch.Tensor, mean: Array, std: Array, mask: torch.Tensor | None) -> torch.Tensor:
    x = np.empty(value.shape, np.float32)
    for start in range(0, len(x), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        x[rows] = (value[rows].numpy() - mean) / std
        if mask is not None:
            x[rows][mask[rows].numpy() == 0] = 0.0
    return torch.from_numpy(x)


def _training(fed: Stored, value: torch.Tensor, mask: torch.Tensor | None) -> Iterator[Array]:
    """The training samples of all clients, some at a time, in double precision; of padded ones what is real."""
    wanted = is_training(fed)
    for start in range(0, len(wanted), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        found = value[rows].numpy()[wanted[rows]].astype(np.float64)
        yield found if mask is None else found[mask[rows].numpy()[wanted[rows]] != 0]


def is_training(fed: Stored) -> NDArray[np.bool_]:
    """Which samples are for training, (N,)."""
    wanted = np.zeros(len(fed.y), bool)
    for start, end in zip(fed.starts("train"), fed.starts("val"), strict=True):
        wanted[start:end] = True
    return wanted
