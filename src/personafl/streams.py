"""Random numbers that depend on names, never on process state.

Every draw is a function of (seed, what it is for, client, round), so an answer does not depend on which
engine ran the clients, in what order, or on how many machines, and a run can be resumed or extended without
saving a generator.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

Key = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def name_key(name: str) -> np.uint64:
    """A 64-bit key for a name (a client id, a purpose), the same on every machine."""
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def mix(key: Key | np.uint64, value: NDArray[Any] | np.uint64 | int) -> Key:
    """Derive new keys from keys and values, elementwise (the splitmix64 finalizer).

    >>> bool(mix(np.uint64(1), 2) == mix(np.uint64(1), 2)), bool(mix(np.uint64(1), 2) == mix(np.uint64(2), 1))
    (True, False)
    """
    with np.errstate(over="ignore"):
        z = np.asarray(key, np.uint64) * _GAMMA + (np.asarray(value).astype(np.uint64) + np.uint64(1)) * _M1
        z = (z ^ (z >> np.uint64(30))) * _M1
        z = (z ^ (z >> np.uint64(27))) * _M2
        return np.asarray(z ^ (z >> np.uint64(31)))


def array_key(values: NDArray[Any]) -> int:
    """A number that follows from an array: a server that draws by its initial weights draws by the run's seed."""
    return int.from_bytes(blake2b(np.ascontiguousarray(values).tobytes(), digest_size=7).digest(), "little")


def stream_key(seed: int, purpose: str, round: int = 0) -> np.uint64:
    """The key of one purpose ("cohort", "batches", "model", …) in one round of a run."""
    return np.uint64(mix(mix(name_key(purpose), seed), round))


def generator(seed: int, purpose: str, round: int = 0) -> np.random.Generator:
    """A numpy generator for one purpose in one round of a run."""
    return np.random.Generator(np.random.Philox(key=int(stream_key(seed, purpose, round))))
