"""How well scores tell members from others: an attack on training data, measured.

An attacker gives every sample a score, the higher the likelier a member. Functions here take the scores of members and
of others as arrays. Intervals are 95 % and take samples as independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from personafl.metrics.inputs import Floats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


def auc(members: Floats, others: Floats) -> Estimate:
    """The chance that a member scores above another (ties count half); interval by DeLong et al. (1988).

    Where no pair is the wrong way round the interval has no width by that formula; then its end is the one that as many
    pairs as there are samples of the smaller kind would leave (rule of three).

    Examples
    --------
    >>> auc(np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.0])).value
    0.9166666666666666
    """
    from scipy.special import ndtri

    m, n = len(members), len(others)
    above = _share_below(members, others)  # of each member: the share of others that it scores above
    below = 1 - _share_below(others, members)
    value = float(above.mean())
    spread = [float(part.var(ddof=1)) / len(part) if len(part) > 1 else 0.25 for part in (above, below)]
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(sum(spread))
    if value in (0.0, 1.0):
        half = 3 / min(m, n)
    return Estimate(value, max(0.0, value - half), min(1.0, value + half))


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> Estimate:
    """A share with its exact interval (Clopper and Pearson, 1934).

    Examples
    --------
    >>> found = clopper_pearson(3, 10)
    >>> round(found.low, 4), round(found.high, 4)
    (0.0667, 0.6525)
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return Estimate(hits / trials, low, high)


def rate_at(members: Floats, others: Floats, false_alarms: float) -> Estimate | None:
    """The true positive rate at a false positive rate: members found, with at most this share of others accused.

    None where there are too few others to see so small a share: fewer than 1/false_alarms. The threshold is taken as
    given, so the interval is about the members alone.

    Examples
    --------
    >>> rate_at(np.array([1.0, 5.0, 6.0, 7.0]), np.arange(10.0) / 2, 0.1).value
    0.75
    """
    if len(others) * false_alarms < 1 - 1e-9:
        return None
    allowed = int(len(others) * false_alarms + 1e-9)
    threshold = np.sort(others)[::-1][allowed] if allowed < len(others) else -np.inf
    return clopper_pearson(int((members > threshold).sum()), len(members))


def told_right(members: Floats, others: Floats, seed: int = 0) -> float:
    """The attacker's accuracy at telling equally many members and others apart.

    The threshold is chosen on one half of the samples and used on the other half, both ways round: an attacker who
    knows nothing has one half, and not the luck of the best threshold.

    Examples
    --------
    >>> told_right(np.arange(100.0) + 1000, np.arange(100.0))
    1.0
    """
    one, other = _halves(members, seed), _halves(others, seed + 1)
    found = []
    for a, b in ((0, 1), (1, 0)):
        threshold = _best_threshold(one[a], other[a])
        found.append(((one[b] > threshold).mean() + (other[b] <= threshold).mean()) / 2)
    return float(np.mean(found))


def proven_epsilon(members: Floats, others: Floats, delta: float = 0.0, seed: int = 0) -> float:
    """A lower bound of ε: the attack has smaller error rates than any smaller ε, with this δ, allows.

    An (ε, δ)-private training has TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ for every attack (Kairouz, Oh, Viswanath,
    2015). The threshold is chosen on one half of the samples; on the other half both rates are taken at the worse end
    of their intervals (Clopper–Pearson, 97.5 % each). 0 where nothing is proven.

    Examples
    --------
    >>> round(proven_epsilon(np.arange(2000.0) + 5000, np.arange(2000.0)), 1)  # log((1 − a)/a), a = 1 − 0.0125^(1/1000)
    5.4
    """
    (chosen, left), (chosen_others, left_others) = _halves(members, seed), _halves(others, seed + 1)
    if not min(map(len, (chosen, left, chosen_others, left_others))):
        return 0.0
    best = 0.0
    found: list[tuple[float, float]] = []
    for sign in (1.0, -1.0):  # members who stand out, and others who do
        inside, outside = (chosen, chosen_others) if sign > 0 else (-chosen_others, -chosen)
        found.append((sign, _best_ratio(inside, outside, delta)))
    for sign, threshold in found:
        inside, outside = (left, left_others) if sign > 0 else (-left_others, -left)
        confidence = 1 - (1 - CONFIDENCE) / 2  # two directions are tried
        hit = clopper_pearson(int((inside > threshold).sum()), len(inside), confidence).low
        alarm = clopper_pearson(int((outside > threshold).sum()), len(outside), confidence).high
        best = max(best, math.log((hit - delta) / alarm) if hit > delta else 0.0)
    return best


def _share_below(values: Floats, among: Floats) -> Floats:
    """Of each value: the share of `among` below it, ties half."""
    ordered = np.sort(among)
    places = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray(sum(places) / (2 * len(among)))


def _halves(values: Floats, seed: int) -> tuple[Floats, Floats]:
    order = np.random.default_rng(seed).permutation(len(values))
    middle = len(values) // 2
    return values[order[:middle]], values[order[middle:]]


def _rates(members: Floats, others: Floats) -> tuple[Floats, Floats, Floats]:
    """Thresholds half-way between neighbouring values, and the shares of members and others above each."""
    cuts = np.unique(np.concatenate([members, others]))
    hit = 1 - np.searchsorted(np.sort(members), cuts, side="right") / len(members)
    alarm = 1 - np.searchsorted(np.sort(others), cuts, side="right") / len(others)
    return (cuts + np.append(cuts[1:], cuts[-1])) / 2, hit, alarm


def _best_threshold(members: Floats, others: Floats) -> float:
    cuts, hit, alarm = _rates(members, others)
    return float(cuts[np.argmax(hit - alarm)])


def _best_ratio(members: Floats, others: Floats, delta: float) -> float:
    """The threshold that proves the largest ε, with one error added of either kind."""
    cuts, hit, alarm = _rates(members, others)
    ratio = (hit - 1 / len(members) - delta) / (alarm + 1 / len(others))
    return float(cuts[np.argmax(ratio)])
