"""Tables of results as the frames that people work with: pyarrow, pandas or polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import pyarrow as pa

from personafl.errors import ConfigError

Frame = Literal["arrow", "pandas", "polars"]
FRAMES = ("arrow", "pandas", "polars")


def as_frame(table: pa.Table | Sequence[Mapping[str, Any]], frame: Frame | None) -> Any:
    """A table, or rows with names, as a frame; None leaves it as it is.

    What a row does not have is null. pandas and polars are imported where they are asked for.

    >>> as_frame([{"round": 1}, {"round": 2, "loss": 0.5}], "arrow").to_pydict()
    {'round': [1, 2], 'loss': [None, 0.5]}
    """
    if frame is None:
        return table
    if frame not in FRAMES:
        raise ConfigError(f"frame must be one of {', '.join(FRAMES)}, not {frame!r}")
    arrow = table if isinstance(table, pa.Table) else _arrow(table)
    if frame == "arrow":
        return arrow
    library = _library(frame)
    return arrow.to_pandas() if frame == "pandas" else library.from_arrow(arrow)


def _arrow(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"frame={name!r} needs {name}: pip install {name}") from None
