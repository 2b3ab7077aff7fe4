"""What a fit shows while it goes on: what is tried, what leads, how much time is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from personafl.fitting.budget import Clock, written
from personafl.fitting.candidates import Candidate
from personafl.fitting.search import Attempt
from personafl.metrics.measures import Measure
from personafl.training.events import Listener


class FitProgress:
    """A bar for the budget; silent where the output is piped."""

    def __init__(self, measure: Measure, clock: Clock, wanted: bool, console: Console | None = None) -> None:
        self._measure, self._clock = measure, clock
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.fields[left]:>9} left"), BarColumn(30), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, disable=not (wanted and console.is_interactive))
        self._task = self._progress.add_task("", total=clock.budget, left=written(clock.budget))
        self._leads = ""
        self._progress.start()

    def tried(self, attempt: Attempt, leader: Candidate | None) -> Sequence[Listener]:
        """A candidate is trained now."""
        self.ended(leader)
        what = "training again, with the validation data:" if attempt.again else "trying"
        self.say(f"{what} {attempt.candidate.described()}, {attempt.rounds} rounds")
        return [_Rounds(self)]

    def ended(self, leader: Candidate | None) -> None:
        """A candidate was trained."""
        if leader is not None:
            score = (self._measure.better or 1) * leader.score
            self._leads = f" · leading: {leader.described()}, {self._measure.write(score)} on validation data"

    def say(self, what: str) -> None:
        """What goes on."""
        self._progress.update(self._task, description=what + self._leads)
        self.tick()

    def tick(self) -> None:
        """Time went by."""
        left = max(self._clock.left, 0.0)
        self._progress.update(self._task, completed=self._clock.budget - left, left=written(left))

    def close(self) -> None:
        """Stop showing."""
        self._progress.stop()


class _Rounds(Listener):
    def __init__(self, shown: FitProgress) -> None:
        self._shown = shown

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        self._shown.tick()
