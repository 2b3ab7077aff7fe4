"""Who is better off with a personalized model, and by how much.

The PersFL thesis (Divi: Unifying distillation with personalization in federated learning, Purdue University 2021,
chapter 5) compares each client's personalized model P with the better of its global model G and its local model L,

    QoI_i = P_i − max(G_i, L_i)                                                                  (5.2)

the quantum of improvement. U⁺ are the clients with QoI > 0, U⁻ those with QoI < 0; who has 0 is in neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, known, numbers


@dataclass(frozen=True)
class Improvement:
    """What `improvement_of` found, on the clients with test data.

    Attributes
    ----------
    clients, left_out
        How many clients have a QoI, and how many do not.
    pui, pud
        Percentage of clients improved (5.3) and decreased (5.4), between 0 and 100.
    mpi, api
        Median and mean (5.5) of QoI over the improved clients, in the unit of QoI; NaN if there are none.
    mpd, apd
        Median and mean (5.6) of QoI over the decreased clients: below 0; NaN if there are none.
    """

    clients: int
    left_out: int
    pui: float
    pud: float
    mpi: float
    api: float
    mpd: float
    apd: float


def quantum_of_improvement(personal: ArrayLike, *baselines: ArrayLike) -> Floats:
    """QoI_i = P_i − max(G_i, L_i): how much better the personalized model is than the best alternative.

    Parameters
    ----------
    personal : array (M,)
        Each client's accuracy with its personalized model; NaN without test data.
    *baselines : arrays (M,)
        The accuracies to compare with: those of the global and of the local models, or any others.

    Examples
    --------
    >>> quantum_of_improvement([75.0, 96.0, 80.0], [78.0, 71.0, 80.0], [73.0, 55.0, np.nan])
    array([-3., 25., nan])
    """
    if not baselines:
        raise DataError("the quantum of improvement needs something to compare with: give the global and local models")
    named = {f"baseline {k}": values for k, values in enumerate(baselines, 1)}
    mine, *others = aligned(personal=personal, **named)
    best: Floats = np.maximum.reduce(others)
    return mine - best


def improvement_of(qoi: ArrayLike) -> Improvement:
    """The percentages of clients improved and decreased, and by how much they are.

    Examples
    --------
    >>> found = improvement_of([4.0, 2.0, 0.0, -1.0, np.nan])
    >>> found.pui, found.pud, found.api, found.apd, found.left_out
    (50.0, 25.0, 3.0, -1.0, 1)
    """
    everybody = numbers(qoi, "qoi")
    values = known(everybody)
    up, down = values[values > 0], values[values < 0]
    clients = len(values)
    return Improvement(
        clients,
        len(everybody) - clients,
        100.0 * len(up) / clients if clients else np.nan,
        100.0 * len(down) / clients if clients else np.nan,
        *_median_and_mean(up),
        *_median_and_mean(down),
    )


def _median_and_mean(values: Floats) -> tuple[float, float]:
    return (float(np.median(values)), float(values.mean())) if len(values) else (np.nan, np.nan)
