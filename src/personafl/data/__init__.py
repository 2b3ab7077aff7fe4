"""Data: where samples come from (`SOURCES`), who gets them (`PARTITIONS`), and `build`, which joins the two.

A new source is one file in `data/sources` and one entry in `SOURCES`; `data/files.py` says where files
are looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from numpy.typing import NDArray

from personafl.data.partition import (
    PARTITIONS,
    Assignment,
    Dirichlet,
    Iid,
    Lognormal,
    Partition,
    Pathological,
    PowerLaw,
    Practical,
)
from personafl.errors import ConfigError
from personafl.federation import DEFAULT_SPLITS, Federation

Structure = Literal["pool", "natural", "own"]


@dataclass(frozen=True, eq=False)
class Samples:
    """What a source delivers: samples, and what it knows about whose they are.

    Attributes
    ----------
    x, y : arrays
        Features (N, ...) and labels: integers for classes, floats for regression.
    classes : int, optional
        Number of classes; None for regression.
    clients : array, optional
        The client of each sample (N,), or, with `bounds`, the id of each client (M,).
    groups : array, optional
        The group of each sample (N,), or, with `bounds`, of each client (M,).
    bounds : array, optional
        (M, 4), when the samples already lie in a federation's order with their splits decided.
    truth : dict of arrays
        Known truth for each client, first dimension M, in the natural order of the client ids.
    notes : tuple of str
        What the source had to bend, for people to read.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None
    clients: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    bounds: NDArray[Any] | None = None
    truth: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """A frozen dataclass of a data set's settings that can load the data set.

    `structure` says what the data knows about clients: "pool", nothing, so a partition is needed; "natural",
    whose each sample is (a writer, a speaker), so a partition may be given and replaces that; "own", clients
    are part of the definition and there is nothing to partition. `splits` are the shares used when a config
    gives none, or None where the source decides train and test itself.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[float, float, float] | None]

    @property
    def structure(self) -> Structure: ...

    def load(self, seed: int) -> Samples: ...


# The sources import Samples from this module, so they come after it.
from personafl.data.sources.digits import Digits  # noqa: E402
from personafl.data.sources.fmnist import Fmnist  # noqa: E402
from personafl.data.sources.gaussian import Gaussian  # noqa: E402
from personafl.data.sources.letters import Letters  # noqa: E402
from personafl.data.sources.mnist import Mnist  # noqa: E402
from personafl.data.sources.synthetic import Synthetic  # noqa: E402

SOURCES: dict[str, type] = {kind.name: kind for kind in (Digits, Gaussian, Synthetic, Mnist, Fmnist, Letters)}


def build(
    source: Source, partition: Partition | None = None, splits: Sequence[float] | None = None, seed: int = 0
) -> Federation:
    """Make a federation of a source and, where the source needs one, a partition.

    Parameters
    ----------
    source : Source
        Such as `Digits()` or `Gaussian(clients=50)`.
    partition : Partition, optional
        Needed for a pool of samples, refused by a source that comes with its own clients. Left out for a
        source whose samples have natural owners, those are the clients.
    splits : three floats, optional
        Shares of train, validation and test; left out, the source's own.
    seed : int
        The samples of a synthetic source, the partition and the splits follow from it.

    Examples
    --------
    >>> fed = build(Digits(), Dirichlet(clients=20, alpha=0.3), seed=1)
    >>> len(fed), int(sum(fed.sizes("train") + fed.sizes("val") + fed.sizes("test")))
    (20, 1797)
    """
    if source.structure == "pool" and partition is None:
        known = ", ".join(PARTITIONS)
        raise ConfigError(f"data {source.name!r} is a pool of samples without clients: give a partition ({known})")
    if source.structure == "own" and partition is not None:
        raise ConfigError(
            f"data {source.name!r} comes with its own clients: leave out the partition {partition.name!r}"
        )
    if source.splits is None and splits is not None:
        raise ConfigError(f"data {source.name!r} decides train and test itself: leave out the splits")
    samples = source.load(seed)
    if samples.bounds is not None and samples.clients is not None:
        return Federation(
            x=torch.from_numpy(samples.x),
            y=torch.from_numpy(samples.y),
            bounds=samples.bounds,
            ids=tuple(map(str, samples.clients)),
            groups=None if samples.groups is None else tuple(map(str, samples.groups)),
            classes=samples.classes,
            name=source.name,
            truth=samples.truth,
            notes=samples.notes,
        )
    natural = partition is None
    return Federation.from_arrays(
        samples.x,
        samples.y,
        partition=partition,
        clients=samples.clients if natural else None,
        groups=samples.groups if natural else None,
        splits=splits or source.splits or DEFAULT_SPLITS,
        seed=seed,
        classes=samples.classes,
        name=source.name,
        truth=samples.truth if natural else None,
        notes=samples.notes,
    )


__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "Digits",
    "Dirichlet",
    "Fmnist",
    "Gaussian",
    "Iid",
    "Letters",
    "Lognormal",
    "Mnist",
    "Partition",
    "Pathological",
    "PowerLaw",
    "Practical",
    "Samples",
    "Source",
    "Structure",
    "Synthetic",
    "build",
]
