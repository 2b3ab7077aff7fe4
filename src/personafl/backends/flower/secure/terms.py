"""What a site adds to a sum: one vector of all that it would send, and what the server reads from the total."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from personafl.algorithms import Uplink
from personafl.backends.flower.job import Layout
from personafl.backends.flower.secure.fixed_point import FixedPoint, Floats, Words
from personafl.errors import DataError
from personafl.states import State

SUM, MASKED = "sum", "masked"
"""Where a message has the masked vector: the record, and the array in it."""


def weighted(up: State, shared: State, uplink: Uplink, weight: float) -> State:
    """What a client adds, so that means follow from sums: its difference from what was sent to all, times its weight.

    Parameters
    ----------
    shared
        What was sent to everybody. Differences from it are smaller than answers, and rounded less.
    weight
        Of this client, where the mean is by samples.
    """
    out = {}
    for name, value in up.items():
        base = shared.get(uplink[name].relative_to or "")
        difference = value.double() if base is None else value.double() - base.double()
        out[name] = difference * weight if uplink[name].weights == "samples" else difference
    return out


def means(sums: State, shared: State, uplink: Uplink, weights: Floats, layout: Layout) -> State:
    """The declared means, from the sums of `weighted` over clients with these weights."""
    out = {}
    for name, total in sums.items():
        base = shared.get(uplink[name].relative_to or "")
        mean = total / (weights.sum() if uplink[name].weights == "samples" else len(weights))
        out[name] = (mean if base is None else mean + base.double()).to(getattr(torch, layout[name][0]))
    return out


def encoded(terms: State, weight: float, code: FixedPoint) -> Words:
    """Terms side by side, and the weight last, by which the server sees that masks and shares fit together."""
    parts = [value.double().flatten().numpy() for value in terms.values()]
    return code.encode(np.concatenate([*parts, [weight * code.range]]))


def decoded(total: Words, layout: Layout, weights: Floats, code: FixedPoint) -> State:
    """The sums of terms that clients with these weights have encoded.

    Raises
    ------
    DataError
        The weights are not those that add up to the last number: a mask is left, or somebody took another weight.
    """
    expected = code.encode(weights * code.range).sum(dtype=code.kind)
    if total[-1] != expected:
        raise DataError("the answers do not add up: a site has sent wrong shares or another weight")
    values, out, at = torch.from_numpy(code.decode(total[:-1])), {}, 0
    for name, (_, shape) in layout.items():
        size = int(np.prod(shape))
        out[name], at = values[at : at + size].reshape(shape), at + size
    return out


def words(layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """How many numbers `encoded` gives for terms of this layout."""
    return sum(int(np.prod(shape)) for _, shape in layout.values()) + 1
