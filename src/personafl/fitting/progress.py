"""What a fit shows while it goes on: what is tried, what leads, how much time is left."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn

from personafl.fitting.budget import Clock, written
from personafl.fitting.candidates import Candidate
from personafl.fitting.search import Attempt
from personafl.metrics.measures import Measure


class _Running(Progress):
    """A bar that goes on by itself, as what is trained elsewhere does not tell of its rounds."""

    clock: Clock

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            left = max(self.clock.left, 0.0)
            task.completed, task.fields["left"] = self.clock.budget - left, written(left)
        yield from super().get_renderables()


class FitProgress:
    """A bar for the budget; silent where the output is piped."""

    def __init__(self, measure: Measure, clock: Clock, wanted: bool, console: Console | None = None) -> None:
        self._measure = measure
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.fields[left]:>9} left"), BarColumn(30), TextColumn("{task.description}"))
        self._progress = _Running(*columns, console=console, disable=not (wanted and console.is_interactive))
        self._progress.clock = clock
        self._task = self._progress.add_task("", total=clock.budget, left=written(clock.budget))
        self._leads = ""
        self._progress.start()

    def tried(self, attempt: Attempt, leader: Candidate | None) -> None:
        """A candidate is trained now."""
        self.ended(leader)
        what = "training again, with the validation data:" if attempt.again else "trying"
        self.say(f"{what} {attempt.candidate.described()}, {attempt.rounds} rounds")

    def ended(self, leader: Candidate | None) -> None:
        """A candidate was trained."""
        if leader is not None:
            score = (self._measure.better or 1) * leader.score
            self._leads = f" · leading: {leader.described()}, {self._measure.write(score)} on validation data"

    def say(self, what: str) -> None:
        """What goes on."""
        self._progress.update(self._task, description=what + self._leads)

    def close(self) -> None:
        """Stop showing."""
        self._progress.stop()
