"""How well the clients' models do on their test data: one number from an entry for each client.

A client without test data (n = 0, or NaN) is left out everywhere, and `performance_of` says how many were. Where nobody
is left the answer is NaN. Accuracies may be shares or percentages; what comes out is in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, known, numbers, share_of


@dataclass(frozen=True)
class Performance:
    """What `performance_of` found, on the clients with test data.

    Attributes
    ----------
    clients, left_out
        How many clients have test data, and how many do not.
    weighted_accuracy, mean_accuracy
        Σ correct / Σ n, and the mean of the clients' accuracies.
    standard_deviation, median
        Of the clients' accuracies; the standard deviation with M − 1.
    worst_10, top_10
        See `worst_accuracy` and `top_accuracy`; `top_10` is NaN where the numbers of training samples were not given.
    mean_loss
        See `mean_loss`; NaN where losses were not given.
    """

    clients: int
    left_out: int
    weighted_accuracy: float
    mean_accuracy: float
    standard_deviation: float
    median: float
    worst_10: float
    top_10: float
    mean_loss: float


class BestMean(NamedTuple):
    """The best mean accuracy over the rounds, which evaluation had it (the first, if several), and the last one."""

    best: float
    best_evaluation: int
    last: float


def performance_of(
    correct: ArrayLike, n_test: ArrayLike, n_train: ArrayLike | None = None, loss: ArrayLike | None = None
) -> Performance:
    """Every metric of this file that one evaluation gives.

    Parameters
    ----------
    correct, n_test : array (M,)
        How many test samples each client classified right, and how many it has.
    n_train : array (M,), optional
        Training samples of each client, for `top_10`.
    loss : array (M,), optional
        Each client's mean test loss.

    Examples
    --------
    >>> found = performance_of([9, 1, 0], [10, 2, 0], n_train=[40, 8, 3])
    >>> found.clients, found.left_out, round(found.weighted_accuracy, 4), round(found.mean_accuracy, 4)
    (2, 1, 0.8333, 0.7)
    """
    accuracy = accuracies(correct, n_test)
    clients = len(known(accuracy))
    return Performance(
        clients,
        len(accuracy) - clients,
        weighted_accuracy(correct, n_test),
        mean_accuracy(accuracy),
        standard_deviation(accuracy),
        quantile(accuracy, 0.5),
        worst_accuracy(accuracy),
        np.nan if n_train is None else top_accuracy(correct, n_test, n_train),
        np.nan if loss is None else mean_loss(loss, n_test),
    )


def accuracies(correct: ArrayLike, n_test: ArrayLike) -> Floats:
    """Each client's accuracy correct_i / n_i; NaN where n_i = 0.

    Examples
    --------
    >>> accuracies([3, 0, 0], [4, 2, 0])
    array([0.75, 0.  ,  nan])
    """
    hits, n = _counts(correct, n_test)
    shares: Floats = np.divide(hits, n, out=np.full(len(n), np.nan), where=n > 0)
    return shares


def weighted_accuracy(correct: ArrayLike, n_test: ArrayLike) -> float:
    """The accuracy over all test samples, Σ correct_i / Σ n_i: a client counts as much as it has test data.

    Examples
    --------
    >>> weighted_accuracy([9, 1], [10, 2])
    0.8333333333333334
    """
    hits, n = _counts(correct, n_test)
    unknown = np.isnan(hits)
    total = np.where(unknown, 0.0, n).sum()
    return float(np.where(unknown, 0.0, hits).sum() / total) if total else np.nan


def mean_accuracy(accuracy: ArrayLike) -> float:
    """The mean over clients, (1/M) Σ accuracy_i: every client counts the same.

    Examples
    --------
    >>> mean_accuracy([0.9, 0.5, np.nan])
    0.7
    """
    values = known(numbers(accuracy, "accuracy"))
    return float(values.mean()) if len(values) else np.nan


def best_mean_accuracy(accuracy: ArrayLike) -> BestMean:
    """BMTA: the best over the rounds of the clients' mean test accuracy, max_r (1/M) Σ accuracy_{r,i}, and the last.

    Optimistic: the test data chose the round, and nobody could have stopped there. Published results (FedAMP's) use it,
    so it is needed to compare with them; the last round's mean, beside it, is the honest number.

    Parameters
    ----------
    accuracy : array (R, M) or (R,)
        Each client's test accuracy at each evaluation; or their `mean_accuracy` at each evaluation.

    Examples
    --------
    >>> best_mean_accuracy([[0.5, 0.7], [0.9, 0.7], [0.8, 0.6]])
    BestMean(best=0.8, best_evaluation=1, last=0.7)
    """
    values = numbers(accuracy, "accuracy", axes=(1, 2))
    means = values if values.ndim == 1 else np.array([mean_accuracy(row) for row in values])
    if not len(means):
        raise DataError("accuracy is empty: there must be at least one evaluation")
    if np.isnan(means).all():
        return BestMean(np.nan, -1, np.nan)
    best = int(np.nanargmax(means))
    return BestMean(float(means[best]), best, float(means[-1]))


def top_accuracy(correct: ArrayLike, n_test: ArrayLike, n_train: ArrayLike, share: float = 0.1) -> float:
    """Σ correct / Σ n over the ⌈share · M⌉ clients with most training samples: Self-FL's "top 10%".

    M counts the clients with test data. Clients that tie for the last places share them: each counts with the same
    fraction, so that the answer does not depend on the order of clients. If all have the same number of samples, it is
    the weighted accuracy.

    Examples
    --------
    >>> top_accuracy([9, 5, 1], [10, 10, 10], n_train=[100, 50, 50], share=0.5)
    0.6
    """
    hits, n = _counts(correct, n_test)
    _, size = aligned(n_test=n, n_train=n_train)
    measured = (n > 0) & ~np.isnan(hits)
    if np.isnan(size[measured]).any():
        raise DataError("n_train is not known for every client that has test data; give a number for each")
    hits, n = hits[measured], n[measured]
    weight = top_weights(size[measured], share)
    return float((weight * hits).sum() / (weight * n).sum()) if len(n) else np.nan


def top_weights(n_train: ArrayLike, share: float = 0.1) -> Floats:
    """By how much each client is among the ⌈share · M⌉ with most training samples: 1, 0, or a fraction at a tie.

    Examples
    --------
    >>> top_weights([100, 50, 50], share=0.5)
    array([1. , 0.5, 0.5])
    """
    size = numbers(n_train, "n_train")
    places = share_of(len(size), share)
    if not places:
        return np.zeros(0)
    last_place = np.partition(size, -places)[-places]
    above, tied = size > last_place, size == last_place
    return np.asarray(above + tied * ((places - above.sum()) / tied.sum()), np.float64)


def worst_accuracy(accuracy: ArrayLike, share: float = 0.1) -> float:
    """The mean of the ⌈share · M⌉ lowest accuracies: Self-FL's "worst 10%".

    Examples
    --------
    >>> worst_accuracy([0.9, 0.2, 0.4, 0.8], share=0.5)
    0.30000000000000004
    """
    values = known(numbers(accuracy, "accuracy"))
    places = share_of(len(values), share)
    return float(np.partition(values, places - 1)[:places].mean()) if places else np.nan


def quantile(values: ArrayLike, q: float) -> float:
    """The q-quantile over clients, interpolated linearly between the two nearest.

    Examples
    --------
    >>> quantile([0.2, 0.4, np.nan, 0.8], 0.5)
    0.4
    """
    if not 0 <= q <= 1:
        raise DataError(f"q = {q} must be between 0 and 1")
    measured = known(numbers(values, "values"))
    return float(np.quantile(measured, q)) if len(measured) else np.nan


def standard_deviation(values: ArrayLike, ddof: int = 1) -> float:
    """The standard deviation over clients, √(Σ (x_i − x̄)² / (M − ddof)).

    M − 1 is what the PersFL thesis prints: all the "Std Dev" rows of its tables come out with it, and not with M.
    `ddof=0` gives M, as in `average_variance`. NaN for fewer than 1 + ddof clients.

    Examples
    --------
    >>> standard_deviation([1.0, 3.0]), standard_deviation([1.0, 3.0], ddof=0), standard_deviation([1.0])
    (1.4142135623730951, 1.0, nan)
    """
    measured = known(numbers(values, "values"))
    return float(measured.std(ddof=ddof)) if len(measured) > ddof else np.nan


def mean_loss(loss: ArrayLike, n_test: ArrayLike) -> float:
    """The mean loss over all test samples, Σ n_i loss_i / Σ n_i, from each client's mean loss.

    Examples
    --------
    >>> mean_loss([1.0, 4.0, np.nan], [2, 1, 0])
    2.0
    """
    losses, n = aligned(loss=loss, n_test=n_test)
    measured = (n > 0) & ~np.isnan(losses)
    return float((losses * n)[measured].sum() / n[measured].sum()) if measured.any() else np.nan


def _counts(correct: ArrayLike, n_test: ArrayLike) -> tuple[Floats, Floats]:
    hits, n = aligned(correct=correct, n_test=n_test)
    if not np.all(n >= 0):
        raise DataError("n_test must be 0 or more for each client: these are numbers of samples")
    wrong = (hits < 0) | (hits > n)
    if wrong.any():
        m = int(wrong.argmax())
        raise DataError(f"client {m} has {hits[m]:g} correct of {n[m]:g} test samples; give counts, not shares")
    return hits, n
