"""Precision, recall and F1, averaged over classes: pooled, and for each client.

For a class c with TP right predictions, P predictions and A labels,

    precision_c = TP/P,    recall_c = TP/A,    F1_c = 2TP/(P + A)

and the macro average is the plain mean over the classes that occur among the labels or the predictions. A class that is
never predicted has precision 0, one that is predicted but absent from the labels has recall 0. A class that occurs in
neither is left out: a client is not punished for classes it does not have. This is scikit-learn's `average="macro"`,
`zero_division=0`. Macro F1 is the mean of the F1_c, not the F1 of the means.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, Integers, aligned, blocks_of_clients, client_sizes


class MacroScores(NamedTuple):
    """Of all samples together."""

    precision: float
    recall: float
    f1: float


class ClientMacroScores(NamedTuple):
    """Of each client, (M,); NaN for a client without samples."""

    precision: Floats
    recall: Floats
    f1: Floats


def macro_scores(labels: ArrayLike, predictions: ArrayLike) -> MacroScores:
    """Macro precision, recall and F1 over all samples; NaN where there is none.

    Examples
    --------
    >>> macro_scores(labels=[0, 0, 1, 1], predictions=[0, 0, 1, 2])
    MacroScores(precision=0.6666666666666666, recall=0.5, f1=0.5555555555555555)
    """
    pooled = client_macro_scores(labels, predictions, [np.size(labels)])
    return MacroScores(*(float(score[0]) for score in pooled))


def client_macro_scores(labels: ArrayLike, predictions: ArrayLike, sizes: ArrayLike) -> ClientMacroScores:
    """Macro precision, recall and F1 of each client, over the classes that the client has or predicts.

    Parameters
    ----------
    labels, predictions : array (N,)
        Classes, as whole numbers: the samples of all clients end to end.
    sizes : array (M,)
        How many of them each client has.

    Examples
    --------
    >>> client_macro_scores([0, 1, 5], [0, 1, 6], sizes=[2, 0, 1]).f1
    array([ 1., nan,  0.])
    """
    y, guess, classes = _codes(labels, predictions)
    n = client_sizes(sizes, len(y))
    scores = np.full((3, len(n)), np.nan)
    for clients, samples, row in blocks_of_clients(n, classes):
        rows = clients.stop - clients.start
        cells = row * classes

        def table(cell: Integers, rows: int = rows) -> Integers:
            return np.bincount(cell, minlength=rows * classes).reshape(rows, classes)

        right = y[samples] == guess[samples]
        hits = table((cells + y[samples])[right])
        actual, predicted = table(cells + y[samples]), table(cells + guess[samples])
        present = ((actual + predicted) > 0).sum(1)
        for k, (top, bottom) in enumerate(((hits, predicted), (hits, actual), (2 * hits, actual + predicted))):
            total = (top / np.maximum(bottom, 1)).sum(1)
            np.divide(total, present, out=scores[k, clients], where=present > 0)
    return ClientMacroScores(*scores)


def _codes(labels: ArrayLike, predictions: ArrayLike) -> tuple[Integers, Integers, int]:
    """Labels and predictions as 0 … C−1, C the number of classes that occur."""
    y, guess = aligned(labels=labels, predictions=predictions)
    both = np.concatenate([y, guess])
    if not np.all(both == np.floor(both)):
        raise DataError("labels and predictions must be classes, as whole numbers")
    names, codes = np.unique(both, return_inverse=True)
    return codes[: len(y)], codes[len(y) :], len(names)
