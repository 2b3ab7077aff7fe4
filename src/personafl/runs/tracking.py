"""What dashboards are told of a run, and the key by which a resumed run is recognized.

All name their curves alike: `accuracy/personal`, `loss/global`, `traffic/bytes_up`, `training/failed`,
`seconds/round`, … The step is the round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.metrics.measures import Measure
from personafl.storage.folder import flat
from personafl.tasks.base import column_of
from personafl.training.evaluation import WHO

# The same bins for every evaluation, so that one can be laid over the other.
_SHARE_BINS = np.linspace(0, 1, 21)
_BINS = 30


def scalars(record: dict[str, Any], seconds: dict[str, float]) -> dict[str, float]:
    """The curves that a round adds a point to, by name.

    >>> scalars({"round": 3, "failed": ["anna"], "lr": 0.1, "personal_accuracy": 0.75, "bytes_up": 80}, {"round": 0.5})
    {'training/lr': 0.1, 'accuracy/personal': 0.75, 'traffic/bytes_up': 80, 'training/failed': 1, 'seconds/round': 0.5}
    """
    out: dict[str, float] = {}
    for key, value in record.items():
        if key == "round" or not isinstance(value, int | float):
            continue
        group = "traffic" if key.startswith("bytes_") else "training"
        measured = _measured(key)
        out["/".join(measured) if measured else f"{group}/{key}"] = value
    out["training/failed"] = len(record["failed"])
    return out | {f"seconds/{part}": value for part, value in seconds.items()}


def _measured(key: str) -> tuple[str, str] | None:
    """What a key of a record measures, and of whose model: ("rmse", "personal_val")."""
    found = [(key.removeprefix(f"{who}_"), who) for who in WHO if key.startswith(f"{who}_")]
    return min(found, key=lambda pair: len(pair[0]), default=None)


def spreads(clients: pa.Table, measure: Measure) -> dict[str, tuple[NDArray[np.float64], Any]]:
    """The values of all clients that have any, with their bins."""
    out: dict[str, tuple[NDArray[np.float64], Any]] = {}
    for who in ("personal", "global"):
        column = clients.column(f"{who}_{column_of(measure)}")
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
        if measure.name == "accuracy":
            values = values / np.maximum(clients.column("n_test").to_numpy(), 1)
        values = values[np.isfinite(values)]
        if len(values):
            share = (measure.low, measure.high) == (0, 1)
            out[f"{who}_{measure.name}"] = (values, _SHARE_BINS if share else _BINS)
    return out


def imported(module: str, extra: str, name: str) -> Any:
    """A module of an extra, or a line that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"{name} is not installed, and its listener needs it: pip install 'personafl[{extra}]'"
        ) from None


def in_flight(around: BaseException | None) -> BaseException | None:
    """The exception that ends the run, if one does; not one that the caller was handling before the run."""
    error = sys.exception()
    return None if error is around else error


def first_line(error: BaseException | None) -> str:
    """The first line of an error's message; its type, where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def identity(name: str | None, settings: Mapping[str, str]) -> str:
    """A key of this run alone, the same after it is resumed: 16 hexadecimal digits."""
    lasting = [settings[key] for key in ("created", "seed", "algorithm.name", "resolved.fingerprint")]
    return sha256(json.dumps([name, *lasting]).encode()).hexdigest()[:16]


def texts(manifest: dict[str, Any]) -> dict[str, str]:
    """The manifest with dotted keys, its values as text; what is not set is left out."""
    return {key: str(value) for key, value in flat(manifest).items() if value is not None}
