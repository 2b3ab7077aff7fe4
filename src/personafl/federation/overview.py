"""What a federation looks like before anybody trains: sizes, classes, and how unlike the clients are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.arrays import SPLITS
from personafl.federation.checks import owners


def heterogeneity(federation: Federation) -> float:
    """How unlike the clients' labels are: 0 if all have the same mixture, towards 1 if each has few of many classes.

    The mean total-variation distance between a client's label distribution p_m and that of all samples together p,
    weighted by the clients' sizes n_m:

        Σ_m (n_m / N) · ½ Σ_c |p_m(c) − p(c)|

    It is the share of all samples that would have to change their label for every client to have the common mixture.
    One class for each client gives 1 − Σ_c p(c)², the largest value there is, which for C equal classes is 1 − 1/C.
    Small clients differ by chance, too: see `overview` for the value that dealing at random would have.

    Examples
    --------
    >>> x = [[0.0], [0.0]]
    >>> heterogeneity(Federation.from_clients({"ann": (x, [0, 0]), "bob": (x, [1, 1])}))
    0.5
    >>> heterogeneity(Federation.from_clients({"ann": (x, [0, 1]), "bob": (x, [1, 0])}))
    0.0
    """
    return _mean_distance(label_counts(federation))


def label_counts(federation: Federation) -> NDArray[np.int64]:
    """How many samples of each class each client has, (M, classes)."""
    if federation.classes is None:
        raise DataError(f"federation {federation.name!r} is a regression: it has no classes to count")
    return _counts(federation, federation.y.numpy())


def overview(federation: Federation) -> dict[str, Any]:
    """Numbers that describe a federation, ready for JSON; None where there are no classes or groups.

    `heterogeneity_by_chance` is what `heterogeneity` would be had the same labels been dealt at random to clients of
    the same sizes.

    >>> made = overview(Federation.from_clients({"ann": ([[0.0]] * 10, [0] * 10), "bob": ([[1.0]] * 10, [1] * 10)}))
    >>> made["sizes"], made["shares"]
    ({'min': 10, 'median': 10.0, 'mean': 10.0, 'max': 10}, {'train': 0.7, 'val': 0.1, 'test': 0.2})
    """
    sizes = federation.bounds[:, 3] - federation.bounds[:, 0]
    made: dict[str, Any] = {
        "name": federation.name,
        "clients": len(federation),
        "samples": len(federation.y),
        "sizes": _spread(sizes),
        "shares": {split: round(float(federation.sizes(split).sum() / len(federation.y)), 4) for split in SPLITS},
        "without_test_samples": int((federation.sizes("test") == 0).sum()),
        "classes": federation.classes,
        "classes_per_client": None,
        "heterogeneity": None,
        "heterogeneity_by_chance": None,
        "groups": None if federation.groups is None else dict(Counter(federation.groups)),
        "notes": list(federation.notes),
    }
    if federation.classes is not None:
        counts = label_counts(federation)
        at_random = np.random.default_rng(0).permutation(federation.y.numpy())
        made["classes_per_client"] = _spread((counts > 0).sum(axis=1))
        made["heterogeneity"] = round(_mean_distance(counts), 4)
        made["heterogeneity_by_chance"] = round(_mean_distance(_counts(federation, at_random)), 4)
    return made


def _counts(federation: Federation, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each client has each class; of words and pixels, each counts; of several labels, those that are 1."""
    clients, classes, owner = len(federation), federation.outputs, owners(federation)
    if labels.ndim > 1:
        owner = np.repeat(owner, labels[0].size)
        counted = labels.ravel() > 0 if federation.multi_label else labels.ravel() >= 0
        columns = np.tile(np.arange(labels[0].size), len(labels)) if federation.multi_label else labels.ravel()
        owner, labels = owner[counted], columns[counted]
    flat = np.bincount(owner * classes + labels, minlength=clients * classes)
    return flat.reshape(clients, classes)


def _mean_distance(counts: NDArray[np.int64]) -> float:
    if not counts.any():  # several labels a sample, and nobody has any
        return 0.0
    pool = counts.sum(axis=0) / counts.sum()
    # n_m |p_m − p| = |counts − n_m p|: no division by the sizes.
    return float(np.abs(counts - counts.sum(axis=1, keepdims=True) * pool).sum() / (2 * counts.sum()))


def _spread(values: NDArray[np.int64]) -> dict[str, float]:
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": round(float(values.mean()), 2),
        "max": int(values.max()),
    }
