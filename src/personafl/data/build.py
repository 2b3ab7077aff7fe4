"""`build`: a source and a partition make a federation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.data.base import Owned, Samples, Source
from personafl.data.partitions import PARTITIONS, Natural, Partition
from personafl.data.sources import SOURCES, Files
from personafl.errors import ConfigError
from personafl.federation import DEFAULT_SPLITS, Federation
from personafl.federation.splits import Splitting, natural_clients
from personafl.inputs import parts, whole


def build(
    source: Source | Files,
    partition: Partition | None = None,
    splits: Sequence[float] | None = None,
    seed: int = 0,
    splitting: Splitting = "random",
) -> Federation:
    """Make a federation of a source and, where the source needs one, a partition.

    Parameters
    ----------
    source : Source
        Such as `Digits()` or `MNIST()`.
    partition : Partition, optional
        Needed for a pool of samples, refused by a source that comes with its own clients. Left out for a
        source whose samples have natural owners, those are the clients, as with `Natural()`.
    splits : three floats, optional
        Shares of train, validation and test; left out, those of the partition's paper, else the source's own.
    seed
        The samples of a synthetic source, the partition and the splits follow from it.
    splitting
        `random`, or `end`: the last of each client's samples, in their order, are for testing.

    Examples
    --------
    >>> from personafl.data import Digits, Dirichlet
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
            for name, kind in SOURCES.usable()[0].items()
            if hasattr(kind, "owners") or getattr(kind, "structure", None) == "natural"
        )
        raise ConfigError(
            f"data {source.name!r} does not know whose its samples are, so it has no partition 'natural'; known to "
            f"have owners: {known}"
        )
    if source.splits is None and splits is not None:
        raise ConfigError(f"data {source.name!r} decides train and test itself: leave out the splits")
    if source.splits is None and splitting != "random":
        raise ConfigError(f"data {source.name!r} decides train and test itself: leave out splitting")
    if isinstance(source, Files):  # what is in the files decides what they are
        return source.federation(partition, splits, seed, splitting)
    samples = source.load(seed)
    constants = {what: _tensor(value) for what, value in samples.constants.items()}
    if samples.bounds is not None and samples.clients is not None:
        return Federation(
            x=whole({name: _tensor(value) for name, value in parts(samples.x).items()}),
            y=_tensor(samples.y),
            bounds=samples.bounds,
            ids=tuple(map(str, samples.clients)),
            groups=None if samples.groups is None else tuple(map(str, samples.groups)),
            classes=samples.classes,
            name=source.name,
            truth=samples.truth,
            notes=samples.notes,
            constants=constants,
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
        splitting=splitting,
        seed=seed,
        classes=samples.classes,
        name=source.name,
        truth=samples.truth if natural else None,
        notes=samples.notes,
        constants=constants,
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
        x=whole({name: value[kept] for name, value in parts(samples.x).items()}),
        y=samples.y[kept],
        clients=owners[kept],
        groups=None if samples.groups is None else samples.groups[kept],
        truth={what: value[stay] for what, value in samples.truth.items()},
    )


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array itself where it may be written to, else a copy: torch knows no read-only memory."""
    return torch.from_numpy(np.require(array, requirements="W"))
