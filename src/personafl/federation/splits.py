"""Which client has which sample, and which of them it trains, validates and tests on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import Array, Indices
from personafl.federation.checks import listing, many
from personafl.federation.partition import Partition
from personafl.streams import generator, mix, name_key, stream_key

DEFAULT_SPLITS = (0.7, 0.1, 0.2)
Splitting = Literal["random", "end"]
"""end: the last of each client's samples, in their order, are for testing, those before them for validation."""


def split_samples(
    ids: Sequence[str], owner: Indices, splits: Sequence[float], seed: int, rank: Array | None = None
) -> tuple[Indices, Indices]:
    """An order that puts each client's samples as [train | validation | test], and the bounds.

    A sample's place follows from (seed, client id, its position in the client), so a client's split is the
    same whoever else is there. With `rank`, one value a sample, the order is that of the ranks instead.

    >>> split_samples(["ann"], np.zeros(4, int), (0.5, 0.0, 0.5), 0, rank=np.array([3, 9, 2, 5]))
    (array([2, 0, 3, 1]), array([[0, 2, 2, 4]]))
    """
    sizes = np.bincount(owner, minlength=len(ids)).astype(np.int64)
    counts = _split_counts(sizes, splits)
    if rank is not None:
        return np.lexsort((rank, owner)), bounds_of(counts)
    by_client = np.argsort(owner, kind="stable")
    position = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    keys = np.array([name_key(client) for client in ids], np.uint64)
    shuffle = mix(np.repeat(mix(keys, stream_key(seed, "split")), sizes), position.astype(np.uint64))
    order = by_client[np.lexsort((shuffle, owner[by_client]))]
    return order, bounds_of(counts)


def sample_ranks(splitting: str, time: Any, samples: int) -> Array | None:
    """What orders the samples where the end of each client's data is for testing; None where chance decides."""
    if splitting not in get_args(Splitting):
        raise ConfigError(f"splitting = {splitting!r}: must be random, or end (a client's last samples are for test)")
    if time is None:
        return None if splitting == "random" else np.arange(samples)
    ranks = np.asarray(time.cpu() if isinstance(time, torch.Tensor) else time)
    if ranks.shape != (samples,):
        raise DataError(f"time has shape {ranks.shape}, expected ({samples},): when each sample was taken")
    if ranks.dtype.kind in "UM":
        try:
            ranks = ranks.astype("datetime64[us]").astype(np.int64)
        except ValueError as error:
            raise DataError(f"time is text that is no date ({error}); expected numbers or dates") from error
    if ranks.dtype.kind not in "iuf" or (ranks.dtype.kind == "f" and not np.isfinite(ranks).all()):
        raise DataError(f"time holds {ranks.dtype} values; expected numbers or dates, one a sample, none missing")
    return ranks


def bounds_of(counts: Indices) -> Indices:
    """(M, 3) sizes to (M, 4) bounds."""
    edges = np.concatenate([[0], np.cumsum(counts.ravel())])
    starts = edges[:-1].reshape(-1, 3)
    return np.asarray(np.concatenate([starts, edges[3::3, None]], axis=1), np.int64)


def dealt_clients(
    partition: Partition, labels: Array, seed: int
) -> tuple[list[str], Indices, Indices, list[str] | None, list[str]]:
    """What a partition makes: ids, the samples that it deals, the position of each one's client, groups and notes."""
    if isinstance(partition, type) or not callable(partition) or not hasattr(partition, "name"):
        given = f"the class {partition.__name__}" if isinstance(partition, type) else repr(partition)
        raise ConfigError(f"partition is {given}: give one such as pf.partition.Dirichlet(clients=20, alpha=0.3)")
    dealt = partition(labels, generator(seed, "partition"))
    samples, owner = _dealt_samples(dealt.parts, len(labels), partition.name)
    return [f"client-{m}" for m in range(len(dealt.parts))], samples, owner, dealt.groups, dealt.notes


def _dealt_samples(parts: Sequence[Indices], samples: int, partition: str) -> tuple[Indices, Indices]:
    """The samples that a partition deals, client after client, and the position of each one's client."""
    if not parts:
        raise DataError(f"partition {partition} made no client")
    dealt = np.concatenate(parts).astype(np.int64)
    if dealt.size and not 0 <= dealt.min() <= dealt.max() < samples:
        raise DataError(f"partition {partition} deals samples outside 0..{samples - 1}")
    if (twice := np.flatnonzero(np.bincount(dealt, minlength=samples) > 1)).size:
        raise DataError(f"partition {partition} deals {many(len(twice), 'sample')} more than once, such as {twice[0]}")
    return dealt, np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def natural_clients(clients: Any, samples: int) -> tuple[list[str], Indices]:
    """The ids in natural order, and the position of each sample's client."""
    keys = clients.cpu().numpy() if isinstance(clients, torch.Tensor) else np.asarray(clients)
    if keys.shape != (samples,):
        raise DataError(f"clients has shape {keys.shape}, expected ({samples},): the client of each sample")
    if keys.dtype.kind == "f" or any(key is None or key != key for key in (keys if keys.dtype.kind == "O" else ())):
        raise DataError("clients must be strings or integers, one for each sample, none missing")
    names, owner = np.unique(keys.astype(str), return_inverse=True)
    ranked = sorted(range(len(names)), key=lambda k: natural_order(str(names[k])))
    return [str(names[k]) for k in ranked], np.argsort(ranked)[owner]


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Sorts client-2 before client-10: digits compare as numbers."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", name))], name


def groups_of_clients(groups: Any, ids: Sequence[str], owner: Indices | None) -> list[str] | None:
    """One group for each client, of a mapping or, where samples have owners, of one entry a sample."""
    if groups is None:
        return None
    if isinstance(groups, Mapping):
        named = {str(client): str(group) for client, group in groups.items()}
        if missing := [client for client in ids if client not in named]:
            raise DataError(f"{many(len(missing), 'client')} without a group: {listing(missing)}; give all or none")
        if unknown := sorted(set(named) - set(ids)):
            raise DataError(f"groups for unknown clients: {listing(unknown)}")
        return [named[client] for client in ids]
    each = np.asarray(groups).astype(str)
    if owner is None or each.shape != owner.shape:
        raise DataError(f"groups has shape {each.shape}: give one entry a sample, or a mapping of client to group")
    pairs = sorted(set(zip(owner.tolist(), each.tolist(), strict=True)))
    if torn := [client for client, count in Counter(client for client, _ in pairs).items() if count > 1]:
        member_of = ", ".join(group for client, group in pairs if client == torn[0])
        raise DataError(
            f"{many(len(torn), 'client')} in more than one group: {listing([ids[m] for m in torn])} "
            f"({ids[torn[0]]} is in {member_of})"
        )
    return [group for _, group in pairs]


def _split_counts(sizes: Indices, splits: Sequence[float]) -> Indices:
    """How many samples each client has for training, validation and test: (M, 3), by largest remainder."""
    numbers = isinstance(splits, Sequence | np.ndarray) and all(isinstance(s, float | int | np.number) for s in splits)
    shares = np.asarray(splits, float) if numbers else np.zeros(0)
    if shares.shape != (3,) or not (shares >= 0).all() or shares[0] <= 0 or abs(shares.sum() - 1) > 1e-6:
        raise ConfigError(
            f"splits = {splits!r} must be the shares of train, validation and test: none negative, train above 0, sum 1"
        )
    ideal = np.round(sizes[:, None] * shares, 9)  # 0.7 · 10 is 7, not 6.999…
    counts: Indices = np.floor(ideal).astype(np.int64)
    # Ties go to test, then validation: a client with two samples has one to train and one to test on.
    preferred = (ideal - counts) + np.array([0.0, 1e-10, 2e-10])
    rank = np.argsort(np.argsort(-preferred, axis=1), axis=1)
    counts += rank < (sizes - counts.sum(axis=1))[:, None]
    train, validation, test = 0, 1, 2
    for receiver, giver in ((train, validation), (train, test), (test, validation)):
        lacks = (counts[:, receiver] == 0) & (counts[:, giver] > 0) & (shares[receiver] > 0)
        counts[lacks, giver] -= 1
        counts[lacks, receiver] += 1
    return counts
