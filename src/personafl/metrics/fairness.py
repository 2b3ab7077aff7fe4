"""How evenly the improvement is spread over the clients.

The PersFL thesis (chapter 5) takes K values F_i, one a client, and asks how far they are from being all the same:

    AV      = (1/K) Σ (F_i − F̄)²                               smaller is fairer                       (5.8)
    CS      = (1/K) Σ F_i / √((1/K) Σ F_i²)                     1 if all the same, 1/√K if one has all  (5.10)
    Entropy = −Σ p_i ln p_i,  p_i = F_i / Σ F                   ln K … 0                                (5.12)
    JI      = (Σ F_i)² / (K Σ F_i²) = CS²                       1 … 1/K (Jain's index)                  (5.13)

The last three do not change when all values are multiplied by the same factor, and have no meaning for negative values.
A QoI that has some is divided into the improved clients and the worsened with their |QoI|, as the thesis does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, known, numbers


class Evenness(NamedTuple):
    """The four fairness metrics of a set of clients: NaN where the set is empty, all are 0, or one is negative."""

    clients: int
    av: float
    cs: float
    entropy: float
    ji: float


@dataclass(frozen=True)
class Fairness:
    """What `fairness_of` found.

    Attributes
    ----------
    left_out
        How many clients have no QoI, for want of test data.
    everybody : Evenness
        Of all the others, those with QoI = 0 among them. Where somebody is worse off, only `av` is a number.
    improved, worsened : Evenness
        Of the QoI above 0, and of |QoI| of those below.
    """

    left_out: int
    everybody: Evenness
    improved: Evenness
    worsened: Evenness


def fairness_of(qoi: ArrayLike) -> Fairness:
    """All fairness metrics of the improvements: of everybody, of the improved, of the worsened.

    Examples
    --------
    >>> found = fairness_of([4.0, 4.0, 0.0, -2.0])
    >>> found.everybody.av, found.everybody.ji, found.improved.ji, found.worsened.clients
    (6.75, nan, 1.0, 1)
    """
    everybody = numbers(qoi, "qoi")
    values = known(everybody)
    return Fairness(
        len(everybody) - len(values), _evenness(values), _evenness(values[values > 0]), _evenness(-values[values < 0])
    )


def average_variance(values: ArrayLike) -> float:
    """AV, the population variance over clients (1/K, not 1/(K − 1)); NaN for no clients.

    Examples
    --------
    >>> average_variance([1.0, 3.0, np.nan])
    1.0
    """
    measured = known(numbers(values, "values"))
    return float(measured.var()) if len(measured) else np.nan


def cosine_similarity(values: ArrayLike) -> float:
    """CS, the cosine of the angle between the values and (1, …, 1): their mean over their root mean square.

    Examples
    --------
    >>> round(cosine_similarity([1.0, 7.0]), 4)
    0.8
    """
    F = _shares(values)
    return float(F.mean() / np.sqrt((F * F).mean())) if len(F) else np.nan


def entropy(values: ArrayLike) -> float:
    """The entropy of the clients' shares in the total, in nats; a client with 0 adds nothing.

    Examples
    --------
    >>> round(entropy([5.0, 5.0]), 4), entropy([5.0, 0.0])
    (0.6931, 0.0)
    """
    F = _shares(values)
    p = F / F.sum()
    p = p[p > 0]  # after the division: a tiny share may become 0
    return float(abs((p * np.log(p)).sum())) if len(F) else np.nan


def jain_index(values: ArrayLike) -> float:
    """JI, Jain's index: the share of clients that would have something, if all who have had the same.

    Examples
    --------
    >>> jain_index([3.0, 3.0, 0.0, 0.0])
    0.5
    """
    F = _shares(values)
    return float(F.sum() ** 2 / (len(F) * (F * F).sum())) if len(F) else np.nan


def _evenness(values: Floats) -> Evenness:
    if (values < 0).any():
        return Evenness(len(values), average_variance(values), np.nan, np.nan, np.nan)
    return Evenness(
        len(values), average_variance(values), cosine_similarity(values), entropy(values), jain_index(values)
    )


def _shares(values: ArrayLike) -> Floats:
    """The values in units of the largest, so that no square overflows or vanishes; empty where all are 0."""
    measured = known(numbers(values, "values"))
    if not np.isfinite(measured).all():
        raise DataError("values must be finite: shares of something infinite have no meaning")
    if (measured < 0).any():
        raise DataError("values must be 0 or more for this metric; fairness_of divides improved and worsened clients")
    return measured / measured.max() if measured.any() else measured[:0]
