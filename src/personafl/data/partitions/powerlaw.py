"""FedProx's MNIST clients: two digits each, sizes with a heavy tail (Li et al. 2020)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.data.partitions.base import (
    Assignment,
    Indices,
    check_count,
    check_sigma,
    check_supply,
    consecutive,
    dealt,
    shuffled_by_class,
)


@dataclass(frozen=True)
class PowerLaw:
    """Neighbouring classes, a few samples of each, then lognormal(0, sigma) shares of what is left (Li et al. 2020).

    Client u has the classes u, u+1, … modulo the number of classes. The shares of a class add up to one over its
    clients and are rounded down, as the authors do, so about half a sample a client and class is left out; a note
    says how many. The defaults are the paper's for MNIST: 1,000 clients with 69 samples on average.

    Parameters
    ----------
    clients : int
        Number of clients.
    classes_per_client : int
        How many classes each client has.
    least : int
        Samples of each of its classes that every client has before the rest is shared.
    sigma : float
        Standard deviation of the logarithm of the shares; 0 makes them equal.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 100)
    >>> parts = PowerLaw(clients=20)(labels, np.random.default_rng(0)).parts
    >>> np.unique(labels[parts[9]]).tolist(), min(len(part) for part in parts)
    ([0, 9], 11)
    """

    name: ClassVar[str] = "powerlaw"
    clients: int = 1000
    classes_per_client: int = 2
    least: int = 5
    sigma: float = 2.0

    def __post_init__(self) -> None:
        check_count(self, "clients", "somebody has to train")
        check_count(self, "classes_per_client", "a client needs samples of some class")
        check_count(self, "least", "a client has samples of each of its classes")
        check_sigma(self, self.sigma)

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        chosen = consecutive(self, self.clients, self.classes_per_client, classes, len(labels))
        users = np.bincount(chosen.ravel(), minlength=len(classes))
        check_supply(self, classes, by_class, self.least * users, "use fewer clients or a smaller least")
        left = np.array([len(samples) for samples in by_class]) - self.least * users
        counts: Indices = np.zeros((self.clients, len(classes)), np.int64)
        logs = self.sigma * rng.standard_normal(chosen.shape)
        for c in range(len(classes)):
            mine = chosen == c
            if users[c]:
                counts[mine.any(axis=1), c] = self.least + np.floor(left[c] * _shares(logs[mine])).astype(np.int64)
        parts = dealt(by_class, counts)
        unused = len(labels) - int(counts.sum())
        notes = [f"{unused} of {len(labels)} samples left out: shares are rounded down"] if unused else []
        return Assignment(parts, notes=notes)


def _shares(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares that add up to one, of their logarithms; without overflow whatever sigma is."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
