"""`compare`: a federation, a module and several algorithms in; which one is better, and whether that is shown, out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, overload

from rich.console import Console
from torch import nn

from personafl.errors import RunError
from personafl.federation import Federation
from personafl.files import write_text
from personafl.jobs import with_settings
from personafl.kernels.task import Objective
from personafl.notebook import card, lines
from personafl.report.data import report_data
from personafl.report.output import default_page, write_page
from personafl.runs.frames import Frame, as_frame
from personafl.runs.run import Run
from personafl.settings import EngineSettings, Local, Schedule
from personafl.study.judgement import Judgement, judge
from personafl.study.launch import Launcher, StudyRuns, in_process, run_plan
from personafl.study.module_plan import Algorithms, Subject, module_plan
from personafl.study.plan import Plan
from personafl.study.plots import ComparisonPlots
from personafl.study.processes import Processes
from personafl.study.progress import StudyProgress
from personafl.study.tables import (
    caption,
    csv_text,
    json_values,
    latex_text,
    notebook_table,
    sentences,
    terminal_tables,
)
from personafl.tasks import LearningTask, Metric
from personafl.training.arguments import check_federation, check_settings
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


def compare(
    federation: Federation | Callable[[int], Federation],
    module: nn.Module | Callable[[int], nn.Module],
    algorithms: Algorithms,
    *,
    seeds: int | Sequence[int] = 3,
    search: Mapping[str, Sequence[Any]] | None = None,
    search_seeds: int = 1,
    equal_work: bool = False,
    schedule: Schedule | None = None,
    local: Local | None = None,
    engine: str | EngineSettings = "auto",
    privacy: Privacy | None = None,
    robust: Robust | None = None,
    task: str | LearningTask | None = None,
    loss: str | Objective | None = None,
    metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
    out: str | Path | None = None,
    at_once: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Compare methods over several seeds, as `personafl compare` does: who is better, for whom, and is that shown?

    Training alone (`separate`) and `fedavg` come along where they are not named, because the quality of improvement
    (QoI) is measured against them.

    Parameters
    ----------
    federation
        The clients' data, the same for every seed; or a function of the seed, for data that is divided anew.
    module
        Any torch module; its present weights are where every client starts from, for every seed. Or a function that
        takes the seed and builds a module, for a fresh start with each seed: torch's generator is seeded around it.
    algorithms
        Such as `[pf.Ditto(lam=0.5), "fedamp"]`, or with labels of your own, `{"weak": pf.Ditto(lam=0.1), "strong":
        pf.Ditto(lam=2.0)}`, which several of one kind need.
    seeds
        How many, counting up from 0; or which.
    search
        Values to try on validation data: `{"local.lr": [0.01, 0.1]}` for every method, `{"ditto.lam": [0.1, 1.0]}` for
        one, by its label. Several keys are combined.
    search_seeds
        How many of the seeds the search uses.
    equal_work
        Give every method the gradients of the one that computes most.
    schedule, local, engine, privacy, robust, task, loss, metrics
        As in `train`, for every method.
    out
        The folder that the runs are in: what is there is reused, what is missing is made, so that the same call goes on
        after an interruption. Left out, a temporary one that is deleted with the returned object and its runs.
    at_once
        How many runs go on at once, each in a process of its own. A script then needs `if __name__ == "__main__":`, as
        always with processes, and module, loss and algorithm must be ones that can be pickled.
    progress
        Show progress bars on a terminal.
    **settings
        Single fields of `Schedule` and `EngineSettings` by their names, such as `rounds=50`.

    Examples
    --------
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> found = pf.compare(fed, nn.Linear(64, 10), ["fedavg", "separate"], seeds=1, rounds=2, progress=False)
    >>> [(row["label"], row["seeds"]) for row in found.table()]
    [('fedavg, global model', 1), ('fedavg, after local training', 1), ('separate', 1)]
    >>> len(found.methods["separate"][0].clients())
    5
    """
    temporary = tempfile.TemporaryDirectory(prefix="personafl-") if out is None else None
    check_settings(
        schedule, local, privacy, engine, loss=loss, metrics=metrics, robust=robust, out=out, settings=settings
    )
    if not callable(federation):
        check_federation(federation)
    schedule, engine = with_settings(schedule, engine, settings)
    usual = (schedule, local or Local(), engine, privacy)
    subject = Subject(federation, module, task, loss, metrics, *usual, temporary, robust)
    planned = module_plan(subject, algorithms, seeds, search or {}, search_seeds, equal_work)
    folder = Path(temporary.name) / "comparison" if temporary else Path(str(out))
    with Processes(at_once) if at_once > 1 else nullcontext(in_process) as launcher:
        return run_comparison(planned, folder, Console(stderr=True) if progress else None, launcher)


def run_comparison(
    planned: Plan, folder: Path, console: Console | None = None, launcher: Launcher = in_process
) -> Comparison:
    """Run what is missing of a plan, and write what came out beside the runs."""
    if console is None:
        runs = run_plan(planned, folder, launcher=launcher)
    else:
        with StudyProgress(planned.jobs(), console) as progress:
            runs = run_plan(planned, folder, progress.listeners, launcher)
    found = Comparison(**vars(runs))
    found.write()
    return found


@dataclass(frozen=True, repr=False)
class Comparison(StudyRuns):
    """What `compare` returns: the runs by method and seed, and what they say.

    Attributes
    ----------
    folder
        Where the runs are, with comparison.json, table.csv and table.tex.
    methods
        The runs of each method by seed: `found.methods["ditto"][0]` is a `Run`.
    searches
        What was searched for a method, the scores on validation data, and what was chosen.
    failures
        Runs that broke down: method, seed and the reason.
    added
        Methods that nobody asked for but QoI needs.
    work
        What was done for equal work, where that was asked for.
    """

    def __repr__(self) -> str:
        title, facts = self._facts()
        return "\n".join([title, *self._answers(), *(f"  {name:7} {fact}" for name, fact in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        if not self.runs:
            return card(title, facts)
        return card(title, facts, notebook_table(self.judgement), lines(self._answers()))

    @property
    def plot(self) -> ComparisonPlots:
        """Pictures by matplotlib: `found.plot.scores()`, `found.plot.curves()`, `found.plot.gains()`."""
        return ComparisonPlots(self.judgement, self.methods)

    def _facts(self) -> tuple[str, dict[str, str]]:
        seeds = len({seed for by_seed in self.methods.values() for seed in by_seed})
        failed = f", {len(self.failures)} runs failed" if self.failures else ""
        title = f"Comparison of {len(self.methods)} methods, {seeds} seed{'' if seeds == 1 else 's'}{failed}"
        return title, {"folder": str(self.folder), "next": "found.table(), found.plot.scores(), found.report()"}

    def _answers(self) -> list[str]:
        return self.answer.splitlines() if self.runs else []

    @property
    def runs(self) -> list[Run]:
        """All runs, method after method."""
        return [run for by_seed in self.methods.values() for run in by_seed.values()]

    @cached_property
    def judgement(self) -> Judgement:
        """What the tables and sentences are made of."""
        if not self.runs and self.failures:
            raise RunError(f"every run failed, the first one for this reason: {self.failures[0][2]}")
        return judge(self.methods)

    @overload
    def table(self, frame: None = None) -> list[dict[str, Any]]: ...

    @overload
    def table(self, frame: Frame) -> Any: ...

    def table(self, frame: Frame | None = None) -> Any:
        """A row for each model: means over seeds, and their standard errors, of what `personafl compare` shows.

        Shares such as the accuracy are between 0 and 1; docs/metrics.md defines the columns.

        Parameters
        ----------
        frame
            `pandas`, `polars` or `arrow`; left out, a dictionary for each row.
        """
        rows = []
        for row in self.judgement.rows:
            about = {"method": row.method, "model": row.model, "label": row.name, "added": row.method in self.added}
            means = {c.key: self.judgement.mean(row.key, c.key) for c in self.judgement.columns}
            errors = {f"{key}_standard_error": found.standard_error for key, found in means.items()}
            seeds = len(self.judgement.seeds[row.key])
            rows.append({**about, "seeds": seeds, **{key: found.mean for key, found in means.items()}, **errors})
        return as_frame(rows, frame)

    @overload
    def significance(self, frame: None = None) -> list[dict[str, Any]]: ...

    @overload
    def significance(self, frame: Frame) -> Any: ...

    def significance(self, frame: Frame | None = None) -> Any:
        """For each model but the first-ranking one: the difference from that one, and whether it is shown.

        `p_holm` is the p value corrected for the number of models; docs/significance.md says what is tested.

        Parameters
        ----------
        frame
            As in `table`.
        """
        return as_frame(json_values(self.judgement)["differences"], frame)

    @property
    def answer(self) -> str:
        """Who is better, and whether that is shown: the sentences that `personafl compare` prints, a line each."""
        return "\n".join(sentences(self.judgement))

    @property
    def best(self) -> str:
        """The method of the model that ranks first; whether it is shown to be better, `winner` says."""
        return self.judgement.row(self.judgement.best).method

    @property
    def winner(self) -> str | None:
        """The method whose model is shown to be better than every other; None where there is none."""
        winner = self.judgement.winner
        return None if winner is None else self.judgement.row(winner).method

    def show(self, console: Console | None = None) -> None:
        """Print the tables and the answer, as `personafl compare` does."""
        console = console or Console()
        for table in terminal_tables(self.judgement, self.added):
            console.print(table)
        console.print(caption(self.judgement, self.added), style="dim", highlight=False, markup=False)
        lines = [] if self.work is None else [self.work.sentence()]
        lines += [*sentences(self.judgement), *(search.sentence() for search in self.searches)]
        lines += [f"{method} with seed {seed} failed: {why}" for method, seed, why in self.failures]
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one page for a browser; left out, report.html in the folder."""
        page = default_page([self.folder]) if path is None else Path(path)
        self.write()  # another comparison in the same folder may have written since
        write_page(page, report_data([self.folder]))
        return page

    def write(self) -> None:
        """Write comparison.json, table.csv and table.tex."""
        write_text(self.folder / "comparison.json", json.dumps(self._summary(), indent=1) + "\n")
        write_text(self.folder / "table.csv", csv_text(self.judgement))
        write_text(self.folder / "table.tex", latex_text(self.judgement, self.added))

    def _summary(self) -> dict[str, Any]:
        return {
            "runs": {m: {str(seed): run.path.name for seed, run in runs.items()} for m, runs in self.methods.items()},
            "added": list(self.added),
            "searches": [
                {
                    "method": s.method,
                    "measure": s.measure,
                    "chosen": s.chosen,
                    "trials": [
                        {"settings": t.settings, "score": _number(t.score), "seconds": t.seconds} for t in s.trials
                    ],
                }
                for s in self.searches
            ],
            "equal_work": None
            if self.work is None
            else {
                "budget": _number(self.work.budget),
                "methods": {
                    m: {
                        "configured": _number(w.configured),
                        "changed": w.changed,
                        "gradients": _number(w.gradients),
                    }
                    for m, w in self.work.methods.items()
                },
                "sentence": self.work.sentence(),
            },
            "failures": [{"method": m, "seed": seed, "why": why} for m, seed, why in self.failures],
            **json_values(self.judgement),
        }


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
