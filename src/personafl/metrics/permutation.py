"""Whether a difference between two methods is more than chance, for any quantity: swap their results client by client.

If two methods are equally good for every client, it does not matter which of a client's two results is called the
first. So the quantity of interest is computed for all ways to swap (or many drawn ones), and p is the share of them
in which the difference is at least as large as the one that was seen. Nothing is assumed about distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, Integers, numbers

LARGEST_EXACT = 14
"""Up to so many clients that differ all 2ⁿ ways are counted; above, `DRAWS` of them are drawn."""
DRAWS = 19_999
"""p is then (1 + those at least as large) / (1 + draws), which keeps the level; it is never below 0.00005."""
MOST_UNITS = 1000
"""More clients are swapped in groups, formed without looking at who was better: valid as well, and fast enough."""
_AT_ONCE = 1000


def sign_flip(difference: ArrayLike) -> float:
    """One-sided p that the sum of paired differences is above 0: each keeps or changes its sign, by chance.

    Parameters
    ----------
    difference : array (M,)
        First method minus second, an entry for each client: in correct answers, where accuracy over all samples is
        what counts. NaN where one of the two is missing.

    Examples
    --------
    >>> sign_flip([1.0, 2.0, 3.0, 0.5, 1.0, np.nan])  # all five above 0: one of 2⁵ ways
    0.03125
    """
    values = numbers(difference, "difference")
    values = values[~np.isnan(values)]
    if np.isinf(values).any():
        raise DataError("difference must be finite: infinite results cannot be added up")
    if not len(values):
        return np.nan
    scaled = values[values != 0] / np.abs(values).max(initial=np.finfo(float).tiny)
    unit = _units(np.abs(scaled))
    grouped = np.bincount(unit, scaled, minlength=int(unit.max(initial=-1)) + 1)
    return swap_test(len(grouped), lambda swapped: grouped.sum() - 2 * (swapped @ grouped))


def swap_test(clients: int, statistic: Callable[[Floats], Floats]) -> float:
    """One-sided p of a statistic of two methods, over the ways to swap their results client by client.

    Parameters
    ----------
    clients
        How many clients (or groups of clients) can be swapped.
    statistic : function
        Takes an array (K, clients) with 1 where a client is swapped and 0 where not, and gives for each row how much
        better the first method then is; NaN counts as not better.

    Examples
    --------
    >>> first, second = np.array([5.0, 7, 6]), np.array([4.0, 5, 5])
    >>> swap_test(3, lambda swapped: ((1 - 2 * swapped) * (first - second)).sum(1))
    0.125
    """
    observed = statistic(np.zeros((1, clients)))[0]
    if np.isnan(observed):
        return np.nan
    threshold = observed - 1e-9 * max(1.0, abs(observed))  # sums in another order differ in the last digits
    reached = drawn = 0
    for swapped in _swaps(clients):
        reached += int((statistic(swapped) >= threshold).sum())
        drawn += len(swapped)
    return reached / drawn if clients <= LARGEST_EXACT else (1 + reached) / (1 + drawn)


def _swaps(count: int) -> Iterator[Floats]:
    """All 2ⁿ rows of 0 and 1, or drawn ones, always the same, some at a time."""
    if count <= LARGEST_EXACT:
        yield (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(np.float64)
        return
    draw = np.random.default_rng(0)
    for first in range(0, DRAWS, _AT_ONCE):
        rows = min(_AT_ONCE, DRAWS - first)
        bits = np.unpackbits(np.frombuffer(draw.bytes(rows * -(-count // 8)), np.uint8).reshape(rows, -1), axis=1)
        yield bits[:, :count].astype(np.float64)


def _units(size: Floats) -> Integers:
    """The group of each client: one each, or dealt out by |difference|, which says nothing of signs."""
    rank = np.empty(len(size), np.int64)
    rank[np.argsort(-size, kind="stable")] = np.arange(len(size))
    return rank % MOST_UNITS
