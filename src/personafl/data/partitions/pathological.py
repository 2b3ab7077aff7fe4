"""A few classes for each client."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.federation.partition import Assignment, check_counts, evenly_used, shuffled_by_class, sizes_of


@dataclass(frozen=True)
class Pathological:
    """A few classes for each client (McMahan et al. 2017), every class used by equally many clients.

    A class is cut into as many shards as clients use it. The numbers of uses differ by at most one between
    classes; where they differ, the larger classes are used more.

    Parameters
    ----------
    clients
        Number of clients.
    classes_per_client
        How many different classes each client has, exactly.

    Examples
    --------
    >>> labels = np.repeat(np.arange(10), 20)
    >>> parts = Pathological(clients=5, classes_per_client=2)(labels, np.random.default_rng(0)).parts
    >>> [len(np.unique(labels[part])) for part in parts]
    [2, 2, 2, 2, 2]
    """

    name: ClassVar[str] = "pathological"
    paper: ClassVar[str] = "McMahan et al. 2017; FedAMP's pathological setting"
    clients: int = 10
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        check_counts(self, "clients", "classes_per_client")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        chosen = evenly_used(self, self.clients, self.classes_per_client, classes, by_class, rng)
        uses = np.bincount(chosen.ravel(), minlength=len(classes))
        shards = [iter(np.array_split(by_class[c], max(uses[c], 1))) for c in range(len(classes))]
        parts = [np.concatenate([next(shards[c]) for c in mine]) for mine in chosen]
        unused = np.flatnonzero(uses == 0)
        notes = []
        if unused.size:
            names = ", ".join(str(classes[c]) for c in unused)
            notes.append(f"no client uses class {names}: {sizes_of(by_class)[unused].sum()} samples left out")
        return Assignment(parts, notes=notes)
