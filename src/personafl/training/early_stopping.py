"""When a run ends before its last round: validation data shows no gain any more. Test data is not looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from personafl.errors import ConfigError
from personafl.settings import Schedule
from personafl.states import Ints


def watched(record: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Which number of an evaluation counts, and whether more of it is better; None where there is none.

    >>> watched({"personal_accuracy": 0.9, "personal_val_accuracy": 0.8, "personal_val_loss": 0.7})
    ('personal_val_accuracy', True)
    """
    for key, more in (("personal_val_accuracy", True), ("personal_val_loss", False)):
        if key in record:
            return key, more
    return None


def why_stop(schedule: Schedule, records: Iterable[Mapping[str, Any]]) -> str:
    """Why a run with these lines of rounds.jsonl should end now; empty where it goes on.

    >>> schedule = Schedule(patience=2)
    >>> why_stop(schedule, [{"round": n, "personal_val_loss": v} for n, v in ((1, 0.5), (2, 0.4), (3, 0.4), (4, 0.6))])
    'personal_val_loss 0.4 of round 2 was not bettered in 2 evaluations (patience)'
    """
    if schedule.patience is None:
        return ""
    best, at, key, since = -math.inf, 0, "", 0
    for record in records:
        if (found := watched(record)) is None:
            continue
        key, more = found
        value = float(record[key]) if more else -float(record[key])
        if value > best + schedule.min_delta:
            best, at, since = value, int(record["round"]), 0
        else:
            since += 1
    if since < schedule.patience:
        return ""
    by = f" by more than {schedule.min_delta:g}" if schedule.min_delta else ""
    return f"{key} {abs(best):.4g} of round {at} was not bettered{by} in {since} evaluations (patience)"


def check_possible(schedule: Schedule, samples: Ints) -> None:
    """Refuse patience where nobody has validation data; `samples` are those of the clients that are evaluated."""
    if schedule.patience is not None and not samples.any():
        raise ConfigError(
            f"patience = {schedule.patience}: whether to stop is decided on validation data, and no client that is "
            "evaluated has any; give some, as by splits = [0.6, 0.2, 0.2], or leave patience out"
        )
