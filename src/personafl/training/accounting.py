"""How much clipped and noisy answers tell about a client: (ε, δ)-differential privacy, by Google's dp-accounting.

Whose privacy: a client's, as a whole. Two federations are neighbours if one client has another data set. A clipped
answer then changes by at most 2C, so noise of standard deviation zC is a Gaussian mechanism of noise multiplier z/2.

Against whom: whoever sees every single answer of the client, as the server does, knows when it took part, and knows
everything of everybody else. So taking part in few rounds helps only by answering less often, and there is no
"amplification by sampling".

k answers with multiplier s, each of which may depend on what became of those before, tell as much as one with s/√k
(Dong, Roth, Su: Gaussian differential privacy, 2022), whose ε is known exactly (Balle, Wang: Improving the Gaussian
mechanism for differential privacy, ICML 2018). Answers with different multipliers s_i tell as much as one with
(Σ s_i⁻²)^(−1/2). That also holds where somebody chooses s_i, and whether to go on, after seeing the answers so far
(Smith, Thakurta: Fully adaptive composition for Gaussian differential privacy, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

from personafl.errors import ConfigError

SENSITIVITY = 2.0
"""By how much a clipped answer may change with the client's data, in units of C."""


def require_accountant() -> None:
    """Raise a ConfigError where the library that computes ε is not installed."""
    if find_spec("dp_accounting") is None:
        raise ConfigError("privacy.noise needs the library that computes ε: pip install 'personafl[privacy]'")


@cache
def epsilon(noise: float, delta: float, releases: int) -> float:
    """The ε of a client after so many answers; infinite without noise.

    Parameters
    ----------
    noise
        The noise multiplier z: noise of standard deviation z C on answers of norm at most C.
    releases
        How many answers the client sent.

    Examples
    --------
    >>> round(epsilon(noise=4.0, delta=1e-5, releases=1), 3), epsilon(noise=0.0, delta=1e-5, releases=1)
    (1.993, inf)
    """
    if releases == 0:
        return 0.0
    if noise == 0:
        return math.inf
    return _epsilon(noise / SENSITIVITY / math.sqrt(releases), delta)


def composed_epsilon(noises: Iterable[float], delta: float) -> float:
    """The ε of a client after answers with these noise multipliers, one for each answer.

    Examples
    --------
    >>> composed_epsilon([], 1e-5), composed_epsilon([8.0, 0.0], 1e-5)
    (0.0, inf)
    >>> round(composed_epsilon([4.0] * 10, 1e-5), 3), round(epsilon(4.0, 1e-5, 10), 3)
    (7.511, 7.511)
    """
    told = math.fsum((SENSITIVITY / noise) ** 2 if noise > 1e-100 else math.inf for noise in noises)
    return 0.0 if told == 0 else math.inf if math.isinf(told) else _epsilon(1 / math.sqrt(told), delta)


def _epsilon(multiplier: float, delta: float) -> float:
    """The ε of one Gaussian mechanism."""
    require_accountant()
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(multiplier, delta))
