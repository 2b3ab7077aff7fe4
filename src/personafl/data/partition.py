"""Partitions: who gets which samples, when one pool of labelled samples is dealt to clients.

A partition is a frozen dataclass of its settings, called with the labels and a generator. None of them loops
until it is lucky: each gives an answer or an error after a fixed amount of work.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """What a partition decided.

    Attributes
    ----------
    parts : list of arrays
        The sample indices of each client; a sample is in at most one of them.
    groups : list of str, optional
        The group of each client, where the partition makes groups.
    notes : list of str
        What the partition had to bend or leave out, for people to read.
    """

    parts: list[Indices]
    groups: list[str] | None = None
    notes: list[str] = field(default_factory=list)


class Partition(Protocol):
    """Anything that deals labelled samples to clients."""

    name: ClassVar[str]

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment: ...


@dataclass(frozen=True)
class Iid:
    """Equal shares of a shuffled pool: every client sees the same distribution.

    Parameters
    ----------
    clients : int
        Number of clients.

    Examples
    --------
    >>> [len(part) for part in Iid(clients=3)(np.arange(10), np.random.default_rng(0)).parts]
    [4, 3, 3]
    """

    name: ClassVar[str] = "iid"
    clients: int = 10

    def __post_init__(self) -> None:
        _check_count(self, "clients", "somebody has to train")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        _check_enough(self, len(labels), self.clients)
        return Assignment(np.array_split(rng.permutation(len(labels)), self.clients))


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
        _check_count(self, "clients", "somebody has to train")
        _check_count(self, "classes_per_client", "a client needs samples of some class")

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = _shuffled_by_class(self, labels, rng)
        if self.classes_per_client > len(classes):
            raise ConfigError(
                f"partition pathological: classes_per_client = {self.classes_per_client}, but the labels "
                f"hold {len(classes)} classes; use at most {len(classes)}"
            )
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


@dataclass(frozen=True)
class Dirichlet:
    """Each class divided over the clients by shares drawn from Dirichlet(alpha) (Hsu et al. 2019).

    A client left with fewer than `min_samples` gets samples from the largest clients, and a note says so: for
    small `alpha` or many clients a draw without such clients may never come.

    Parameters
    ----------
    clients : int
        Number of clients.
    alpha : float
        Small: a class lives with few clients. Large: everybody has the same mixture.
    min_samples : int
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
    clients: int = 10
    alpha: float = 0.5
    min_samples: int = 1

    def __post_init__(self) -> None:
        _check_count(self, "clients", "somebody has to train")
        _check_count(self, "min_samples", "a client without samples cannot train")
        if not 1e-100 <= self.alpha <= 1e100:
            raise ConfigError(
                f"partition dirichlet: alpha = {self.alpha} must be positive (1e-100 to 1e100): the "
                f"smaller, the more the clients differ"
            )

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        _check_enough(self, len(labels), self.clients * self.min_samples)
        classes, by_class = _shuffled_by_class(self, labels, rng)
        shares = self._shares(len(classes), rng)
        edges = np.cumsum(shares, axis=1)
        edges[:, -1] = 1.0  # the sum of the shares, without its rounding error
        totals = np.array([[len(samples)] for samples in by_class])
        # One random offset a class makes the rounding exact in total and unbiased for each client.
        cuts = np.floor(edges * totals + rng.random((len(classes), 1))).astype(np.int64)
        counts = np.diff(cuts, axis=1, prepend=0)
        owner = np.repeat(np.tile(np.arange(self.clients), len(classes)), counts.ravel())
        samples = np.concatenate(by_class)
        notes = self._fill_up(owner, rng)
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=self.clients))
        return Assignment(np.split(samples[order], ends[:-1]), notes=notes)

    def _shares(self, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Dirichlet draws, one row a class, by way of the logarithms of gamma draws.

        Gamma(a) is Gamma(a + 1) · U^(1/a), which underflows to 0 for small a, and 0/0 is how other samplers
        come to return NaN; its logarithm does not underflow.
        """
        shape = (classes, self.clients)
        uniform = 1.0 - rng.random(shape)  # in (0, 1]: its logarithm is finite
        log_gamma = np.log(rng.standard_gamma(self.alpha + 1.0, shape)) + np.log(uniform) / self.alpha
        weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

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


PARTITIONS: dict[str, type] = {kind.name: kind for kind in (Iid, Pathological, Dirichlet)}


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


def _shuffled_by_class(
    partition: Partition, labels: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[Any], list[Indices]]:
    """The classes that occur, and the shuffled sample indices of each."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"partition {partition.name} goes by class and needs integer labels of shape (N,), not "
            f"{labels.dtype} of shape {labels.shape}; use iid"
        )
    _check_enough(partition, len(labels), 1)
    classes, counts = np.unique(labels, return_counts=True)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return classes, np.split(order, np.cumsum(counts)[:-1])


def _check_count(partition: Partition, setting: str, why: str) -> None:
    value = getattr(partition, setting)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(
            f"partition {partition.name}: {setting} = {value!r} must be a whole number of at least 1: {why}"
        )


def _check_enough(partition: Partition, samples: int, needed: int) -> None:
    if samples < needed:
        raise DataError(
            f"partition {partition.name} needs at least {needed} samples for its clients and the data has "
            f"{samples}; use fewer clients"
        )
