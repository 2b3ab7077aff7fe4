"""Progress bars of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from personafl.study.plan import PlannedRun
from personafl.training.events import Listener, advance, progress_bars


class StudyProgress:
    """One bar for all runs and one for each run that is going on; silent where the output is piped."""

    def __init__(self, jobs: int, console: Console) -> None:
        self._progress = progress_bars(console)
        self._all = self._progress.add_task("all runs", total=jobs, score="")
        self._begun = 0
        self._going_on: set[TaskID] = set()

    def __enter__(self) -> StudyProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._progress.update(self._all, completed=self._begun, total=self._begun)
        self._progress.stop()

    def listeners(self, job: PlannedRun, reused: bool) -> Sequence[Listener]:
        """What `run_plan` asks for before each run."""
        self._begun += 1
        if reused:
            self._count()
        settings = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in job.settings.items())
        label = f"{job.method} {settings} seed {job.seed}".replace("  ", " ")
        return [_OneRun(self, label)]

    def _count(self) -> None:
        # What was begun and does not go on is over, also where it failed before its first round.
        self._progress.update(self._all, completed=self._begun - len(self._going_on))


class _OneRun(Listener):
    def __init__(self, study: StudyProgress, label: str) -> None:
        self._study, self._progress, self._label = study, study._progress, label

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._manifest = manifest
        self._task = self._progress.add_task(self._label, total=manifest["rounds"], completed=round, score="")
        self._study._going_on.add(self._task)
        self._study._count()

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        advance(self._progress, self._task, record, self._manifest)

    def ended(self) -> None:
        self._progress.remove_task(self._task)
        self._study._going_on.remove(self._task)
        self._study._count()
