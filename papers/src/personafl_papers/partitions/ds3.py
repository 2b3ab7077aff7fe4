"""PersFL's data split DS-3: two labels, lognormal sizes (Divi 2021)."""

from dataclasses import dataclass
from typing import ClassVar

from personafl.data.partitions.powerlaw import PowerLaw


@dataclass(frozen=True)
class DS3(PowerLaw):
    """Two labels a user, sizes by lognormal(0, 2) shares: `powerlaw` with ten users (PersFL's DS-3).

    The thesis takes DS-3 from pFedMe, whose generator gives user u the labels u and u+1, ten samples of each, and then
    lognormal shares of the rest; so do we, with `powerlaw`'s way of sharing.

    Parameters
    ----------
    clients
        Number of users.
    classes_per_client
        How many labels each user has.
    least
        Samples of each of its labels that every user has before the rest is shared.
    sigma
        Standard deviation of the logarithm of the shares; 0 makes them equal.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat(np.arange(10), 100)
    >>> parts = DS3()(labels, np.random.default_rng(0)).parts
    >>> np.unique(labels[parts[9]]).tolist(), min(len(part) for part in parts) >= 20
    ([0, 9], True)
    """

    name: ClassVar[str] = "ds3"
    paper: ClassVar[str] = "PersFL's DS-3 (Divi 2021), after pFedMe"
    splits: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    clients: int = 10
    least: int = 10
