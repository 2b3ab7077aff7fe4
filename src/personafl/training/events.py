"""What happens in a run, told to whoever listens: progress bars, metric files, dashboards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from personafl.states import State
from personafl.storage.folder import RunFolder

if TYPE_CHECKING:
    from personafl.study.plan import Job

log = logging.getLogger("personafl")


class Listener:
    """Base class: override what you want to hear. Exceptions stop the run."""

    def started(self, manifest: dict[str, Any], round: int) -> None:
        """A run starts, or goes on after `round`."""

    def evaluated(self, round: int, clients: pa.Table, server: State) -> None:
        """Clients (all, or `eval_clients` of them) were evaluated: a row for each, and what the algorithm reports."""

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        """A round ended: its line of rounds.jsonl, and how long its parts took."""

    def ended(self) -> None:
        """The run ended, or was stopped."""


class RunFiles(Listener):
    """Writes rounds.jsonl, timings.jsonl and the evaluations to the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def evaluated(self, round: int, clients: pa.Table, server: State) -> None:
        if server:
            self.folder.write_evaluation(round, server)
        self.folder.write_clients(round, clients)

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        self.folder.append("rounds.jsonl", record)
        self.folder.append(
            "timings.jsonl",
            {"round": record["round"], **{f"{k}_seconds": round(v, 6) for k, v in seconds.items()}},
        )


class ProgressBar(Listener):
    """Rounds, accuracy and time left, on a terminal; silent where the output is piped."""

    def __init__(self, console: Console | None = None, label: str = "") -> None:
        self.console = console or Console(stderr=True)
        self.label = label
        self._progress: Progress | None = None

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._progress = _bars(self.console)
        label = self.label or manifest["algorithm"]["name"]
        self._task = self._progress.add_task(label, total=manifest["rounds"], completed=round, score="")
        self._progress.start()

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        assert self._progress is not None
        _advance(self._progress, self._task, record)

    def ended(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class StudyProgress:
    """One bar for all runs and one for each run that is going on; silent where the output is piped."""

    def __init__(self, jobs: int, console: Console) -> None:
        self._progress = _bars(console)
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

    def listeners(self, job: Job, reused: bool) -> Sequence[Listener]:
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
        self._task = self._progress.add_task(self._label, total=manifest["rounds"], completed=round, score="")
        self._study._going_on.add(self._task)
        self._study._count()

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        _advance(self._progress, self._task, record)

    def ended(self) -> None:
        self._progress.remove_task(self._task)
        self._study._going_on.remove(self._task)
        self._study._count()


def _advance(progress: Progress, task: TaskID, record: dict[str, Any]) -> None:
    progress.update(task, completed=record["round"])
    score = record.get("personal_accuracy", record.get("personal_loss"))
    if score is not None:
        name = "accuracy" if "personal_accuracy" in record else "loss"
        progress.update(task, score=f"{name} {score:.4f}")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_interactive,
    )
