"""How much clipped and noisy answers tell about a client: (ε, δ)-differential privacy, by Google's dp-accounting.

Whose privacy: a client's, as a whole. Two federations are neighbours if one client has another data set. A clipped
answer then changes by at most 2C, so noise of standard deviation zC is a Gaussian mechanism of noise multiplier z/2.

Against whom, with noise at the clients: whoever sees every single answer of the client, as the server does, knows when
it took part, and knows everything of everybody else. So taking part in few rounds helps only by answering less often,
and there is no "amplification by sampling" (`epsilon`, `composed_epsilon`). With noise at the server: whoever sees what
the server sends on, and not the answers themselves (`cohort_epsilon`). With noise in every local step: a training
sample's privacy, against whoever sees every step (`sample_epsilon`).

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

ORDERS = (*range(2, 17), 18, 20, 22, 24, 28, 32, 40, 48, 64, 96, 128, 256)
"""Of Rényi divergences: whole numbers, for which they are closed forms. Any set gives a valid bound."""


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
    return told_epsilon(told, delta)


def told_epsilon(told: float, delta: float) -> float:
    """The ε of answers whose (sensitivity / standard deviation of the noise)² add up to this.

    Examples
    --------
    >>> told_epsilon(0.0, 1e-5), round(told_epsilon(10 * (2 / 4.0) ** 2, 1e-5), 3)
    (0.0, 7.511)
    """
    return 0.0 if told == 0 else math.inf if math.isinf(told) else _epsilon(1 / math.sqrt(told), delta)


@cache
def cohort_epsilon(noise: float, delta: float, clients: int, cohort: int, rounds: int) -> float:
    """The ε of every client where a noisy equally weighted mean of a cohort is all that is seen, in so many rounds.

    Cohorts are drawn in secret, uniformly, of a fixed size, without replacement: Rényi bound of Wang, Balle,
    Kasiviswanathan (Subsampled Rényi differential privacy and analytical moments accountant, 2019) for one client with
    another data set. That bound may be the larger one for large cohorts: then that without sampling counts.

    Parameters
    ----------
    noise
        z: the mean of K clipped answers has noise of standard deviation z C / K.

    Examples
    --------
    >>> (
    ...     round(cohort_epsilon(noise=4.0, delta=1e-5, clients=100, cohort=10, rounds=10), 2),
    ...     round(epsilon(4, 1e-5, 10), 2),
    ... )
    (1.54, 7.51)
    """
    everybody = epsilon(noise, delta, rounds)
    if cohort >= clients or rounds == 0 or noise == 0:
        return everybody
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    one = SampledWithoutReplacementDpEvent(clients, cohort, GaussianDpEvent(noise / SENSITIVITY))
    return min(float(accountant.compose(one, rounds).get_epsilon(delta)), everybody)


@cache
def sample_epsilon(noise: float, delta: float, rate: float, batches: int) -> float:
    """The ε of a training sample after so many batches that it is in with probability `rate`, each time anew.

    One sample more or less: the sum of clipped gradients changes by at most C, against noise of standard deviation
    z C. Of batches that are everything (rate 1) it is exact; of others the Rényi bound of Mironov, Talwar, Zhang
    (Rényi differential privacy of the sampled Gaussian mechanism, 2019).

    Examples
    --------
    >>> round(sample_epsilon(noise=1.0, delta=1e-5, rate=0.1, batches=100), 2)
    7.97
    """
    if batches == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if rate >= 1:
        return _epsilon(noise / math.sqrt(batches), delta)
    require_accountant()
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    one = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    sampled = float(RdpAccountant(ORDERS).compose(one, batches).get_epsilon(delta))
    return min(sampled, _epsilon(noise / math.sqrt(batches), delta))


def _epsilon(multiplier: float, delta: float) -> float:
    """The ε of one Gaussian mechanism."""
    require_accountant()
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(multiplier, delta))
