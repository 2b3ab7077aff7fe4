"""Whether a model is right as often as it says: expected calibration error, pooled and for each client.

The samples of N predictions with confidence c_i, right (h_i = 1) or wrong (0), are put into bins by confidence, and

    ECE = Σ_b (n_b / N) |accuracy_b − mean confidence_b| = (1/N) Σ_b |Σ_{i in b} (h_i − c_i)|

(Guo, Pleiss, Sun, Weinberger: On calibration of modern neural networks. ICML 2017.) With `binning="width"` bin b of B
is ((b−1)/B, b/B], a confidence of exactly b/B belongs to the lower bin, and 0 to the first. With `"mass"` the bins have
as many samples each as can be, in the order of confidence; equal confidences stay together, in the bin of the first.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, Integers, aligned, blocks_of_clients, client_sizes

Binning = Literal["width", "mass"]


def expected_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 15, binning: Binning = "width"
) -> float:
    """ECE over all samples; NaN where there is none.

    Parameters
    ----------
    confidence : array (N,)
        The probability that the model gives to its own prediction.
    correct : array (N,)
        1 or True where the prediction is right.
    bins
        How many.
    binning : {"width", "mass"}
        Bins of the same width, or with the same number of samples.

    Examples
    --------
    >>> round(expected_calibration_error([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bins=10), 6)
    0.1
    """
    return float(client_calibration_errors(confidence, correct, [np.size(confidence)], bins, binning)[0])


def client_calibration_errors(
    confidence: ArrayLike, correct: ArrayLike, sizes: ArrayLike, bins: int = 15, binning: Binning = "width"
) -> Floats:
    """ECE of each client; NaN for a client without samples.

    With few samples to a bin the ECE is too high even for a calibrated model: chance alone makes accuracy and
    confidence differ. Compare clients only of like size, or take the pooled ECE.

    Parameters
    ----------
    confidence, correct, bins, binning
        As for `expected_calibration_error`: the samples of all clients end to end.
    sizes : array (M,)
        How many of them each client has.

    Examples
    --------
    >>> client_calibration_errors([0.5, 1.0, 0.75], [0, 1, 1], sizes=[2, 0, 1])
    array([0.25,  nan, 0.25])
    """
    c, hit = aligned(confidence=confidence, correct=correct)
    if not np.all((c >= 0) & (c <= 1)):
        raise DataError("confidence must be between 0 and 1 for each sample")
    if not np.isin(hit, (0.0, 1.0)).all():
        raise DataError("correct must be 0 or 1 for each sample")
    if bins < 1:
        raise DataError(f"bins = {bins} must be at least 1")
    if binning not in get_args(Binning):
        raise DataError(f"there is no binning {binning!r}, only width and mass")
    n = client_sizes(sizes, len(c))
    edges = np.arange(1, bins) / bins
    out = np.full(len(n), np.nan)
    for clients, samples, row in blocks_of_clients(n, bins):
        of_block = c[samples]
        if binning == "width":
            which = np.searchsorted(edges, of_block, side="left")
        else:
            which = _equal_mass(of_block, row, n[clients], bins)
        rows = clients.stop - clients.start
        gaps = np.bincount(row * bins + which, hit[samples] - of_block, rows * bins).reshape(rows, bins)
        np.divide(np.abs(gaps).sum(1), n[clients], out=out[clients], where=n[clients] > 0)
    return out


def _equal_mass(confidence: Floats, row: Integers, sizes: Integers, bins: int) -> Integers:
    """Each sample's bin: the sample of rank r among its client's n goes to ⌊rB/n⌋, and its equals with the first."""
    order = np.lexsort((confidence, row))
    c, client = confidence[order], row[order]
    rank = np.arange(len(c)) - (np.cumsum(sizes) - sizes)[client]
    first = np.ones(len(c), bool)
    first[1:] = (c[1:] != c[:-1]) | (client[1:] != client[:-1])
    start = np.maximum.accumulate(np.where(first, np.arange(len(c)), 0))
    which = np.empty(len(c), np.int64)
    which[order] = rank[start] * bins // sizes[client]
    return which
