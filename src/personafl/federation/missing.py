"""Missing values: numbers filled in by the training samples' median, categories by the mode, and features that say so.

What is filled in follows from the training samples of all clients alone, as the standardization does, and stays with
the federation as constants, so that the data of a newcomer is filled in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import Array, Stored
from personafl.federation.checks import listing, many
from personafl.federation.scaling import constant_name, is_training
from personafl.inputs import part_name, parts, whole

Fed = TypeVar("Fed", bound=Stored)
Missing = Literal["error", "fill"]
"""fill: by the median or mode of the training samples, and with a feature 0 or 1 for each column that has gaps."""

VALUE, INDICATOR = "missing_value", "missing_indicator"
"""The constants: what is filled in for each feature, and the features that have an indicator after them all."""


@dataclass(frozen=True)
class Feature:
    """A column of a table: its name, and how many features of x it is; several of them are a category."""

    name: str
    width: int = 1


def check_missing(missing: str) -> None:
    """Refuse what is neither error nor fill."""
    if missing not in get_args(Missing):
        raise ConfigError(f"missing = {missing!r}: must be error, or fill (by the training data's median or mode)")


def filled(fed: Fed, features: Mapping[str, Sequence[Feature]] | None = None) -> Fed:
    """A federation whose x has NaN for what is missing, filled in; `features` are the columns that inputs are made of.

    Of several inputs, those that are floats and are named in `features`, or all of them.
    """
    inputs = {name: value for name, value in parts(fed.x).items() if value.is_floating_point()}
    constants, gaps = dict(fed.constants), []
    for name, value in inputs.items():
        if value.ndim != 2 and bool(torch.isnan(value).any() if isinstance(fed.x, dict) else True):
            what, shape = part_name(name), tuple(value.shape)
            raise DataError(f"missing = 'fill' is for features (N, d), and {what} has shape {shape}; use error")
        if value.ndim == 2:
            found, lacking = _learned(fed, value, (features or {}).get(name) or ())
            constants |= {constant_name(what, name): constant for what, constant in found.items()}
            gaps += lacking
    if constants.keys() == fed.constants.keys():
        return fed
    note = f"filled in what is missing in {many(len(gaps), 'feature')} (training samples): {listing(gaps, 10)}"
    changed: Any = fed
    noted: Fed = replace(changed, notes=(*fed.notes, *([note] if gaps else [])), scanned=True)
    return filled_as(noted, constants)


def _learned(
    fed: Stored, value: torch.Tensor, features: Sequence[Feature]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The constants of one input, and which features have gaps."""
    columns = features or [Feature(str(j)) for j in range(value.shape[1])]
    training = value.numpy()[is_training(fed)]
    values, indicators, gaps = np.zeros(value.shape[1], np.float32), [], []
    first = 0
    for column in columns:
        block = training[:, first : first + column.width]
        known = block[~np.isnan(block[:, 0])]
        if not len(known):
            raise DataError(f"feature {column.name!r} has no value in any training sample; leave it out")
        values[first : first + column.width] = _usual(known)
        if len(known) < len(block):
            indicators.append(first)
            gaps.append(f"{column.name} ({len(block) - len(known)})")
        first += column.width
    return {VALUE: torch.from_numpy(values), INDICATOR: torch.tensor(indicators, dtype=torch.int64)}, gaps


def filled_as(fed: Fed, constants: Mapping[str, torch.Tensor]) -> Fed:
    """What is missing filled in by the constants of another federation. Without these, as it is."""
    made = dict(parts(fed.x))
    for name, value in made.items():
        known = [constants.get(constant_name(what, name)) for what in (VALUE, INDICATOR)]
        if known[0] is not None and known[1] is not None:
            made[name] = _without_gaps(value, known[0].numpy(), known[1].numpy(), part_name(name) if name else "")
    if all(made[name] is value for name, value in parts(fed.x).items()):
        return fed
    changed: Any = fed
    complete: Fed = replace(changed, x=whole(made), constants=dict(constants), scanned=False)
    return complete


def _without_gaps(value: torch.Tensor, values: Array, indicators: Array, what: str) -> torch.Tensor:
    if tuple(value.shape[1:]) != values.shape:
        raise DataError(
            f"samples {f'of {what} ' if what else ''}have shape {tuple(value.shape[1:])}, expected {values.shape}: the "
            "features as they were before gaps were filled in, with NaN where a value is missing"
        )
    x = value.numpy().astype(np.float32)
    gaps = np.isnan(x)
    return torch.from_numpy(np.concatenate([np.where(gaps, values, x), gaps[:, indicators].astype(np.float32)], axis=1))


def _usual(known: Array) -> Array:
    """The median of a column of numbers; of a category, the value that most have, and of equals the first."""
    if known.shape[1] == 1:
        return np.asarray(np.median(known, axis=0))
    return np.asarray(np.eye(known.shape[1])[known.sum(axis=0).argmax()])
