"""pFedMe's CIFAR-10 users: three labels each, lognormal sizes (Dinh et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from personafl.data.partitions.lognormal import Lognormal


@dataclass(frozen=True)
class PFedMeUsers(Lognormal):
    """lognormal(mean, sigma) + least samples a user, evenly over three neighbouring labels (Dinh et al. 2020).

    The setting of pFedMe, and of Self-FL, for CIFAR-10: 20 users with about 1,150 to 4,500 images, three quarters for
    training and one for test. The paper's generator draws shares, multiplies them by random numbers and drops what
    exceeds a class; here the sizes are lognormal as described, with a median of 2,300 and 19 in 20 users between
    1,150 and 4,500, and otherwise as in `lognormal`.

    Parameters
    ----------
    clients
        Number of users.
    classes_per_client
        How many labels each user has.
    mean, sigma
        Mean and standard deviation of the logarithm of a user's size, before `least` is added.
    least
        What every user has at least when no class is short.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat(np.arange(10), 6000)
    >>> parts = PFedMeUsers()(labels, np.random.default_rng(0)).parts
    >>> len(parts), {len(np.unique(labels[part])) for part in parts}
    (20, {3})
    """

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "pFedMe's and Self-FL's CIFAR-10 (Dinh et al. 2020)"
    splits: ClassVar[tuple[float, float, float]] = (0.75, 0.0, 0.25)
    clients: int = 20
    classes_per_client: int = 3
    mean: float = 7.735
    sigma: float = 0.34
    least: int = 10
