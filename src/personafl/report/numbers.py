"""Numbers on their way to JSON, which has no NaN and needs no seventeen digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


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
