"""Which samples each client uses at each step: a function of (seed, client, round) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from personafl.states import Ints
from personafl.streams import Key, mix


@dataclass(frozen=True)
class BatchPlan:
    """`positions[k, s]` are the samples of client k's step s, as offsets into its training data.

    `counts[k, s]` of them are real; the rest are padding (and point at a sample of the same client). `expected[k]` is
    how many there are on average, where samples are drawn independently.
    """

    positions: Ints
    counts: Ints
    expected: NDArray[np.float64] | None = None


def draw(sizes: Ints, keys: Key, batch_size: int | Ints, steps: Ints) -> BatchPlan:
    """Draw batches without replacement within an epoch; every epoch has a new order.

    Parameters
    ----------
    sizes
        Number of training samples of each client.
    keys
        One key per client, already specific to seed, round and purpose.
    batch_size
        Samples per step, of all clients or of each; the last batch of an epoch may be smaller. 0 for all clients takes
        all samples at every step.
    steps
        Number of steps of each client.

    Examples
    --------
    >>> plan = draw(np.array([5]), np.array([1], np.uint64), batch_size=2, steps=np.array([3]))
    >>> plan.counts.tolist(), sorted(plan.positions[0][np.arange(2) < plan.counts[0][:, None]].tolist())
    ([[2, 2, 1]], [0, 1, 2, 3, 4])
    """
    most = int(steps.max(initial=0))
    whole = isinstance(batch_size, int) and batch_size == 0
    size = sizes if whole else np.minimum(sizes, batch_size)
    width = int(size.max(initial=0))
    per_epoch = -(-sizes // size)
    step = np.arange(most)
    if whole:
        # The whole data at every step: no order to draw.
        slot = np.minimum(np.arange(width), sizes[:, None] - 1)
        positions = np.broadcast_to(slot[:, None, :], (len(sizes), most, width))
        return BatchPlan(positions, np.broadcast_to(sizes[:, None], (len(sizes), most)))

    epochs = -(-steps // per_epoch)
    order, first = _orders(sizes, keys, epochs)
    epoch, batch = (
        np.minimum(step // per_epoch[:, None], np.maximum(epochs - 1, 0)[:, None]),
        step % per_epoch[:, None],
    )
    counts = np.minimum(size[:, None], sizes[:, None] - batch * size[:, None])
    slot = (first[:, None] + epoch * sizes[:, None] + batch * size[:, None])[..., None]
    slot = slot + np.minimum(np.arange(width), counts[..., None] - 1)
    if not len(order):
        return BatchPlan(np.zeros_like(slot), counts)
    positions = order[np.minimum(slot, len(order) - 1)]
    positions[epochs == 0] = 0  # a client without steps has no order of its own
    return BatchPlan(positions, counts)


def draw_independently(sizes: Ints, keys: Key, batch_size: int | Ints, steps: Ints) -> BatchPlan:
    """Draw batches in which every sample is with probability batch_size / size, independently of all else (Poisson).

    Batches then differ in size, and may be empty: that is what protects a sample by not being looked at, and what
    `accounting.sample_epsilon` is about. Parameters as of `draw`; 0 takes all samples at every step.

    Examples
    --------
    >>> plan = draw_independently(np.array([1000]), np.array([1], np.uint64), batch_size=20, steps=np.array([500]))
    >>> plan.expected.tolist(), round(float(plan.counts.mean())), round(float(plan.counts.var()))
    ([20.0], 20, 19)
    """
    if isinstance(batch_size, int) and batch_size == 0:
        plan = draw(sizes, keys, 0, steps)
        return BatchPlan(plan.positions, plan.counts, sizes.astype(np.float64))
    most = int(steps.max(initial=0))
    expected = np.minimum(sizes, batch_size).astype(np.float64)
    counts = np.zeros((len(sizes), most), np.int64)
    found = []
    for k, (size, count) in enumerate(zip(sizes.tolist(), steps.tolist(), strict=True)):
        bits = mix(mix(keys[k], np.arange(count))[:, None], np.arange(size)[None, :])
        step, position = np.nonzero((bits >> np.uint64(11)) * 2.0**-53 < expected[k] / max(size, 1))
        counts[k, :count] = np.bincount(step, minlength=count)
        found.append((step, position))
    positions = np.zeros((len(sizes), most, max(1, int(counts.max(initial=1)))), np.int64)
    for k, (step, position) in enumerate(found):
        first = np.cumsum(counts[k]) - counts[k]
        positions[k, step, np.arange(len(step)) - first[step]] = position
    return BatchPlan(positions, counts, expected)


def _orders(sizes: Ints, keys: Key, epochs: Ints) -> tuple[Ints, Ints]:
    """A random order of each client's samples for each of its epochs, end to end, and where each client starts.

    All are drawn by one sort: of (which client and epoch, 32 random bits, position).
    """
    client = np.repeat(np.arange(len(sizes)), epochs)
    number = np.arange(len(client)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    length = sizes[client]
    start = np.cumsum(length) - length
    segment = np.repeat(np.arange(len(client)), length)
    position = np.arange(len(segment)) - start[segment]
    bits = mix(mix(keys[client], number)[segment], position)
    tagged = (segment.astype(np.uint64) << np.uint64(32)) | (bits >> np.uint64(32))
    width = int(length.max(initial=1)).bit_length()
    if len(client).bit_length() + width <= 32:
        # The position fits into the number as well, and a sort is several times faster than an argsort.
        tagged = (tagged << np.uint64(width)) | position.astype(np.uint64)
        tagged.sort()
        order = (tagged & np.uint64((1 << width) - 1)).astype(np.int64)
    else:
        order = position[np.argsort(tagged, kind="stable")]
    total = sizes * epochs
    return order, np.cumsum(total) - total
