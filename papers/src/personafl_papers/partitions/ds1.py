"""PersFL's data split DS-1: equal totals, a few classes each (Divi 2021)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.federation.partition import (
    Assignment,
    Indices,
    check_counts,
    dealt,
    evenly_used,
    left_out,
    shuffled_by_class,
    sizes_of,
)

BALANCING = 200


@dataclass(frozen=True)
class DS1:
    """Equal totals, `classes_per_client` classes each, a different number of samples of each class (PersFL's DS-1).

    The thesis does not say how classes and numbers are drawn. Here the classes are chosen at random such that every
    class is used by equally many users; the numbers start as exponential weights (a uniform draw among all divisions)
    and are balanced until the totals are equal and no class is used up more than once. Everybody has at least one
    sample of each of its classes; a note tells how many samples rounding leaves out.

    Parameters
    ----------
    clients
        Number of users.
    classes_per_client
        The thesis's k: 4 makes the users differ, 10 makes them alike.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 100)
    >>> parts = DS1()(labels, np.random.default_rng(0)).parts
    >>> {len(part) for part in parts}, np.bincount(labels[parts[0]]).tolist()
    ({97}, [0, 7, 0, 20, 55, 15])
    """

    name: ClassVar[str] = "ds1"
    paper: ClassVar[str] = "PersFL's DS-1 (Divi 2021), after FedPer"
    splits: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    clients: int = 10
    classes_per_client: int = 4

    def __post_init__(self) -> None:
        check_counts(self, "clients", "classes_per_client")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        chosen = evenly_used(self, self.clients, self.classes_per_client, classes, by_class, rng)
        has = np.zeros((self.clients, len(classes)), bool)
        np.put_along_axis(has, chosen, True, axis=1)
        beyond_one = sizes_of(by_class) - has.sum(axis=0)
        counts = has + _equal_totals(has * rng.standard_exponential(has.shape), beyond_one)
        notes = left_out(len(labels), int(counts.sum()), "the totals are equal and shares are rounded down")
        return Assignment(dealt(by_class, counts), notes=notes)


def _equal_totals(weights: NDArray[np.float64], supply: Indices) -> Indices:
    """Counts like the weights, with equal row sums as large as the columns' supply allows.

    Rows and columns are scaled in turn, which converges wherever equal totals are possible (Sinkhorn 1967); where
    they are not, or not yet, the smallest row decides.
    """
    total = supply.sum() / len(weights)
    for _ in range(BALANCING):
        weights = weights * (total / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))
        weights = weights * np.minimum(1.0, supply / np.maximum(weights.sum(axis=0), 1e-300))
    counts = np.floor(weights).astype(np.int64)
    totals = counts.sum(axis=1, keepdims=True)
    # Differences of the rounded cumulative sums: each row reduced in proportion, to exactly the smallest total.
    edges = np.cumsum(counts, axis=1) * totals.min() // np.maximum(totals, 1)
    return np.asarray(np.diff(edges, axis=1, prepend=0), np.int64)
