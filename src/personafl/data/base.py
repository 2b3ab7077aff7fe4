"""Data: where samples come from (`SOURCES`), who gets them (`PARTITIONS`), and `build`, which joins the two.

A new source is one file in `data/sources` and one entry in `SOURCES`; `data/files.py` says where files
are looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.data.partitions import (
    DS1,
    DS2,
    DS3,
    DS4,
    IID,
    PARTITIONS,
    Assignment,
    Dirichlet,
    Lognormal,
    Natural,
    Partition,
    Pathological,
    PFedMeUsers,
    PowerLaw,
    Practical,
)
from personafl.errors import ConfigError
from personafl.federation import DEFAULT_SPLITS, Federation
from personafl.federation.splits import natural_clients

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
    tables : dict of arrays
        Constants that all clients share and that a model may use, such as word vectors.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None
    clients: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    bounds: NDArray[Any] | None = None
    truth: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tables: dict[str, NDArray[Any]] = field(default_factory=dict)


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


@runtime_checkable
class Owned(Protocol):
    """A source that is a pool, and yet knows whose its samples are when the partition `natural` asks."""

    def owners(self, samples: int) -> NDArray[Any]: ...


# The sources import Samples from this module, so they come after it.
from personafl.data.sources.cifar10 import CIFAR10  # noqa: E402
from personafl.data.sources.cifar100 import CIFAR100  # noqa: E402
from personafl.data.sources.digits import Digits  # noqa: E402
from personafl.data.sources.emnist import EMNIST  # noqa: E402
from personafl.data.sources.fmnist import FMNIST  # noqa: E402
from personafl.data.sources.mnist import MNIST  # noqa: E402
from personafl.data.sources.own_files import Files  # noqa: E402
from personafl_papers.data.gaussian import Gaussian  # noqa: E402
from personafl_papers.data.letters import Letters  # noqa: E402
from personafl_papers.data.sent140 import Sent140  # noqa: E402
from personafl_papers.data.synthetic import Synthetic  # noqa: E402
from personafl_papers.data.wakeword import Wakeword  # noqa: E402

SOURCES: dict[str, type] = {
    kind.name: kind
    for kind in (
        Digits, Gaussian, Synthetic, MNIST, FMNIST, EMNIST, Letters, CIFAR10, CIFAR100, Sent140, Wakeword, Files,
    )
}  # fmt: skip


def build(
    source: Source | Files, partition: Partition | None = None, splits: Sequence[float] | None = None, seed: int = 0
) -> Federation:
    """Make a federation of a source and, where the source needs one, a partition.

    Parameters
    ----------
    source : Source
        Such as `Digits()` or `Gaussian(clients=50)`.
    partition : Partition, optional
        Needed for a pool of samples, refused by a source that comes with its own clients. Left out for a
        source whose samples have natural owners, those are the clients, as with `Natural()`.
    splits : three floats, optional
        Shares of train, validation and test; left out, those of the partition's paper, else the source's own.
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
    if isinstance(partition, Natural) and source.structure == "pool" and not isinstance(source, Owned):
        known = ", ".join(
            name
            for name, kind in SOURCES.items()
            if hasattr(kind, "owners") or getattr(kind, "structure", None) == "natural"
        )
        raise ConfigError(
            f"data {source.name!r} does not know whose its samples are, so it has no partition 'natural'; known to "
            f"have owners: {known}"
        )
    if source.splits is None and splits is not None:
        raise ConfigError(f"data {source.name!r} decides train and test itself: leave out the splits")
    if isinstance(source, Files):  # what is in the files decides what they are
        return source.federation(partition, splits, seed)
    samples = source.load(seed)
    tables = {what: _tensor(table) for what, table in samples.tables.items()}
    if samples.bounds is not None and samples.clients is not None:
        return Federation(
            x=_tensor(samples.x),
            y=_tensor(samples.y),
            bounds=samples.bounds,
            ids=tuple(map(str, samples.clients)),
            groups=None if samples.groups is None else tuple(map(str, samples.groups)),
            classes=samples.classes,
            name=source.name,
            truth=samples.truth,
            notes=samples.notes,
            tables=tables,
        )
    shares = splits or getattr(partition, "splits", None) or source.splits or DEFAULT_SPLITS
    if isinstance(partition, Natural):
        samples, partition = _of_owners(source, samples, partition), None
    natural = partition is None
    return Federation.from_arrays(
        samples.x,
        samples.y,
        partition=partition,
        clients=samples.clients if natural else None,
        groups=samples.groups if natural else None,
        splits=shares,
        seed=seed,
        classes=samples.classes,
        name=source.name,
        truth=samples.truth if natural else None,
        notes=samples.notes,
        tables=tables,
    )


def _of_owners(source: Source, samples: Samples, partition: Natural) -> Samples:
    """The samples of the owners that the partition keeps."""
    owners = samples.clients
    if owners is None and isinstance(source, Owned):
        owners = source.owners(len(samples.y))
    assert owners is not None  # a source with a natural structure delivers its clients
    kept, notes = partition.keep(owners)
    samples = replace(samples, clients=owners, notes=(*samples.notes, *notes))
    if kept.all():
        return samples
    stay = np.isin(natural_clients(owners, len(owners))[0], owners[kept].astype(str))
    return replace(
        samples,
        x=samples.x[kept],
        y=samples.y[kept],
        clients=owners[kept],
        groups=None if samples.groups is None else samples.groups[kept],
        truth={what: value[stay] for what, value in samples.truth.items()},
    )


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array itself where it may be written to, else a copy: torch knows no read-only memory."""
    return torch.from_numpy(np.require(array, requirements="W"))


__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "CIFAR10",
    "CIFAR100",
    "Digits",
    "Dirichlet",
    "DS1",
    "DS2",
    "DS3",
    "DS4",
    "EMNIST",
    "Files",
    "FMNIST",
    "Gaussian",
    "IID",
    "Letters",
    "Lognormal",
    "MNIST",
    "Natural",
    "Owned",
    "PFedMeUsers",
    "Partition",
    "Pathological",
    "PowerLaw",
    "Practical",
    "Samples",
    "Sent140",
    "Source",
    "Structure",
    "Synthetic",
    "Wakeword",
    "build",
]
