"""A few classes for each client."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.data.partitions.base import Assignment, Indices, check_classes_per_client, check_count, shuffled_by_class
from personafl.errors import DataError


@dataclass(frozen=True)
class Pathological:
    """A few classes for each client (McMahan et al. 2017), every class used by equally many clients.

    A class is cut into as many shards as clients use it. The numbers of uses differ by at most one between
    classes; where they differ, the larger classes are used more.

    Parameters
    ----------
    clients : int
        Number of clients.
    classes_per_client : int
        How many different classes each client has, exactly.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 20)
    >>> parts = Pathological(clients=5, classes_per_client=2)(labels, np.random.default_rng(0)).parts
    >>> [len(np.unique(labels[part])) for part in parts]
    [2, 2, 2, 2, 2]
    """

    name: ClassVar[str] = "pathological"
    clients: int = 10
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        check_count(self, "clients", "somebody has to train")
        check_count(self, "classes_per_client", "a client needs samples of some class")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        check_classes_per_client(self, self.classes_per_client, classes)
        sizes = np.array([len(samples) for samples in by_class])
        uses = self._uses(sizes, rng)
        if (short := np.flatnonzero(sizes < uses)).size:
            worst = short[np.argmin(sizes[short])]
            raise DataError(
                f"partition pathological: class {classes[worst]} has {sizes[worst]} samples and "
                f"{uses[worst]} clients need some of it; use fewer clients or fewer classes_per_client"
            )
        shards = [iter(np.array_split(by_class[c], max(uses[c], 1))) for c in range(len(classes))]
        parts = [np.concatenate([next(shards[c]) for c in chosen]) for chosen in self._deal(uses, rng)]
        unused = np.flatnonzero(uses == 0)
        notes = []
        if unused.size:
            names = ", ".join(str(classes[c]) for c in unused)
            notes.append(f"no client uses class {names}: {sizes[unused].sum()} samples left out")
        return Assignment(parts, notes=notes)

    def _uses(self, sizes: Indices, rng: np.random.Generator) -> Indices:
        """How many clients use each class."""
        uses = np.full(len(sizes), self.clients * self.classes_per_client // len(sizes))
        more = self.clients * self.classes_per_client % len(sizes)
        largest_first = np.lexsort((rng.random(len(sizes)), -sizes))
        uses[largest_first[:more]] += 1
        return uses

    def _deal(self, uses: Indices, rng: np.random.Generator) -> list[Indices]:
        """The classes of each client: always those with most uses left, ties at random.

        No class is left with more uses than there are clients to come, so the deal never gets stuck.
        """
        left = uses.astype(float)
        chosen = []
        for _ in range(self.clients):
            classes = np.argsort(-(left + rng.random(len(left))))[: self.classes_per_client]
            left[classes] -= 1
            chosen.append(classes)
        return chosen
