"""What every partition needs: the contract, its checks, and how samples of a class are handed out."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError

Indices = NDArray[np.int64]

MOST = 2**40  # times as many samples as fit into memory, it still fits into 64 bits


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
    """Anything that deals labelled samples to clients.

    A partition of a paper may have two more class variables: `paper`, where it comes from, and `splits`, the shares of
    train, validation and test that the paper uses. `build` and configs take these splits where they are given none.
    """

    name: ClassVar[str]

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment: ...


def shuffled_by_class(
    partition: Partition, labels: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[Any], list[Indices]]:
    """The classes that occur, and the shuffled sample indices of each."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"partition {partition.name} goes by class and needs integer labels of shape (N,), not "
            f"{labels.dtype} of shape {labels.shape}; use iid"
        )
    check_enough(partition, len(labels), 1)
    classes, counts = np.unique(labels, return_counts=True)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return classes, np.split(order, np.cumsum(counts)[:-1])


def dealt(by_class: list[Indices], counts: Indices) -> list[Indices]:
    """The samples of clients that get counts[m, c] samples of class c, each taken from the front of the class.

    >>> [part.tolist() for part in dealt([np.array([5, 6, 7]), np.array([8])], np.array([[1, 1], [2, 0]]))]
    [[5, 8], [6, 7]]
    """
    clients, classes = counts.shape
    samples = np.concatenate([by_class[c][:total] for c, total in enumerate(counts.sum(axis=0))])
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    ends = np.cumsum(counts.sum(axis=1))
    return np.split(samples[np.argsort(owner, kind="stable")], ends[:-1])


def consecutive(
    partition: Partition,
    clients: int,
    classes_per_client: int,
    least: int,
    classes: NDArray[Any],
    by_class: list[Indices],
) -> Indices:
    """The positions of the classes u, u+1, … of client u, (clients, classes_per_client), as FedProx gives them.

    It is an error if there are not `least` samples of a class for each client that has it.
    """
    _check_classes_per_client(partition, clients, classes_per_client, classes, by_class)
    chosen = np.add.outer(np.arange(clients), np.arange(classes_per_client)) % len(classes)
    users = np.bincount(chosen.ravel(), minlength=len(classes))
    check_supply(partition, classes, by_class, least * users, "use fewer clients or give each less")
    return chosen


def evenly_used(
    partition: Partition,
    clients: int,
    classes_per_client: int,
    classes: NDArray[Any],
    by_class: list[Indices],
    rng: np.random.Generator,
) -> Indices:
    """The positions of each client's classes, (clients, classes_per_client), at random, all classes used alike.

    The numbers of uses differ by at most one between classes; where they differ, the larger classes are used more.
    It is an error if a class has fewer samples than uses.
    """
    _check_classes_per_client(partition, clients, classes_per_client, classes, by_class)
    uses = np.full(len(classes), clients * classes_per_client // len(classes))
    more = clients * classes_per_client % len(classes)
    largest_first = np.lexsort((rng.random(len(classes)), -sizes_of(by_class)))
    uses[largest_first[:more]] += 1
    check_supply(partition, classes, by_class, uses, "use fewer clients or fewer classes_per_client")
    left = uses.astype(float)
    chosen: Indices = np.zeros((clients, classes_per_client), np.int64)
    for mine in chosen:
        # Those with most uses left, ties at random: then no class is left with more uses than there are clients to
        # come, and the deal never gets stuck.
        mine[:] = np.argsort(-(left + rng.random(len(left))))[:classes_per_client]
        left[mine] -= 1
    return chosen


def sizes_of(by_class: list[Indices]) -> Indices:
    """How many samples each class has."""
    return np.array([len(samples) for samples in by_class], np.int64)


def left_out(samples: int, dealt: int, why: str) -> list[str]:
    """The note that tells how many samples nobody gets, if there are any."""
    return [f"{samples - dealt} of {samples} samples left out: {why}"] if dealt < samples else []


def _check_classes_per_client(
    partition: Partition, clients: int, classes_per_client: int, classes: NDArray[Any], by_class: list[Indices]
) -> None:
    if classes_per_client > len(classes):
        raise ConfigError(
            f"partition {partition.name}: classes_per_client = {classes_per_client}, but the labels "
            f"hold {len(classes)} classes; use at most {len(classes)}"
        )
    check_enough(partition, int(sizes_of(by_class).sum()), clients * classes_per_client)


def fewer_where_short(
    partition: Partition, classes: NDArray[Any], by_class: list[Indices], wanted: Indices
) -> tuple[Indices, list[str]]:
    """What each client gets of each class: proportionally less of a class that is short, at least one; and a note."""
    check_supply(partition, classes, by_class, np.count_nonzero(wanted, axis=0), "use fewer clients")
    counts = wanted.copy()
    short = []
    for c, samples in enumerate(by_class):
        if (together := int(wanted[:, c].sum())) > len(samples):
            counts[:, c] = _scaled(wanted[:, c], len(samples))
            short.append(f"class {classes[c]} ({len(samples)} of {together})")
    if not short:
        return counts, []
    clients = len(wanted)
    note = (
        f"too few samples of {', '.join(short)}: the clients got proportionally fewer, so that the mean size is "
        f"{counts.sum() / clients:.0f} instead of {wanted.sum() / clients:.0f}"
    )
    return counts, [note]


def _scaled(drawn: Indices, supply: int) -> Indices:
    """The drawn counts reduced in proportion until they add up to the supply; who has any keeps at least one."""
    beyond = np.maximum(drawn - 1, 0)
    # Differences of the rounded cumulative sum: exact in total, and within one of the exact share for everybody.
    edges = np.cumsum(beyond) * (supply - np.count_nonzero(drawn)) // beyond.sum()
    return np.asarray((drawn > 0) + np.diff(edges, prepend=0), np.int64)


def check_supply(
    partition: Partition, classes: NDArray[Any], by_class: list[Indices], needed: Indices, advice: str
) -> None:
    """Every class must have as many samples as are needed of it."""
    sizes = sizes_of(by_class)
    if (short := np.flatnonzero(sizes < needed)).size:
        worst = short[np.argmax((needed - sizes)[short])]
        raise DataError(
            f"partition {partition.name}: class {classes[worst]} has {sizes[worst]} samples and the clients need "
            f"{needed[worst]} of it; {advice}"
        )


def check_counts(partition: Partition, *settings: str) -> None:
    """These settings are whole numbers of at least 1."""
    reasons = {"clients": "somebody has to train", "classes_per_client": "a client needs samples of some class"}
    for setting in settings:
        value = getattr(partition, setting)
        if not whole(value) or value < 1:
            why = reasons.get(setting, "a client without samples cannot train")
            raise ConfigError(
                f"partition {partition.name}: {setting} = {value!r} must be a whole number of at least 1: {why}"
            )
        if value > MOST:
            raise ConfigError(f"partition {partition.name}: {setting} = {value} is more than any data has samples")


def check_sigma(partition: Partition, sigma: float) -> None:
    """Refuse a standard deviation that is negative or too large."""
    if not 0 <= sigma <= 1e6:
        raise ConfigError(
            f"partition {partition.name}: sigma = {sigma} must be in 0 to 1e6: it is the standard deviation "
            f"of the logarithm of a client's share"
        )


def check_enough(partition: Partition, samples: int, needed: int) -> None:
    """Refuse data with too few samples for the clients."""
    if samples < needed:
        raise DataError(
            f"partition {partition.name} needs at least {needed} samples for its clients and the data has "
            f"{samples}; use fewer clients"
        )


def whole(value: Any) -> bool:
    """Whether a value is a whole number; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
