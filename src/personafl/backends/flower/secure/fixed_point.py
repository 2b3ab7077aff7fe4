"""Numbers as whole numbers modulo 2^bits, which masks hide and which add up exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError

Words = NDArray[Any]
"""Unsigned numbers of 32 or 64 bits."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most `range`, of which `count` can be added without running over.

    Examples
    --------
    >>> code = FixedPoint(range=16.0, bits=32, count=3)
    >>> total = code.encode(np.array([0.5, -15.0])) + code.encode(np.array([0.25, 16.0]))
    >>> code.decode(total).round(7).tolist(), f"{code.step:.1e}"
    ([0.75, 1.0], '3.0e-08')
    """

    range: float
    bits: int
    count: int

    @property
    def levels(self) -> int:
        """What `range` is as a whole number."""
        return int((2 ** (self.bits - 1) - 1) // (self.count + 1))

    @property
    def step(self) -> float:
        """The distance of neighbours: an answer is at most half of it off, a sum of k answers at most k halves."""
        return self.range / self.levels

    @property
    def kind(self) -> Any:
        """The type of a word."""
        return np.uint32 if self.bits == 32 else np.uint64

    def encode(self, values: Floats) -> Words:
        """Rounded to the nearest; a ConfigError where one is too large."""
        if not bool((np.abs(values) <= self.range).all()):
            raise ConfigError(f"its answer has numbers beyond ± {self.range:g}, which secure.range must cover")
        return np.rint(values * (self.levels / self.range)).astype(np.int64).astype(self.kind)

    def decode(self, total: Words) -> Floats:
        """The sum of what was encoded."""
        signed = total.astype(self.kind).view(np.int32 if self.bits == 32 else np.int64)
        return np.asarray(signed.astype(np.float64) * self.step)
