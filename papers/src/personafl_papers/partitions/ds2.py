"""PersFL's data split DS-2: all classes for everybody, in Dirichlet shares (Divi 2021)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.data.partitions.dirichlet import check_alpha, dirichlet_counts
from personafl.federation.partition import (
    Assignment,
    check_counts,
    check_enough,
    check_supply,
    dealt,
    shuffled_by_class,
    sizes_of,
)


@dataclass(frozen=True)
class DS2:
    """Each class divided by shares of Dirichlet(alpha), everybody with some of every class (PersFL's DS-2).

    As in the thesis, all users have samples from all classes: one of each, then the shares of what is left.
    `dirichlet` differs in that: there, a user may have none of a class.

    Parameters
    ----------
    clients
        Number of users.
    alpha
        Small: a class lives with few users. Large: everybody has the same mixture.

    Examples
    --------
    >>> labels = np.repeat([0, 1, 2], 50)
    >>> parts = DS2(clients=3)(labels, np.random.default_rng(0)).parts
    >>> sum(len(part) for part in parts), {len(np.unique(labels[part])) for part in parts}
    (150, {3})
    """

    name: ClassVar[str] = "ds2"
    paper: ClassVar[str] = "PersFL's DS-2 (Divi 2021)"
    splits: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    clients: int = 10
    alpha: float = 0.9

    def __post_init__(self) -> None:
        check_counts(self, "clients")
        check_alpha(self, self.alpha)

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        check_enough(self, len(labels), self.clients * len(classes))
        one_each = np.full(len(classes), self.clients)
        check_supply(self, classes, by_class, one_each, "use fewer clients, or partition dirichlet")
        counts = 1 + dirichlet_counts(self.alpha, self.clients, sizes_of(by_class) - one_each, rng).T
        return Assignment(dealt(by_class, counts))
