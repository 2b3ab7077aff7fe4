"""Runs seen from outside while they go on.

Nothing here writes into a run folder, and nothing takes its lock: flock cannot be asked whether it is taken, and a lock
taken only for a moment would be enough to turn away a run that starts in that moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from personafl.errors import RunError
from personafl.metrics.measures import LOSS, Measure, measures_in, ranking
from personafl.storage.folder import RunFolder
from personafl.storage.reading import content, problems, read_lines
from personafl.storage.schemas import Round, Timing

RunState = Literal["starting", "going on", "stopped", "finished"]

# Seconds of silence after which a run whose lock nobody is seen to hold is taken for stopped: while the length of a
# round is not known yet, and at least, where three times the slowest recent round is less.
FIRST_PATIENCE, PATIENCE = 60.0, 10.0
BETWEEN_RUNS = 30.0  # a comparison makes the next federation
RECENT = 50
LONGEST = 1e12  # seconds that are told


class Watch:
    """Run folders, and folders with runs in them such as a comparison's, watched together.

    >>> Watch([Path("/nowhere")])
    Traceback (most recent call last):
      ...
    personafl.errors.RunError: /nowhere holds no run: name a run folder, or a folder with runs in it
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(dict.fromkeys(paths))
        self._runs: dict[Path, WatchedRun] = {}
        for path in self.paths:
            if not found_runs(path):
                raise RunError(f"{path} holds no run: name a run folder, or a folder with runs in it")

    def look(self) -> list[WatchedRun]:
        """Read what is new. Runs that appear in a watched folder come along."""
        for path in (run for given in self.paths for run in found_runs(given)):
            self._runs.setdefault(path, WatchedRun(path)).look()
        return list(self._runs.values())

    @property
    def over(self) -> bool:
        """Whether nothing goes on any more, as far as the last look could tell."""
        if any(run.state in ("starting", "going on") for run in self._runs.values()):
            return False
        return all(path in self._runs or self._folder_over(path) for path in self.paths)

    @property
    def finished(self) -> bool:
        """Whether all runs came to their ends."""
        return all(run.state == "finished" for run in self._runs.values())

    def _folder_over(self, path: Path) -> bool:
        last = max(last_sign(run) for run in found_runs(path))
        return _changed(path / "comparison.json") >= last or time.time() - last > BETWEEN_RUNS


class WatchedRun:
    """One run folder, looked at again and again; each look reads only what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: RunState = "starting"
        self.manifest: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []
        """The lines of rounds.jsonl, each with what timings.jsonl says of the round."""
        self._folder = RunFolder(path)
        self._rounds, self._timings = Lines(self._folder.rounds_file, Round), Lines(self._folder.timings_file, Timing)
        self._seconds: dict[int, dict[str, Any]] = {}
        self._reported = 0

    def look(self) -> None:
        """Bring everything up to date."""
        held, complete = lock_held(self.path), self._complete()  # first: a finished run then has all of its records
        again, timings = self._timings.new()
        self._seconds = {} if again else self._seconds
        self._seconds |= {timing["round"]: timing for timing in timings}
        again, records = self._rounds.new()
        self.records = records if again else self.records + records
        if again:  # a resumed run drops what came after its checkpoint
            self._reported = min(self._reported, self.round)
        for record in self.records[-len(records) - 1 :]:  # the times of a round come a moment after its record
            record |= self._seconds.get(record["round"], {})
        if complete and not held:
            self.state = "finished"
        elif held or not self._silent():
            self.state = "going on" if self.manifest else "starting"
        else:
            self.state = "stopped"

    def news(self) -> list[dict[str, Any]]:
        """The records that were not given out yet."""
        ready = [r for r in self.records if "round_seconds" in r or self.state in ("stopped", "finished")]
        new = [record for record in ready if record["round"] > self._reported]
        self._reported = new[-1]["round"] if new else self._reported
        return new

    # --- what people want to know --------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The last round that was recorded; 0 before the first."""
        return int(self.records[-1]["round"]) if self.records else 0

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have; 0 as long as there is no run.toml."""
        return int(self.manifest.get("rounds", 0))

    @property
    def measure(self) -> Measure:
        """What ranks models, or the loss where that was not measured."""
        found = ranking(measures_in(self.manifest, self.records))
        return found if any(f"personal_{found.name}" in record for record in self.records) else LOSS

    def curve(self, who: Literal["personal", "global"]) -> list[float]:
        """The measure at each evaluation so far."""
        key = f"{who}_{self.measure.name}"
        return [record[key] for record in self.records if key in record]

    @property
    def seconds_per_round(self) -> float | None:
        """Mean of the recent rounds, evaluations included."""
        known = [record["round_seconds"] for record in self.records[-RECENT:] if "round_seconds" in record]
        return float(np.mean(known)) if known else None

    @property
    def left(self) -> timedelta | None:
        """How long it will take yet, if it goes on as it did."""
        each = self.seconds_per_round
        seconds = None if each is None else each * max(0, self.rounds - self.round)
        return None if seconds is None else timedelta(seconds=round(min(seconds, LONGEST)))

    @property
    def failures(self) -> int:
        """Updates that were left out because they were not finite."""
        return sum(len(record.get("failed", [])) for record in self.records)

    # --- is it alive? --------------------------------------------------------------------------------------------

    def _complete(self) -> bool:
        self.manifest = self._folder.manifest() if self._folder.exists else {}
        return bool(self.manifest) and self._folder.complete

    def _silent(self) -> bool:
        """Whether nothing was heard for so long that it must have stopped, unless its lock says otherwise.

        Who holds a lock on another machine is not seen here, nor on systems that keep no list of locks.
        """
        slowest = max((record.get("round_seconds", 0.0) for record in self.records[-RECENT:]), default=0.0)
        patience = max(PATIENCE, 3 * slowest) if slowest else FIRST_PATIENCE
        return time.time() - last_sign(self.path) > patience


class Lines:
    """The records of a .jsonl file that grows."""

    def __init__(self, path: Path, kind: Any) -> None:
        self.path, self.kind = path, kind
        self._at = 0
        self._file: int | None = None

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file was begun again since the last time, and the records that are new then."""
        try:
            with problems(self.path):
                about = self.path.stat()
            again = about.st_ino != self._file or about.st_size < self._at
            self._at, self._file = 0 if again else self._at, about.st_ino
            text = content(self.path, start=self._at)
        except FileNotFoundError:
            self._at, self._file = 0, None
            return True, []
        whole = text.rfind(b"\n") + 1
        self._at += whole
        return again, read_lines(self.path, self.kind, text[:whole])


def found_runs(path: Path) -> list[Path]:
    """The run folder itself, or the run folders in it, the oldest first."""
    if _is_run(path):
        return [path]
    try:
        inside = [entry for entry in path.iterdir() if _is_run(entry)]
    except OSError:
        return []
    return sorted(inside, key=lambda run: (_changed(run / ".lock"), run.name))


def lock_held(path: Path) -> bool:
    """Whether a process is seen to hold the lock of a run folder (on Linux, in /proc/locks)."""
    try:
        about = os.stat(path / ".lock")
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    wanted = (f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}", str(about.st_ino))
    for line in lines:  # such as "2: FLOCK  ADVISORY  WRITE 4711 08:02:3932394 0 EOF"
        words = line.split()
        if "FLOCK" in words and tuple(words[-3].rsplit(":", 1)) == wanted:
            return True
    return False


def last_sign(path: Path) -> float:
    """When a run last wrote anything that a look from outside can see."""
    names = (".lock", "run.toml", "rounds.jsonl", "timings.jsonl", "clients.parts", "checkpoint", "models")
    return max(_changed(path / name) for name in names)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last values as a line of blocks, the lowest of them at the bottom and the highest at the top.

    >>> sparkline([0.1, 0.2, 0.4, 0.8])
    '▁▂▄█'
    """
    shown = [value for value in values if np.isfinite(value)][-width:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / ((high - low) or 1))] for value in shown)


def _is_run(path: Path) -> bool:
    return (path / "run.toml").is_file() or (path / ".lock").is_file()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
