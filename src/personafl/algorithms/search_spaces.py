"""What a search may try for a hyper-parameter, declared beside its default: `lam: float = searched(1.0, 0.1, 10.0)`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

KEY = "search"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, drawn evenly over their logarithms.

    >>> Range(0.01, 1.0).at(0.5)
    0.1
    """

    low: float
    high: float

    def at(self, share: float) -> float:
        """The number that lies this far from `low` to `high`, with two significant digits, to be readable."""
        value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return float(f"{min(max(value, self.low), self.high):.2g}")

    def draw(self, rng: np.random.Generator) -> float:
        """Any of them."""
        return self.at(float(rng.random()))

    def near(self, value: Any, rng: np.random.Generator) -> float:
        """One within a factor of about two of a value."""
        share = math.log(max(float(value), self.low) / self.low) / math.log(self.high / self.low)
        return self.at(share + math.log(2) / math.log(self.high / self.low) * float(rng.normal()))


@dataclass(frozen=True)
class OneOf:
    """One of these values, in their order.

    >>> OneOf((1, 2, 4)).near(2, np.random.default_rng(0)) in (1, 2, 4)
    True
    """

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Any of them."""
        return self.values[int(rng.integers(len(self.values)))]

    def near(self, value: Any, rng: np.random.Generator) -> Any:
        """The value itself or one beside it."""
        if value not in self.values:
            return self.draw(rng)
        at = self.values.index(value) + int(rng.integers(-1, 2))
        return self.values[min(max(at, 0), len(self.values) - 1)]


Space = Range | OneOf


def searched(default: float, low: float, high: float) -> Any:
    """A field of an algorithm with the range that a search may try.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Mine:
    ...     lam: float = searched(1.0, 0.01, 10.0)
    >>> Mine().lam, spaces(Mine)
    (1.0, {'lam': Range(low=0.01, high=10.0)})
    """
    return field(default=default, metadata={KEY: Range(low, high)})


def searched_among(default: Any, values: Sequence[Any]) -> Any:
    """A field of an algorithm with the values that a search may try."""
    return field(default=default, metadata={KEY: OneOf(tuple(values))})


def spaces(algorithm: type) -> dict[str, Space]:
    """What may be searched of an algorithm, by the names of its fields."""
    return {f.name: f.metadata[KEY] for f in fields(algorithm) if KEY in f.metadata}
