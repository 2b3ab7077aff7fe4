"""What a fit gives: a model for each client, who gains, what was tried."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from personafl.engines.measuring import measure_outputs
from personafl.errors import DataError, RunError
from personafl.federation import Federation
from personafl.files import write_atomically
from personafl.fitting.candidates import Portfolio
from personafl.fitting.choice import Floats
from personafl.fitting.ending import measured
from personafl.fitting.finalists import labels, outputs_of, theta_of
from personafl.fitting.mixture import MixedModel, mixed_outputs, stacked_mixtures
from personafl.fitting.plots import FitPlots
from personafl.fitting.summary import ALONE
from personafl.notebook import card, grid, lines
from personafl.report.data import report_data
from personafl.report.output import default_page, write_page
from personafl.report.reasons import in_words, reasons
from personafl.runs.frames import Frame, as_frame
from personafl.runs.run import Run
from personafl.storage import schemas
from personafl.storage.reading import read_json
from personafl.training.job import Job

FILE = "fit.json"


class Fit(Run):
    """What `fit` returns and `load_fit` finds again: a run whose personal models were chosen for each client.

    Parameters
    ----------
    path
        The folder of the fit.
    job, portfolio
        What was fitted, where it was made in this process.
    module
        The model's module, for a fit whose model is not one of personafl's own.
    """

    def __init__(
        self,
        path: str | Path,
        job: Job | None = None,
        portfolio: Portfolio | None = None,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
        module: nn.Module | None = None,
        backbone: nn.Module | str | Path | None = None,
    ) -> None:
        super().__init__(
            path, module=module, task=None if job is None else job.task, temporary=temporary, backbone=backbone
        )
        self._job, self._portfolio = job, portfolio
        self.summary: dict[str, Any] = _read(self.path / FILE)

    def __repr__(self) -> str:
        return "\n".join(["Fit of a model for each client", *(f"  {line}" for line in self.sentences())])

    def _repr_html_(self) -> str:
        header, rows = self._finalists()
        return card(
            "Fit of a model for each client", {"folder": str(self.path)}, lines(self.sentences()), grid(header, rows)
        )

    @property
    def plot(self) -> FitPlots:
        """Pictures by matplotlib: `fit.plot.gains()`, `.weights()`, `.tried()`, `.clients()`, `.curves()`."""
        return FitPlots(self, self.summary)

    # --- numbers -----------------------------------------------------------------------------------------------

    def table(self, frame: Frame | None = None) -> pa.Table:
        """A row for each client: what it got, how good that is on its test data, and what it gains.

        `why` tells in a few words what its own validation samples said to its model. `gain_over_alone` and
        `gain_over_global` are positive where the fit is better. `needs_others` is false for
        clients whose model is (almost) the one that they train alone.

        Parameters
        ----------
        frame
            `pandas` or `polars`; left out, a pyarrow table.
        """
        clients, measure = self.clients(), self.primary
        sign = measure.better or 1
        own, alone, common = (measured(clients, measure, who) for who in ("personal", "alone", "global"))
        weights, labels = self.weights, self.summary["finalists"]
        names = [f["label"] for f in labels]
        apart = weights[:, names.index("alone")] if "alone" in names else np.zeros(len(weights))
        columns = {
            "client": clients.column("client"),
            "n_train": clients.column("n_train"),
            "n_val": clients.column("n_val"),
            "n_test": clients.column("n_test"),
            "model": pa.array([in_words(row, names) for row in weights]),
            "why": pa.array(reasons(self.summary, weights, clients.column("n_val").to_pylist())),
            measure.name: _nullable(own),
            f"alone_{measure.name}": _nullable(alone),
            f"global_{measure.name}": _nullable(common),
            "gain_over_alone": _nullable(sign * (own - alone)),
            "gain_over_global": _nullable(sign * (own - common)),
            "needs_others": pa.array(apart < ALONE),
        }
        return as_frame(pa.table(columns), frame)

    @property
    def weights(self) -> Floats:
        """How much each finalist counts for each client, (K, F)."""
        return np.array(self.summary["weights"], np.float64)

    @property
    def score(self) -> dict[str, float]:
        return super().score

    @property
    def number(self) -> dict[str, Any]:
        """The measure on test data, which no choice has seen, with a 95% interval over clients."""
        return dict(self.summary["test"])

    def sentences(self) -> list[str]:
        """What came out, in words."""
        return list(self.summary["sentences"])

    def show(self, console: Console | None = None) -> None:
        """Print the finalists and what came out."""
        console = console or Console()
        header, rows = self._finalists()
        table = Table(*header)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for sentence in self.sentences():
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _finalists(self) -> tuple[list[str], list[list[str]]]:
        """A table of the finalists: its header and its rows."""
        measure, weights, rows = self.primary, self.weights, []
        for f, model in enumerate(self.summary["finalists"]):
            settings = ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in model["settings"].items())
            value = (measure.better or 1) * model["score"]
            used = int((weights[:, f] > 0).sum())
            rows.append([model["label"], settings or "as given", str(model["rounds"]), measure.write(value), str(used),
                         f"{weights[:, f].mean():.2f}"])  # fmt: skip
        return [
            "finalist",
            "settings",
            "rounds",
            f"{measure.label}, validation",
            "clients that use it",
            "mean weight",
        ], rows

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report page: which model for whom, who gains, what was tried."""
        target = default_page([self.path]) if path is None else Path(path)
        write_page(target, report_data([self.path]))
        return target

    # --- models ------------------------------------------------------------------------------------------------

    def finalist(self, place: int) -> Run:
        """The run of a finalist."""
        return self._run(place, self.summary["finalists"][place]["folder"])

    def _run(self, place: int, folder: str) -> Run:
        model = self.summary["finalists"][place]
        found = self._job is not None and self._portfolio is not None
        if found:
            assert self._job is not None and self._portfolio is not None
            algorithm, _ = self._portfolio.made(model["method"], model["settings"], self._job.local)
            return Run(self.path / "candidates" / folder, algorithm=algorithm, task=self._trained(algorithm),
                       backbone=self._job.federation.backbone)  # fmt: skip
        return Run(self.path / "candidates" / folder, module=self._module, backbone=self._backbone)

    def _trained(self, algorithm: Any) -> Any:
        from personafl.algorithms.extras import trained_task

        assert self._job is not None
        return trained_task(algorithm, self._job.task)

    def personal(self, client: str | int) -> nn.Module:
        """The model of a client: one of the finalists', or a module that mixes the predictions of several."""
        ids = self.summary["clients"]
        if str(client) not in ids:
            raise DataError(f"{self.path} has no client {str(client)!r}; the first are {', '.join(ids[:3])}")
        row = self.weights[ids.index(str(client))]
        return self._mix(
            row, lambda run, who: run.global_model() if who == "global" else run.personal(client), str(client)
        )

    def personalize(self, x: Any, y: ArrayLike | Tensor) -> nn.Module:
        """A model for somebody who was not there.

        Each finalist is personalized as its method does it, and mixed with the weights of a client of which nothing is
        known.
        """
        row = np.array(self.summary["newcomer"])
        return self._mix(row, lambda run, who: run.global_model() if who == "global" else run.personalize(x, y))

    def _mix(self, row: Floats, model: Any, client: str | None = None) -> nn.Module:
        used = np.flatnonzero(row)
        made = [model(self._run_for(int(f), client), self.summary["finalists"][int(f)]["who"]) for f in used]
        return made[0] if len(used) == 1 else MixedModel(made, row[used].tolist(), self.task.kind)

    def _run_for(self, place: int, client: str | None = None) -> Run:
        """Where a client's model, or a newcomer's, is from: the last training, or where that went wrong the search."""
        model = self.summary["finalists"][place]
        kept = model.get("kept", [])
        before = client in kept if client is not None else 0 < len(kept) == len(self.summary["clients"])
        return self._run(place, model["searched"] if before else model["folder"])

    def newcomers(self, data: dict[str, Any]) -> Federation:
        return self.finalist(0).newcomers(data)

    def write_newcomers(self, path: Path, federation: Federation) -> dict[str, Floats]:
        row, ids = np.array(self.summary["newcomer"]), np.arange(len(federation))
        used = [int(f) for f in np.flatnonzero(row)]
        runs, thetas = [self._run_for(f) for f in used], []
        for f, run in zip(used, runs, strict=True):
            common = self.summary["finalists"][f]["who"] == "global"
            thetas.append(theta_of(run, "global", ()) if common else run.personalize_all(federation))
        tensors = stacked_mixtures([run.task for run in runs], thetas, np.tile(row[used], (len(ids), 1)))
        write_atomically(path, lambda to: save_file(tensors, to, {"clients": json.dumps(list(federation.ids))}))
        engines = [run.newcomer_engine(federation) for run in runs]
        outputs = torch.stack([outputs_of(e, theta, "test") for e, theta in zip(engines, thetas, strict=True)])
        mixed = mixed_outputs(self.task.kind, outputs, np.tile(row[used], (outputs.shape[1], 1)))
        return measure_outputs(engines[0], mixed, labels(engines[0], "test"), federation.sizes("test"))

    def personalize_all(self, federation: Federation) -> Tensor:
        raise RunError("a fit mixes several models: take fit.personalize(x, y), or write_newcomers for many")


def load_fit(path: str | Path, module: nn.Module | None = None, backbone: nn.Module | str | Path | None = None) -> Fit:
    """Open the folder of a fit. Nothing in it is executed.

    Parameters
    ----------
    module
        The model's module, where it is not one of personafl's own.
    backbone
        The frozen backbone of a fit on features, or the path of its weights.
    """
    return Fit(path, module=module, backbone=backbone)


def is_fit(path: Path) -> bool:
    """Whether a folder is that of a finished fit."""
    return (path / FILE).is_file()


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(read_json(file, schemas.Fit))
    except FileNotFoundError:
        raise RunError(f"{file.parent} holds no finished fit: go on with resume (--resume)") from None


def _nullable(values: Floats) -> pa.Array:
    return pa.array(np.nan_to_num(values), mask=~np.isfinite(values))
