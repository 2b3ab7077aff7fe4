"""A listener that tells Weights & Biases what happens in a run; `trackers.py` has TensorBoard and MLflow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from personafl.errors import ConfigError
from personafl.files import disk_errors
from personafl.metrics.measures import measures_in, ranking
from personafl.runs.tracking import first_line, identity, imported, in_flight, scalars, spreads, texts
from personafl.states import State
from personafl.training.events import Listener

log = logging.getLogger("personafl")


class WandB(Listener):
    """Tells Weights & Biases: settings, the curves of each round, and how the clients are spread at each evaluation.

    A run that breaks down ends as failed there, with `personafl.error` in its summary. What stops working while a run
    goes on costs a warning and not the run.

    Parameters
    ----------
    project
        The name of the project.
    name
        How the run is called there. A run that is resumed has the same id: it follows from its name, its seed, its
        algorithm, its data and when it was started.
    folder
        Where wandb keeps its files, in a folder `wandb`; left out, the current folder (or `WANDB_DIR`).
    mode
        `online`, or `offline`: nothing leaves this machine until `wandb sync`. Left out, what `WANDB_MODE` says, else
        `online`.
    """

    def __init__(
        self,
        project: str = "personafl",
        name: str | None = None,
        *,
        folder: str | Path | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        if mode not in (None, "online", "offline"):
            raise ConfigError(f"mode of WandB must be online or offline, not {mode!r}")
        self.project, self.name, self.mode = project, name, mode
        self.folder = None if folder is None else Path(folder)
        self._wandb = imported("wandb", "wandb", "Weights & Biases")
        self._run: Any = None
        if self.folder is not None:
            with disk_errors(self.folder, "creating"):
                self.folder.mkdir(parents=True, exist_ok=True)

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._around, self._measure = sys.exception(), ranking(measures_in(manifest))
        # Its capture of the terminal would store every frame of a progress bar.
        settings = self._wandb.Settings(console="off")
        try:
            self._run = self._wandb.init(
                project=self.project, name=self.name, id=identity(self.name, texts(manifest)), resume="allow",
                dir=self.folder, mode=self.mode, reinit="create_new", settings=settings,
            )  # fmt: skip
            self._run.config.update(manifest, allow_val_change=True)
        except Exception as error:  # of the network, the account, the file system
            raise ConfigError(f"Weights & Biases cannot track this run: {first_line(error)}") from error
        self._next = int(self._run.step)  # rounds before it are there already, from before the run was resumed

    def evaluated(self, round: int, clients: pa.Table, server: State) -> None:
        shown = {
            f"clients/{name}": self._wandb.Histogram(np_histogram=np.histogram(values, bins))
            for name, (values, bins) in spreads(clients, self._measure).items()
        }
        self._tell(round, lambda run: run.log(shown, step=round))

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        curves = scalars(record, seconds)
        self._tell(record["round"], lambda run: run.log(curves, step=record["round"], commit=True))

    def ended(self) -> None:
        if self._run is None:
            return
        error = in_flight(self._around)
        if error is not None:
            self._tell(self._next, lambda run: run.summary.update({"personafl.error": first_line(error)}))
        self._tell(self._next, lambda run: run.finish(exit_code=0 if error is None else 1))
        self._run = None

    def _tell(self, step: int, what: Callable[[Any], object]) -> None:
        """While a run goes on: it matters more than its tracking."""
        if self._run is None or step < self._next:
            return
        try:
            what(self._run)
        except Exception as error:
            log.warning("Weights & Biases is told nothing more about this run: %s", first_line(error))
            self._run = None
