"""FedProx's FEMNIST clients: lognormal sizes, neighbouring classes (Li et al. 2020)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.federation.partition import (
    Assignment,
    Indices,
    check_counts,
    check_sigma,
    consecutive,
    dealt,
    fewer_where_short,
    shuffled_by_class,
)


@dataclass(frozen=True)
class Lognormal:
    """lognormal(mean, sigma) + least samples a client, evenly over neighbouring classes (Li et al. 2020).

    Client u has the classes u, u+1, … modulo the number of classes. The defaults are the paper's for FEMNIST. Its
    published code starts again with the first images of a class for every client, so that one client's test
    images are in another's training data; here a sample is dealt once. Where a class has fewer samples than were
    drawn, its clients get proportionally fewer of it, at least one each, and a note says so.

    Parameters
    ----------
    clients
        Number of clients.
    classes_per_client
        How many classes each client has: 5 in the paper, 3 in its published code.
    mean, sigma
        Mean and standard deviation of the logarithm of a client's size, before `least` is added.
    least
        What every client has at least when no class is short; not less than `classes_per_client`.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 50)
    >>> parts = Lognormal(clients=10, mean=2.0)(labels, np.random.default_rng(0)).parts
    >>> np.unique(labels[parts[8]]).tolist()
    [0, 1, 2, 8, 9]
    """

    name: ClassVar[str] = "lognormal"
    paper: ClassVar[str] = "FedProx's FEMNIST (Li et al. 2020)"
    clients: int = 200
    classes_per_client: int = 5
    mean: float = 4.0
    sigma: float = 1.0
    least: int = 5

    def __post_init__(self) -> None:
        check_counts(self, "clients", "classes_per_client", "least")
        check_sigma(self, self.sigma)
        if not -1e6 <= self.mean <= 1e6:
            raise ConfigError(
                f"partition {self.name}: mean = {self.mean} must be in -1e6 to 1e6: it is the mean of the "
                f"logarithm of a client's size"
            )
        if self.least < self.classes_per_client:
            raise ConfigError(
                f"partition {self.name}: least = {self.least} must not be below classes_per_client = "
                f"{self.classes_per_client}: a client has a sample of each of its classes"
            )

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        chosen = consecutive(self, self.clients, self.classes_per_client, 1, classes, by_class)
        # Nobody can have more than there is, and a cap keeps the numbers small enough to count with.
        logs = self.mean + self.sigma * rng.standard_normal(self.clients)
        sizes = np.exp(np.minimum(logs, np.log(len(labels)))).astype(np.int64) + self.least
        drawn: Indices = np.zeros((self.clients, len(classes)), np.int64)
        for u, size in enumerate(sizes):
            each, more = divmod(int(size), self.classes_per_client)
            drawn[u, chosen[u]] = each + (rng.permutation(self.classes_per_client) < more)
        counts, notes = fewer_where_short(self, classes, by_class, drawn)
        return Assignment(dealt(by_class, counts), notes=notes)
