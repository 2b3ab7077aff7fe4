"""Samples of unequal length for a model that was trained on padded ones: a newcomer's, or a site's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from personafl.errors import DataError
from personafl.federation.arrays import pair
from personafl.federation.ragged import IGNORED, MASK, OWN_MASKS, Part, Ragged, lengths_of, padded_to, real
from personafl.inputs import Shape, part_name


def as_wanted(brought: Any, expected: Shape) -> Any:
    """(x, y), or such of each split, padded to the length that the model was trained with, and with its mask.

    Data for one tensor, or without masks, stays as it is.
    """
    if not isinstance(expected, dict):
        return brought
    if isinstance(brought, Mapping):
        return {split: as_wanted(each, expected) for split, each in brought.items()}
    if not isinstance(brought, tuple | list) or len(brought) != 2:
        return brought  # the check of what clients bring says what is wrong
    given = dict(brought[0]) if isinstance(brought[0], Mapping) else {"x": brought[0]}
    x, y = pair(given, brought[1], "the newcomer")
    assert isinstance(x, dict)
    masks = {name: mask for name in x if (mask := _mask_of(name, expected)) is not None}
    made: dict[str, Any] = dict(x)
    for name, mask in masks.items():
        width, lengths = expected[name][0], lengths_of(x[name])
        made[name] = _padded(x[name], width, part_name(name))
        if mask not in x:
            made[mask] = real(lengths, width).astype(np.uint8)
        elif mask not in masks:
            made[mask] = _padded(x[mask], width, part_name(mask))
    labels = next((_labels(y, x[name], expected[name][0]) for name in masks), y)
    return {name: made[name] for name in expected if name in made} | made, labels


def _mask_of(name: str, expected: dict[str, tuple[int, ...]]) -> str | None:
    """The input that says what of another is real, where the model has one."""
    for mask in (f"{name}_{MASK}", *OWN_MASKS):
        if mask in expected and name in expected and name != mask and expected[mask] == expected[name][:1]:
            return mask
    return None


def _padded(part: Part, width: int, what: str) -> Any:
    if len(part.shape) < 2 or part.shape[1] > width:
        raise DataError(
            f"{what} has a sample of length {part.shape[1]}, and the model was trained with {width} at most; cut it"
            if len(part.shape) > 1
            else f"{what} is one number a sample; expected sequences of at most {width}"
        )
    return padded_to(part, width)


def _labels(y: Part, x: Part, width: int) -> Any:
    """Labels of each place along the length are padded as the input is."""
    along = len(y.shape) > 1 and np.array_equal(lengths_of(y), lengths_of(x))
    return padded_to(y, width, IGNORED) if along or isinstance(y, Ragged) else y
