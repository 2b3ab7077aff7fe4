"""Validation samples that algorithms do not see, so that others can be judged against them on equal terms.

An algorithm that chooses something on validation data (PersFL: its teacher, and one of fifteen students) is good there
because it has chosen there. Where scores on validation data are compared, between the settings of a search or between
methods, a share of each client's validation samples (`local.held_back`) is kept from the algorithm, and the scores are
those on this part. Which samples follows from the seed and the client alone: it is the same for all methods.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from personafl.states import Ints
from personafl.streams import Key, mix, name_key, stream_key


def held_back(keys: Key, sizes: Ints, share: float, seed: int) -> NDArray[np.bool_]:
    """Which validation samples of some clients are held back, client after client.

    Of n samples ⌊share·n + u⌋ are, with a u in [0, 1) of the client's own: share·n on average, also where clients have
    a single sample each.

    Parameters
    ----------
    keys
        The clients' keys, see `Federation.keys`.
    sizes
        How many validation samples each has.

    Examples
    --------
    >>> held_back(np.array([7, 8], np.uint64), np.array([2, 4]), 0.5, seed=0).sum()
    np.int64(3)
    """
    own = mix(keys, stream_key(seed, "held back"))
    u = (mix(own, name_key("count")) >> np.uint64(11)) * 2.0**-53
    counts = np.floor(share * sizes + u).astype(np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.lexsort((mix(own[owner], place), owner))
    held = np.empty(len(owner), np.bool_)
    held[order] = place < counts[owner]
    return held
