"""How much clipped and noisy answers tell about a client: (ε, δ)-differential privacy, by Google's dp-accounting.

Whose privacy: a client's, as a whole. Two federations are neighbours if one client has another data set. A clipped
answer then changes by at most 2C, so noise of standard deviation zC is a Gaussian mechanism of noise multiplier z/2.

Against whom: whoever sees every single answer of the client, as the server does, knows when it took part, and knows
everything of everybody else. So taking part in few rounds helps only by answering less often, and there is no
"amplification by sampling".

k answers with multiplier s, each of which may depend on what became of those before, tell as much as one with s/√k
(Dong, Roth, Su: Gaussian differential privacy, 2022), whose ε is known exactly (Balle, Wang: Improving the Gaussian
mechanism for differential privacy, ICML 2018).
"""

from __future__ import annotations

import math
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
    require_accountant()
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / SENSITIVITY / math.sqrt(releases), delta))
