"""Numbers on their way to JSON, which has no NaN and needs no seventeen digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rounded(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """Values with so many significant digits; null for what is not finite.

    >>> rounded([0.123456789, 3.0, float("nan"), 1234567.0])
    [0.12346, 3, None, 1234600]
    """
    out: list[float | int | None] = []
    for value in values:
        if value is None or not np.isfinite(value):
            out.append(None)
            continue
        short = float(f"{float(value):.{digits}g}")
        out.append(int(short) if short == int(short) and abs(short) < 2**53 else short)
    return out


def floats(table: pa.Table, column: str) -> Floats:
    """A column as float64, null as NaN."""
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), np.float64)
