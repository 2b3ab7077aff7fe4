"""Dashboards that people have already: listeners that tell TensorBoard and MLflow what happens in a run.

A resumed run goes on where it was: no step is there twice. `weights_and_biases.py` has the third, `tracking.py` what
all tell.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from personafl.errors import ConfigError
from personafl.files import disk_errors
from personafl.metrics.measures import measures_in, ranking
from personafl.runs.tracking import first_line, identity, imported, in_flight, scalars, spreads, texts
from personafl.states import State
from personafl.training.events import Listener

log = logging.getLogger("personafl")

# What a resumed run may change. Parameters of MLflow cannot be changed, so these are tags there.
_MAY_CHANGE = (
    "created", "rounds", "eval_every", "eval_clients", "checkpoint_every", "models_mb", "resolved", "versions",
)  # fmt: skip
_NAMES_SHOWN = 50


class TensorBoard(Listener):
    """Writes event files for TensorBoard: curves of each round, and how the clients are spread at each evaluation.

    Parameters
    ----------
    folder
        Where the event files go: a folder for this run alone. `tensorboard --logdir` shows it, or a folder of several.
        What is there from a later round than the one the run starts or goes on from is hidden by TensorBoard.

    Examples
    --------
    >>> import tempfile
    >>> import personafl as pf
    >>> from torch import nn
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = pf.TensorBoard(folder)
    ...     run = pf.train(fed, nn.Linear(64, 10), rounds=2, progress=False, listeners=[board])
    ...     [path.name.split(".")[0] for path in board.folder.iterdir()]
    ['events']
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._make = imported("torch.utils.tensorboard", "tensorboard", "TensorBoard").SummaryWriter
        self._writer: Any = None
        with disk_errors(self.folder, "creating"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._around, self._round = sys.exception(), round
        self._measure = ranking(measures_in(manifest))
        settings = "\n".join(f"    {key} = {value}" for key, value in texts(manifest).items())
        with disk_errors(self.folder, "writing"):
            # TensorBoard drops what came from this step on, which is what a resumed run makes again.
            self._writer = self._make(str(self.folder), purge_step=round + 1)
            self._writer.add_text("run", settings, round)
            self._writer.flush()

    def evaluated(self, round: int, clients: pa.Table, server: State) -> None:
        with disk_errors(self.folder, "writing"):
            for name, (values, bins) in spreads(clients, self._measure).items():
                self._writer.add_histogram(f"clients/{name}", values, round, bins=bins)

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        self._round = record["round"]
        with disk_errors(self.folder, "writing"):
            for name, value in scalars(record, seconds).items():
                self._writer.add_scalar(name, value, self._round)
            if record["failed"]:
                self._writer.add_text("left out", ", ".join(record["failed"][:_NAMES_SHOWN]), self._round)
            # A checkpoint may follow, and what came before a checkpoint is not made again.
            self._writer.flush()

    def ended(self) -> None:
        if self._writer is None:
            return
        with disk_errors(self.folder, "writing"):
            if (error := in_flight(self._around)) is not None:
                self._writer.add_text("stopped", str(error) or type(error).__name__, self._round)
            self._writer.close()
        self._writer = None


class MLflow(Listener):
    """Tells an MLflow server or database: parameters, tags, and the curves of each round.

    Settings are parameters. What a resumed run may change (rounds, engine, versions, …) and the fingerprint of the data
    are tags that begin with `personafl.`; `personafl.error` says why a run broke down. A store that stops answering
    while a run goes on costs a warning and not the run.

    Parameters
    ----------
    uri
        Where runs are tracked: `sqlite:///mlflow.db`, `http://host:5000`, …
    experiment
        The name of the experiment; made where there is none.
    name
        How the run is called there. A run that is resumed is found by its name, its seed, its algorithm, its data
        and when it was started.
    """

    def __init__(self, uri: str, experiment: str = "personafl", name: str | None = None) -> None:
        self.uri, self.experiment, self.name = uri, experiment, name
        make = imported("mlflow", "mlflow", "MLflow").MlflowClient
        self._entities = import_module("mlflow.entities")
        self._run: str | None = None
        # The making of a new database is told at length otherwise.
        logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        with self._refusing():
            self._client = make(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)

    def started(self, manifest: dict[str, Any], round: int) -> None:
        self._around = sys.exception()
        self._logged: set[tuple[str, int]] = set()
        settings = texts(manifest)
        parameters = {key: value for key, value in settings.items() if key.split(".")[0] not in _MAY_CHANGE}
        tags = {f"personafl.{key}": value for key, value in settings.items() if key not in parameters}
        tags["personafl.runs.run"] = identity(self.name, settings)
        with self._refusing():
            self._run = self._begin(tags, parameters, round)

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        new = [
            self._entities.Metric(key, value, now, record["round"])
            for key, value in scalars(record, seconds).items()
            if (key, record["round"]) not in self._logged
        ]
        self._tell(lambda run: self._client.log_batch(run, metrics=new))

    def ended(self) -> None:
        error = in_flight(self._around) if self._run is not None else None
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        if status == "FAILED":
            self._tell(lambda run: self._client.set_tag(run, "personafl.error", first_line(error)))
        self._tell(lambda run: self._client.set_terminated(run, status))
        self._run = None

    def _begin(self, tags: dict[str, str], parameters: dict[str, str], round: int) -> str:
        """The id of a new run, or of the run that is resumed."""
        client, here = self._client, [self._experiment]
        found = client.search_runs(here, f"tags.`personafl.runs.run` = '{tags['personafl.runs.run']}'", max_results=1)
        run = found[0] if found else client.create_run(self._experiment, run_name=self.name)
        run_id: str = run.info.run_id
        if found:
            client.update_run(run_id, status="RUNNING")
            if "personafl.error" in run.data.tags:
                client.delete_tag(run_id, "personafl.error")
            histories = (client.get_metric_history(run_id, key) for key in run.data.metrics)
            self._logged = {(m.key, m.step) for history in histories for m in history if m.step > round}
        client.log_batch(
            run_id,
            params=[] if found else [self._entities.Param(*parameter) for parameter in parameters.items()],
            tags=[self._entities.RunTag(*tag) for tag in tags.items()],
        )
        return run_id

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Before a run starts: say in one line why it cannot be tracked."""
        try:
            yield
        except Exception as error:  # of the network, the database, the file system, or MLflow's own
            raise ConfigError(f"MLflow cannot track runs at {self.uri!r}: {first_line(error)}") from error

    def _tell(self, what: Callable[[str], None]) -> None:
        """While a run goes on: it matters more than its tracking."""
        if self._run is None:
            return
        try:
            what(self._run)
        except Exception as error:
            log.warning("MLflow at %s is told nothing more about this run: %s", self.uri, first_line(error))
            self._run = None
