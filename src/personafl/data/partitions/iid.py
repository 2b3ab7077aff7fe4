"""Equal shares of a shuffled pool."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.federation.partition import Assignment, check_counts, check_enough


@dataclass(frozen=True)
class IID:
    """Equal shares of a shuffled pool: every client sees the same distribution.

    Parameters
    ----------
    clients
        Number of clients.

    Examples
    --------
    >>> [len(part) for part in IID(clients=3)(np.arange(10), np.random.default_rng(0)).parts]
    [4, 3, 3]
    """

    name: ClassVar[str] = "iid"
    paper: ClassVar[str] = "McMahan et al. 2017; FedAMP's IID setting"
    clients: int = 10

    def __post_init__(self) -> None:
        check_counts(self, "clients")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        check_enough(self, len(labels), self.clients)
        return Assignment(np.array_split(rng.permutation(len(labels)), self.clients))
