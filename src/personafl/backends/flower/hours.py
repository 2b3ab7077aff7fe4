"""When a site works: windows of its own local time, such as `mon-fri 20:00-06:00`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from personafl.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(?:(?P<days>[a-z,-]+) +)?(?P<begin>\d\d:\d\d) ?- ?(?P<end>\d\d:\d\d)")


def is_within(windows: tuple[str, ...], now: datetime) -> bool:
    """Whether a time lies in one of some windows; one that ends before it begins goes on after midnight.

    Examples
    --------
    >>> friday_night = datetime(2026, 11, 20, 23, 30)
    >>> is_within(("mon-fri 20:00-06:00",), friday_night), is_within(("sat,sun 00:00-24:00",), friday_night)
    (True, False)
    >>> is_within(("mon-fri 20:00-06:00",), datetime(2026, 11, 21, 5, 0))  # it began on Friday
    True
    """
    return any(_holds(*_parsed(window), now) for window in windows)


def check_windows(windows: tuple[str, ...]) -> None:
    """Refuse what is no window, with one that is."""
    for window in windows:
        _parsed(window)


def _holds(days: set[int], begin: int, end: int, now: datetime) -> bool:
    minute = 60 * now.hour + now.minute
    if begin < end:
        return now.weekday() in days and begin <= minute < end
    yesterday = (now - timedelta(days=1)).weekday()
    return (now.weekday() in days and minute >= begin) or (yesterday in days and minute < end)


def _parsed(window: str) -> tuple[set[int], int, int]:
    """The days on which a window begins, and its begin and end in minutes of the day."""
    found = _WINDOW.fullmatch(window.strip().lower())
    days = _days(found["days"] or "mon-sun") if found else set()
    begin, end = (_minutes(found[part]) if found else -1 for part in ("begin", "end"))
    if not days or min(begin, end) < 0 or begin == end or begin == 24 * 60:
        raise ConfigError(
            f"hours = {window!r}: must be a window of local time, such as 'mon-fri 20:00-06:00' or '22:00-06:00'"
        )
    return days, begin, end


def _minutes(clock: str) -> int:
    hour, minute = map(int, clock.split(":"))
    return 60 * hour + minute if minute < 60 and 60 * hour + minute <= 24 * 60 else -1


def _days(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            return set()
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, end + 1 + 7 * (end < begin))}
    return found
