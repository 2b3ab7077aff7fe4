"""The clients are those who made the samples."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.checks import many
from personafl.federation.partition import Assignment, whole
from personafl.federation.splits import natural_clients


@dataclass(frozen=True)
class Natural:
    """The clients are the owners of the samples: writers, speakers, users. For data that knows them.

    Parameters
    ----------
    least
        Owners with fewer samples are left out, and a note says how many: 30 in FedProx's Sent140.
    clients
        How many owners to keep, those with most samples, ties in natural order (2 before 10); 0 keeps all.

    Examples
    --------
    >>> owners = np.array(["w2", "w10", "w2", "w7", "w10"])
    >>> kept, notes = Natural(least=2).keep(owners)
    >>> kept.tolist(), notes
    ([True, True, True, False, True], ['left out 1 owner with fewer than 2 samples (1 sample)'])
    """

    name: ClassVar[str] = "natural"
    paper: ClassVar[str] = "least = 30: FedProx's Sent140 (Li et al. 2020)"
    least: int = 1
    clients: int = 0

    def __post_init__(self) -> None:
        for setting, smallest in (("least", 1), ("clients", 0)):
            value = getattr(self, setting)
            if not whole(value) or value < smallest:
                raise ConfigError(
                    f"partition natural: {setting} = {value!r} must be a whole number of at least {smallest}"
                )

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        raise ConfigError(
            "partition natural goes by the samples' owners, which labels do not tell: from_arrays takes them as clients"
        )

    def keep(self, owners: NDArray[Any]) -> tuple[NDArray[np.bool_], list[str]]:
        """Which samples stay, given the owner of each, and notes about those that do not."""
        names, owner = natural_clients(owners, len(owners))
        sizes = np.bincount(owner, minlength=len(names))
        enough = sizes >= self.least
        if not enough.any():
            raise DataError(
                f"partition natural: least = {self.least}, and no owner has more than {sizes.max(initial=0)} samples"
            )
        if self.clients > enough.sum():
            raise DataError(
                f"partition natural: clients = {self.clients}, and only {enough.sum()} owners have "
                f"{many(self.least, 'sample')} or more"
            )
        # A stable sort of negative sizes: the largest first, ties in natural order.
        ranked = np.argsort(-sizes, kind="stable")[: self.clients or len(names)]
        kept = np.isin(np.arange(len(names)), ranked)
        notes = _note(sizes[~enough], f"with fewer than {many(self.least, 'sample')}")
        notes += _note(sizes[enough & ~kept], f"beyond the {many(self.clients, 'client')} with most samples")
        return (kept & enough)[owner], notes


def _note(sizes: NDArray[np.int64], which: str) -> list[str]:
    if not sizes.size:
        return []
    return [f"left out {many(len(sizes), 'owner')} {which} ({many(int(sizes.sum()), 'sample')})"]
