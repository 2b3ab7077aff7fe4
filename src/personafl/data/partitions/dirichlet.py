"""Classes divided by shares drawn from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.federation.partition import (
    Assignment,
    Indices,
    Partition,
    check_counts,
    check_enough,
    shuffled_by_class,
    sizes_of,
)


@dataclass(frozen=True)
class Dirichlet:
    """Each class divided over the clients by shares drawn from Dirichlet(alpha) (Hsu et al. 2019).

    A client left with fewer than `min_samples` gets samples from the largest clients, and a note says so: for
    small `alpha` or many clients a draw without such clients may never come.

    Parameters
    ----------
    clients
        Number of clients.
    alpha
        Small: a class lives with few clients. Large: everybody has the same mixture.
    min_samples
        What every client has at least.

    Examples
    --------
    >>> labels = np.repeat([0, 1], 50)
    >>> dealt = Dirichlet(clients=4, alpha=1e-6)(labels, np.random.default_rng(0))
    >>> sum(len(part) for part in dealt.parts), min(len(part) for part in dealt.parts)
    (100, 1)
    >>> dealt.notes
    ['moved 2 samples from the largest clients to clients with fewer than 1: client-1 (1), client-3 (1)']
    """

    name: ClassVar[str] = "dirichlet"
    paper: ClassVar[str] = "Hsu et al. 2019"
    clients: int = 10
    alpha: float = 0.5
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_counts(self, "clients", "min_samples")
        check_alpha(self, self.alpha)

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        check_enough(self, len(labels), self.clients * self.min_samples)
        classes, by_class = shuffled_by_class(self, labels, rng)
        counts = dirichlet_counts(self.alpha, self.clients, sizes_of(by_class), rng)
        owner = np.repeat(np.tile(np.arange(self.clients), len(classes)), counts.ravel())
        samples = np.concatenate(by_class)
        notes = self._fill_up(owner, rng)
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=self.clients))
        return Assignment(np.split(samples[order], ends[:-1]), notes=notes)

    def _fill_up(self, owner: Indices, rng: np.random.Generator) -> list[str]:
        """Change the owner of some samples, in place, so that nobody has fewer than `min_samples`."""
        sizes = np.bincount(owner, minlength=self.clients)
        lacking = np.maximum(self.min_samples - sizes, 0)
        need = int(lacking.sum())
        if need == 0:
            return []
        given = _skim(sizes, need)
        shuffled = rng.permutation(len(owner))
        by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        moved = by_owner[rank < np.repeat(given, sizes)]
        owner[rng.permutation(moved)] = np.repeat(np.arange(self.clients), lacking)
        takers = np.flatnonzero(lacking)
        names = ", ".join(f"client-{m} ({lacking[m]})" for m in takers[:10])
        more = f" and {len(takers) - 10} more" if len(takers) > 10 else ""
        return [
            f"moved {need} samples from the largest clients to clients with fewer than {self.min_samples}: "
            f"{names}{more}"
        ]


def dirichlet_counts(alpha: float, clients: int, sizes: Indices, rng: np.random.Generator) -> Indices:
    """How many samples of each class each client gets, (classes, clients), when classes of these sizes are divided."""
    shares = _shares(alpha, len(sizes), clients, rng)
    edges = np.cumsum(shares, axis=1)
    edges[:, -1] = 1.0  # the sum of the shares, without its rounding error
    # One random offset a class makes the rounding exact in total and unbiased for each client.
    cuts = np.floor(edges * sizes[:, None] + rng.random((len(sizes), 1))).astype(np.int64)
    return np.diff(cuts, axis=1, prepend=0)


def check_alpha(partition: Partition, alpha: float) -> None:
    """Refuse an alpha that is not positive, or too extreme to draw by."""
    if not 1e-100 <= alpha <= 1e100:
        raise ConfigError(
            f"partition {partition.name}: alpha = {alpha} must be positive (1e-100 to 1e100): the "
            f"smaller, the more the clients differ"
        )


def _shares(alpha: float, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Dirichlet draws, one row a class, by way of the logarithms of gamma draws.

    Gamma(a) is Gamma(a + 1) · U^(1/a), which underflows to 0 for small a, and 0/0 is how other samplers
    come to return NaN; its logarithm does not underflow.
    """
    shape = (classes, clients)
    uniform = 1.0 - rng.random(shape)  # in (0, 1]: its logarithm is finite
    log_gamma = np.log(rng.standard_gamma(alpha + 1.0, shape)) + np.log(uniform) / alpha
    weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _skim(sizes: Indices, need: int) -> Indices:
    """How many samples each client gives so that `need` come together and the largest are levelled first."""
    low, high = 0, int(sizes.max())
    while high - low > 1:  # the highest level that still yields enough
        level = (low + high) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= need else (low, level)
    given = np.maximum(sizes - low, 0)
    spare = int(given.sum()) - need
    given[np.flatnonzero(given)[:spare]] -= 1
    return given
