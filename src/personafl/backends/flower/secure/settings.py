"""The `[secure]` table of an operator's config, and what it cannot be combined with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from personafl.algorithms import Algorithm
from personafl.algorithms.base import Each
from personafl.algorithms.extras import TwoSums
from personafl.backends.flower.secure.fixed_point import FixedPoint
from personafl.errors import ConfigError
from personafl.settings import check
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust

LEAST = 3
"""Sites in a round: of two, each knows the other's answer from the sum."""
WIDE = 2.0**24
"""The range of sums that have squares of lengths among them."""
TAIL = 8.0
"""Standard deviations of noise that the range has room for: beyond are 10⁻¹⁵ of all numbers."""


@dataclass(frozen=True)
class Secure:
    """Secure aggregation: the server gets sums over sites and no site's own answer.

    Parameters
    ----------
    threshold
        How many of a round's sites must stay until its end, and how many answers a sum has at the least. With fewer
        the round is given up. Left out: two thirds of them.
    colluders
        How many sites may work together with the server without learning more than the sum of the others.
    range
        The largest number that an answer may hold, or its difference from what was sent. A site whose answer does not
        fit leaves it out. Where the run has [privacy], its clip says what fits.
    bits
        Of a number on its way: answers are rounded to multiples of about `range` · (number of sites) / 2^(bits−1).

    Examples
    --------
    >>> [Secure().needed(sites) for sites in (3, 4, 5, 9, 100)], Secure(colluders=2).needed(5)
    ([2, 3, 4, 6, 67], 4)
    """

    threshold: int | None = None
    colluders: int = 0
    range: float = 16.0
    bits: Literal[32, 64] = 32

    def __post_init__(self) -> None:
        least = self.threshold is None or self.threshold >= 2
        check("secure.threshold", self.threshold, least, "at least 2, or left out")
        check("secure.colluders", self.colluders, self.colluders >= 0, "at least 0")
        check("secure.range", self.range, 0 < self.range < 1e15, "above 0")

    def needed(self, sites: int) -> int:
        """How many of so many sites must stay."""
        # Below (n + c)/2 a server could get both secrets of a site, each from other sites.
        least = max((sites + self.colluders) // 2 + 1, self.colluders + 2)
        return max(-(-2 * sites // 3), least) if self.threshold is None else self.threshold

    def check_sites(self, sites: int) -> None:
        """Refuse a round of so many sites, where it is too few."""
        if sites < LEAST:
            raise ConfigError(f"[secure] needs at least {LEAST} sites in a round, there are {sites}: leave it out")
        needed, least = self.needed(sites), max((sites + self.colluders) // 2 + 1, self.colluders + 2)
        fits = f"{least} to {sites}: of {sites} sites in a round, {self.colluders} of them colluding with the server"
        check("secure.threshold", needed, least <= needed <= sites, fits)

    def noise_sharers(self, sites: int) -> int:
        """How many sites are counted on for the noise of a sum: those who stay and are honest."""
        return self.needed(sites) - self.colluders

    def fits(self, privacy: Privacy | None, sites: int) -> float:
        """The largest number of an answer."""
        if privacy is None:
            return self.range
        return privacy.clip * (1 + TAIL * privacy.noise / math.sqrt(self.noise_sharers(sites)))

    def table(self) -> dict[str, Any]:
        """As a table of run.toml."""
        named = {"colluders": self.colluders, "range": self.range, "bits": self.bits}
        return named if self.threshold is None else {"threshold": self.threshold, **named}


def check_secure(
    secure: Secure, algorithm: Algorithm, sites: int, privacy: Privacy | None = None, robust: Robust | None = None
) -> None:
    """Raise a ConfigError where sums are not enough, in one line: the one place that says what fits [secure].

    Parameters
    ----------
    sites
        How many are in a round.
    """
    if why := why_not(algorithm):
        raise ConfigError(f"[secure] cannot be combined with {algorithm.name}: {why}; leave [secure] out")
    secure.check_sites(sites)
    if robust is not None:
        raise ConfigError("[secure] cannot be combined with [robust], whose rules need single answers: leave one out")
    if privacy is not None and (privacy.noise_at, privacy.unit) != ("clients", "client"):
        raise ConfigError("[secure] with [privacy]: sites add the noise in shares; leave out noise_at and unit")
    if privacy is not None and len({how.weights for how in algorithm.uplink.values()}) > 1:
        raise ConfigError(f"[secure] with [privacy] needs one kind of weights, and {algorithm.name} has two")


def why_not(algorithm: Algorithm) -> str:
    """Why an algorithm needs more than sums; empty where they do."""
    if isinstance(algorithm, TwoSums):
        return algorithm.why_no_sums
    if not algorithm.uplink:
        return "it sends nothing"
    seen = [how.why for how in algorithm.uplink.values() if isinstance(how, Each)]
    return ", and ".join(dict.fromkeys(seen))


def code_of(secure: Secure, algorithm: Algorithm, privacy: Privacy | None, sites: int) -> FixedPoint:
    """How numbers go into a sum over so many sites."""
    if isinstance(algorithm, TwoSums):  # squares and variances are among them: a wide range, and fine steps
        return FixedPoint(max(secure.range, WIDE), 64, sites)
    return FixedPoint(secure.fits(privacy, sites), secure.bits, sites)
