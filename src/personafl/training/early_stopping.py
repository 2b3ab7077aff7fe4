"""When a run ends before its last round: validation data shows no gain any more. Test data is not looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from personafl.errors import ConfigError
from personafl.metrics.measures import Measure
from personafl.settings import Schedule
from personafl.states import Ints


def why_stop(schedule: Schedule, measure: Measure, records: Iterable[Mapping[str, Any]]) -> str:
    """Why a run with these lines of rounds.jsonl, which is ranked by this measure, should end now; else empty.

    >>> from personafl.metrics.measures import LOSS
    >>> records = [{"round": n, "personal_val_loss": v} for n, v in ((1, 0.5), (2, 0.4), (3, 0.4), (4, 0.6))]
    >>> why_stop(Schedule(patience=2), LOSS, records)
    'personal_val_loss 0.4 of round 2 was not bettered in 2 evaluations (patience)'
    """
    if schedule.patience is None:
        return ""
    key, best, at, since = f"personal_val_{measure.name}", -math.inf, 0, 0
    for record in records:
        if record.get(key) is None:
            continue
        value = measure.better * float(record[key])
        if value > best + schedule.min_delta:
            best, at, since = value, int(record["round"]), 0
        else:
            since += 1
    if since < schedule.patience:
        return ""
    by = f" by more than {schedule.min_delta:g}" if schedule.min_delta else ""
    return f"{key} {measure.better * best:.4g} of round {at} was not bettered{by} in {since} evaluations (patience)"


def check_possible(schedule: Schedule, samples: Ints) -> None:
    """Refuse patience where nobody has validation data; `samples` are those of the clients that are evaluated."""
    if schedule.patience is not None and not samples.any():
        raise ConfigError(
            f"patience = {schedule.patience}: whether to stop is decided on validation data, and no client that is "
            "evaluated has any; give some, as by splits = [0.6, 0.2, 0.2], or leave patience out"
        )
