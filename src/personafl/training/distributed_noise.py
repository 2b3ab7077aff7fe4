"""Noise in shares: each client adds a part of the noise that protects the sum of their answers.

Where the server gets nothing but the sum of clipped answers, times weights of at most 1, one client's data changes it
by at most 2C, as it would change that client's own answer. So noise of standard deviation zC on the sum gives the ε
that the same noise on every single answer gives (`accounting`). A client adds

    N(0, (zC)²/h I)

to its term of the sum, h being the number of honest clients that are counted on: those of the least that must stay
(`threshold`) who do not tell the server their noise (`colluders`). With more, the sum has more noise than promised.
The noise of the mean of n answers is then zC √(n/h)/n, where it is zC √n/n when each protects itself alone: smaller by
√h.

ε holds as long as the sum has terms of h honest clients in it, and the server sees sums only. Against a server that
gets at single answers each has its own share alone, z/√h.

Terms are rounded to multiples of s, after the noise is added. A sum of rounded Gaussian numbers is, up to terms of the
order exp(−2π²σ²/s²), the Gaussian sum with independent uniform numbers added and looked at on the grid: that changes ε
by the order (s/σ)², which is 10⁻¹² at 32 bits and a noise multiplier of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from personafl.training.privacy import Floats, Noise, SecureNoise


@dataclass(frozen=True)
class NoiseShare:
    """A client's share of the noise of a sum.

    Parameters
    ----------
    sharers
        How many honest clients are counted on.
    weight
        Which the client's answer is multiplied with before it is added: the noise is not to be.
    source
        Where noise comes from.

    Examples
    --------
    >>> import numpy as np
    >>> share = 0.25 * NoiseShare(sharers=4, weight=0.25).normal("ann", 1, 100_000)
    >>> round(float(np.std(4**0.5 * share)), 1)
    1.0
    """

    sharers: int
    weight: float = 1.0
    source: Noise = SecureNoise()

    def normal(self, client: str, round: int, size: int) -> Floats:
        """Standard normal numbers, over √h and the client's weight."""
        return self.source.normal(client, round, size) / (math.sqrt(self.sharers) * self.weight)
