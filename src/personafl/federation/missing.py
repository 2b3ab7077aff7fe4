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
Missing = Literal["error", "fill", "fill-all"]
"""fill: by the median or mode of the training samples, and with a feature 0 or 1 for each column that has gaps.

fill-all: with such a feature for every column, whether it has gaps or not, so that the shape does not depend on the
data. Sites of a federation, who see nobody else's data, fill in like this.
"""

VALUE, INDICATOR = "missing_value", "missing_indicator"
"""The constants: what is filled in for each feature, and the features that have an indicator after them all."""


@dataclass(frozen=True)
class Feature:
    """A column of a table: its name, and how many features of x it is; several of them are a category."""

    name: str
    width: int = 1


def check_missing(missing: str) -> None:
    """Refuse what is not one of `Missing`."""
    if missing not in get_args(Missing):
        raise ConfigError(
            f"missing = {missing!r}: must be error, fill (by the training data's median or mode) or fill-all"
        )


def filled(fed: Fed, features: Mapping[str, Sequence[Feature]] | None = None, missing: Missing = "fill") -> Fed:
    """A federation whose x has NaN for what is missing, filled in.

    Parameters
    ----------
    features
        The columns that inputs are made of. Of several inputs, those that are floats and are named here are filled in,
        and others that lack a value.
    missing
        With `fill-all`, all inputs that are floats (N, d) are filled in, and every feature has an indicator.
    """
    constants: dict[str, torch.Tensor] = {}
    gaps: list[str] = []
    for name, value in _with_gaps(fed, features or {}, missing == "fill-all").items():
        if value.ndim != 2:
            what, shape = part_name(name), tuple(value.shape)
            raise DataError(f"missing = 'fill' is for features (N, d), and {what} has shape {shape}; use error")
        found, lacking = _learned(fed, value, (features or {}).get(name) or (), missing == "fill-all")
        constants |= {constant_name(what, name): constant for what, constant in found.items()}
        gaps += lacking
    if not constants:
        return fed
    note = f"filled in what is missing in {many(len(gaps), 'feature')} (training samples): {listing(gaps, 10)}"
    changed: Any = fed
    made: Fed = replace(
        changed,
        x=whole({name: _filled_part(value, constants, name) for name, value in parts(fed.x).items()}),
        notes=(*fed.notes, *([note] if gaps else [])),
        constants=fed.constants | constants,
        scanned=False,
    )
    return made


def _with_gaps(fed: Stored, features: Mapping[str, Sequence[Feature]], every: bool) -> dict[str, torch.Tensor]:
    """The floats; of several inputs those that are columns of a table, and others that lack a value."""
    floats = {name: value for name, value in parts(fed.x).items() if value.is_floating_point()}
    if not isinstance(fed.x, dict):
        return floats
    if every:
        return {n: value for n, value in floats.items() if value.ndim == 2 or bool(torch.isnan(value).any())}
    return {name: value for name, value in floats.items() if name in features or bool(torch.isnan(value).any())}


def _filled_part(value: torch.Tensor, constants: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if constant_name(VALUE, name) not in constants:
        return value
    return torch.from_numpy(filled_array(value.numpy(), constants, part_name(name), name))


def _learned(
    fed: Stored, value: torch.Tensor, features: Sequence[Feature], every: bool
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
        if every or len(known) < len(block):
            indicators.append(first)
        if len(known) < len(block):
            gaps.append(f"{column.name} ({len(block) - len(known)})")
        first += column.width
    return {VALUE: torch.from_numpy(values), INDICATOR: torch.tensor(indicators, dtype=torch.int64)}, gaps


def filled_array(x: Any, constants: Mapping[str, torch.Tensor], whose: str = "x", name: str = "") -> Array:
    """Features (n, d) with NaN for what is missing, filled in as a federation was that has these constants.

    >>> constants = {VALUE: torch.tensor([1.0, 7.0]), INDICATOR: torch.tensor([1])}
    >>> filled_array([[2.0, np.nan]], constants)
    array([[2., 7., 1.]], dtype=float32)
    """
    values, indicators = (constants[constant_name(what, name)].numpy() for what in (VALUE, INDICATOR))
    x = np.asarray(x)
    if x.shape[1:] != values.shape or x.dtype.kind not in "biuf":
        raise DataError(
            f"{whose} has shape {x.shape} and holds {x.dtype} values; expected (n, {len(values)}) numbers: the "
            "features before gaps were filled in, with NaN where a value is missing"
        )
    gaps = np.isnan(x.astype(np.float32))
    return np.concatenate([np.where(gaps, values, x), gaps[:, indicators]], axis=1, dtype=np.float32)


def filled_clients(data: Mapping[str, Any], constants: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What newcomers bring, {id: (x, y)} or {id: {split: (x, y)}}, filled in. Without constants for that, as it is."""
    if not any(name.startswith(VALUE) for name in constants):
        return dict(data)

    def pair(brought: Any, whose: str) -> Any:
        given = brought[0] if isinstance(brought[0], dict) else {"": brought[0]}
        lacking = [name for name in given if constant_name(VALUE, name) in constants]
        filled_in = {name: filled_array(given[name], constants, f"{part_name(name)}{whose}", name) for name in lacking}
        return (whole({**given, **filled_in}), *brought[1:])

    return {
        client: {split: pair(part, f" of client {client!r} ({split})") for split, part in brought.items()}
        if isinstance(brought, Mapping)
        else pair(brought, f" of client {client!r}")
        for client, brought in data.items()
    }


def _usual(known: Array) -> Array:
    """The median of a column of numbers; of a category, the value that most have, and of equals the first."""
    if known.shape[1] == 1:
        return np.asarray(np.median(known, axis=0))
    return np.asarray(np.eye(known.shape[1])[known.sum(axis=0).argmax()])
