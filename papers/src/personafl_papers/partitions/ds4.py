"""PersFL's data split DS-4, from Per-FedAvg (Fallah et al. 2020)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.partition import (
    Assignment,
    Indices,
    check_counts,
    check_enough,
    check_supply,
    dealt,
    left_out,
    shuffled_by_class,
)

FIRST = 5


@dataclass(frozen=True)
class DS4:
    """Half the users: k of each of classes 0–4; the others: k/2 of one of these, 2k of one of 5–9 (PersFL's DS-4).

    k is 68 for CIFAR-10 and 196 for MNIST. Where the thesis is silent: which one of the classes it is, is drawn, such
    that each is used by equally many users; of an odd number of users, the first half is the larger; an odd k/2 is
    rounded down; of data with other than ten classes, the first five and all others. The users' groups are "five
    classes" and "two classes". What nobody asks for is left out, and a note says how much.

    Parameters
    ----------
    clients
        Number of users.
    k
        See above; at least 2.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 50)
    >>> dealt = DS4(clients=4, k=8)(labels, np.random.default_rng(0))
    >>> [len(part) for part in dealt.parts], dealt.groups[2]
    ([40, 40, 20, 20], 'two classes')
    """

    name: ClassVar[str] = "ds4"
    paper: ClassVar[str] = "PersFL's DS-4 (Divi 2021), after Per-FedAvg: k = 68 for CIFAR-10, 196 for MNIST"
    splits: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    clients: int = 10
    k: int = 68

    def __post_init__(self) -> None:
        check_counts(self, "clients", "k")
        if self.k < 2:
            raise ConfigError("partition ds4: k = 1 must be at least 2: half of the users have k/2 samples of a class")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        if len(classes) <= FIRST:
            raise DataError(
                f"partition ds4 needs more than {FIRST} classes and the labels hold {len(classes)}; use pathological"
            )
        narrow = self.clients // 2
        wide = self.clients - narrow
        check_enough(self, len(labels), wide * FIRST * self.k + narrow * (self.k // 2 + 2 * self.k))
        counts: Indices = np.zeros((self.clients, len(classes)), np.int64)
        counts[:wide, :FIRST] = self.k
        rows = np.arange(wide, self.clients)
        counts[rows, _drawn(narrow, FIRST, rng)] = self.k // 2
        counts[rows, FIRST + _drawn(narrow, len(classes) - FIRST, rng)] = 2 * self.k
        check_supply(self, classes, by_class, counts.sum(axis=0), "use fewer clients or a smaller k")
        return Assignment(
            dealt(by_class, counts),
            groups=["five classes"] * wide + ["two classes"] * narrow,
            notes=left_out(len(labels), int(counts.sum()), "the users do not ask for more"),
        )


def _drawn(users: int, classes: int, rng: np.random.Generator) -> Indices:
    """One class for each user, in random order, every class drawn by equally many."""
    return rng.permutation(np.resize(rng.permutation(classes), users))
