"""What happens in a run, told to whoever listens: progress bars, metric files, dashboards."""

from __future__ import annotations

import logging
from typing import Any

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

from personafl.metrics.measures import score_in
from personafl.states import State
from personafl.storage.folder import RunFolder

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
            self.folder.evaluations.write_server(round, server)
        self.folder.evaluations.write(round, clients)

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        self.folder.append("rounds.jsonl", record)
        self.folder.append(
            "timings.jsonl", {"round": record["round"], **{f"{k}_seconds": round(v, 6) for k, v in seconds.items()}}
        )


class ProgressBar(Listener):
    """Rounds, the measure that ranks and time left, on a terminal; silent where the output is piped."""

    def __init__(self, console: Console | None = None, label: str = "") -> None:
        self.console = console or Console(stderr=True)
        self.label = label
        self._progress: Progress | None = None

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._progress, self._manifest = progress_bars(self.console), manifest
        label = self.label or manifest["algorithm"]["name"]
        self._task = self._progress.add_task(label, total=manifest["rounds"], completed=round, score="")
        self._progress.start()

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        assert self._progress is not None
        advance(self._progress, self._task, record, self._manifest)

    def ended(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def advance(progress: Progress, task: TaskID, record: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Show a round that ended, and how good models are where it was evaluated."""
    progress.update(task, completed=record["round"])
    if (found := score_in(manifest, record)) is not None:
        progress.update(task, score=f"{found[0].label} {found[1]:.4f}")


def progress_bars(console: Console) -> Progress:
    """Bars of rounds on a terminal; elsewhere nothing is shown."""
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
