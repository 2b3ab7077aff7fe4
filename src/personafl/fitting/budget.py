"""How long a fit may take: "10m", "90s", "1h30m" or a number of seconds, and the clock that counts it."""

from __future__ import annotations

import re
import time
from typing import Any

from personafl.errors import ConfigError

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(budget: Any) -> float:
    """A budget in seconds.

    >>> seconds_of("1h30m"), seconds_of("90s"), seconds_of(45)
    (5400.0, 90.0, 45.0)
    """
    found = 0.0
    if isinstance(budget, int | float) and not isinstance(budget, bool):
        found = float(budget)
    elif isinstance(budget, str):
        text = budget.strip().lower()
        parts = _PART.findall(text)
        if parts and not _PART.sub("", text).strip():
            found = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        elif re.fullmatch(r"\d+(\.\d+)?", text):
            found = float(text)
    if not 0 < found < 1e9:
        raise ConfigError(f"budget = {budget!r}: must be a time above 0, such as '10m', '90s', '1h30m', or seconds")
    return found


def written(seconds: float) -> str:
    """Seconds for people.

    >>> written(5400), written(75), written(8.04)
    ('1h 30m', '1m 15s', '8.0s')
    """
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [(hours, "h"), (minutes, "m"), (rest if not hours else 0, "s")]
    return " ".join(f"{n}{unit}" for n, unit in parts if n) or "0s"


class Clock:
    """Counts the seconds of a fit since `begun` (left out, now), those of earlier sessions included."""

    def __init__(self, budget: float, spent: float = 0.0, begun: float | None = None) -> None:
        self.budget, self._begun = budget, (time.monotonic() if begun is None else begun) - spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self._begun

    @property
    def left(self) -> float:
        return self.budget - self.spent
