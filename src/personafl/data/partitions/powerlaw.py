"""FedProx's MNIST clients: two digits each, sizes with a heavy tail (Li et al. 2020)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.federation.partition import (
    Assignment,
    Indices,
    check_counts,
    check_sigma,
    consecutive,
    dealt,
    left_out,
    shuffled_by_class,
    sizes_of,
)


@dataclass(frozen=True)
class PowerLaw:
    """Neighbouring classes, a few samples of each, then lognormal(0, sigma) shares of what is left (Li et al. 2020).

    Client u has the classes u, u+1, … modulo the number of classes. The shares of a class add up to one over its
    clients and are rounded down, as the authors do, so about half a sample a client and class is left out; a note
    says how many. The defaults are the paper's for MNIST: 1,000 clients with 69 samples on average.

    Parameters
    ----------
    clients
        Number of clients.
    classes_per_client
        How many classes each client has.
    least
        Samples of each of its classes that every client has before the rest is shared.
    sigma
        Standard deviation of the logarithm of the shares; 0 makes them equal.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 100)
    >>> parts = PowerLaw(clients=20)(labels, np.random.default_rng(0)).parts
    >>> np.unique(labels[parts[9]]).tolist(), min(len(part) for part in parts)
    ([0, 9], 11)
    """

    name: ClassVar[str] = "powerlaw"
    paper: ClassVar[str] = "FedProx's MNIST (Li et al. 2020)"
    clients: int = 1000
    classes_per_client: int = 2
    least: int = 5
    sigma: float = 2.0

    def __post_init__(self) -> None:
        check_counts(self, "clients", "classes_per_client", "least")
        check_sigma(self, self.sigma)

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        chosen = consecutive(self, self.clients, self.classes_per_client, self.least, classes, by_class)
        left = sizes_of(by_class) - self.least * np.bincount(chosen.ravel(), minlength=len(classes))
        counts: Indices = np.zeros((self.clients, len(classes)), np.int64)
        logs = self.sigma * rng.standard_normal(chosen.shape)
        for c in range(len(classes)):
            mine = chosen == c
            if mine.any():
                counts[mine.any(axis=1), c] = self.least + np.floor(left[c] * _shares(logs[mine])).astype(np.int64)
        notes = left_out(len(labels), int(counts.sum()), "shares are rounded down")
        return Assignment(dealt(by_class, counts), notes=notes)


def _shares(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares that add up to one, of their logarithms; without overflow whatever sigma is."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
