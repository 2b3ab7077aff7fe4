"""`fit`: a federation and a budget of time in; a model for each client, and an honest number, out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from torch import nn

from personafl.algorithms import Algorithm, Separate
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.files import write_text
from personafl.fitting import ending
from personafl.fitting.budget import Clock, now, seconds_of, written
from personafl.fitting.candidates import Outcome, Portfolio
from personafl.fitting.finalists import Finalist, finalists
from personafl.fitting.progress import FitProgress
from personafl.fitting.result import Fit
from personafl.fitting.search import MARGIN, Attempt, Search
from personafl.fitting.summary import summary_of
from personafl.fitting.training import Trainer, train_elsewhere
from personafl.fitting.trials import append_trial, check_same, read_trials
from personafl.fitting.validation import with_validation
from personafl.inputs import shape_of
from personafl.jobs import module_tables, module_task, training_labels, with_settings
from personafl.kernels.task import Objective, Task
from personafl.models import default_model, initialize
from personafl.registry import described
from personafl.settings import EngineSettings, Local, Schedule
from personafl.signals import Interrupted, on_stop
from personafl.storage.folder import RunFolder, without_none
from personafl.study.processes import Call, Processes
from personafl.tasks import LearningTask, Metric, task_for
from personafl.training.arguments import check_federation, check_model, check_seed, check_settings
from personafl.training.events import Listener
from personafl.training.job import Job

log = logging.getLogger("personafl")

RESERVE = 0.06
"""Share of the budget that is kept for the choice, test data and the folder, before it is known what these take."""
AGAIN = 0.4
"""The largest share of the budget that is kept for training the finalists again with the validation data."""
CHOICE_SECONDS = 2e-4
"""What the choice takes for a validation sample, generously."""


def fit(
    federation: Federation,
    module: nn.Module | None = None,
    *,
    budget: str | float = "10m",
    methods: Sequence[Algorithm | str] | None = None,
    mixtures: bool = True,
    refit: bool = True,
    trials: int | None = None,
    seed: int = 0,
    schedule: Schedule | None = None,
    local: Local | None = None,
    engine: str | EngineSettings = "auto",
    task: str | LearningTask | None = None,
    loss: str | Objective | None = None,
    metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    at_once: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Fit:
    """Find the best model for each client, within a budget of time.

    Several methods are trained with several settings; bad ones are given up early. Then every client gets one of the
    best models, or a mixture of their predictions. All of this is decided on validation data; only the result is
    measured on test data. docs/fit.md says how it chooses, and when not to trust it.

    Parameters
    ----------
    federation
        The clients' data. Where nobody has validation data, a quarter of the training data is taken for it.
    module
        Any torch module; left out, one that suits the data: a small convolutional network for images, else a network
        with a hidden layer.
    budget
        How long it may take: "10m", "90s", "1h30m", or seconds.
    methods
        What to try: algorithms or names; left out, a portfolio (`personafl.fitting.candidates.PORTFOLIO`). Training
        alone, FedAvg and FedAvg with fine-tuning come along.
    mixtures
        Whether a client may get a mixture of several models' predictions. Without, everybody gets one model.
    refit
        Whether the models that were chosen from are in the end trained once more, with the validation data among the
        training data, where the budget has time for it.
    trials
        The most candidates, whatever time is left: with this and time enough, the same seed gives the same result.
    seed
        What everything that is drawn follows from.
    schedule, local, engine, task, loss, metrics
        As in `train`. `schedule.rounds` is the longest that a candidate is trained.
    out
        The folder; left out, a temporary one that is deleted with the returned object.
    resume
        Go on with the fit in `out`: what was trained is reused, and the time that it took counts.
    at_once
        How many candidates are trained at once, each in a process of its own. A script then needs
        `if __name__ == "__main__":`, and module and loss must be ones that can be pickled.
    progress
        Show a progress bar on a terminal.
    **settings
        Single fields of `Schedule` and `EngineSettings` by their names, such as `rounds=50`.

    Examples
    --------
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=0.5))
    >>> found = pf.fit(fed, nn.Linear(64, 10), methods=["ditto"], trials=4, rounds=2, progress=False)
    >>> len(found.table()), found.personal("client-3")(fed.x[:2]).shape
    (4, torch.Size([2, 10]))
    """
    begun = now()
    check_federation(federation)
    check_seed(seed)
    check_settings(schedule, local, None, engine, loss=loss, metrics=metrics, out=out, settings=settings)
    schedule, chosen = with_settings(schedule, engine, settings)
    federation = with_validation(federation, seed)
    for note in federation.notes:
        log.warning("%s", note)
    if module is None:
        made, tables = _sensible(federation, seed, task, loss, metrics)
    else:
        check_model(module)
        made, tables = module_task(federation, module, task, loss, metrics), module_tables(federation, module)
    job = Job(federation, made, Separate(), schedule, local or Local(), chosen, seed=seed, tables=tables)
    return fit_job(job, out, budget, methods, mixtures, trials, resume, progress, begun, at_once, refit)


def _sensible(federation: Federation, seed: int, task: Any, loss: Any, metrics: Any) -> tuple[Task, dict[str, Any]]:
    """A model by name that suits the data, and what run.toml says of it."""
    model = default_model(shape_of(federation.x))
    # What the task is follows from the labels; how many outputs it needs, from the task.
    kind = task_for(federation.y, lambda: training_labels(federation), task, loss, metrics)
    built = initialize(
        model, shape_of(federation.x), kind.outputs(federation.y, federation.classes), seed, federation.constants
    )
    return Task(built, kind), {**module_tables(federation, built), "model": described(model)}


def fit_job(
    job: Job,
    out: str | Path | None,
    budget: str | float = "10m",
    methods: Sequence[Algorithm | str] | None = None,
    mixtures: bool = True,
    trials: int | None = None,
    resume: bool = False,
    progress: bool = True,
    begun: float | None = None,
    at_once: int = 1,
    refit: bool = True,
) -> Fit:
    """`fit` for a job whose algorithm is not looked at; `begun` is when time began to count (`budget.now`)."""
    if trials is not None and trials < 1:
        raise ConfigError(f"trials = {trials}: must be at least 1, or left out")
    if at_once < 1:
        raise ConfigError(f"at_once = {at_once}: must be at least 1")
    if resume and out is None:
        raise RunError("resume needs the folder of the fit: name it with out")
    seconds, portfolio = seconds_of(budget), Portfolio(methods, job.local)
    temporary = tempfile.TemporaryDirectory(prefix="personafl-") if out is None else None
    folder = Path(temporary.name if temporary else str(out))
    if not resume:
        RunFolder(folder).check_free()
    with RunFolder(folder).lock():
        check_same(folder, job, portfolio)
        trainer = Trainer(job, folder / "candidates", portfolio)
        search = Search(portfolio, job.local, job.schedule.rounds, job.seed, trials, at_once)
        processes = Processes(at_once, trainer)
        if at_once > 1:
            trainer.share_cores(processes.threads)
        clock = Clock(seconds, read_trials(folder, search) if resume else 0.0, begun)
        with closing(FitProgress(job.task.kind.primary, clock, progress)) as shown:
            stopped = _searched(search, trainer, clock, folder, shown, processes, refit)
            if search.leader is None:
                raise _nothing(search, seconds, clock)
            found = finalists(search.candidates)
            if refit and not stopped:
                found, stopped = _trained_again(found, search, trainer, clock, shown)
            shown.say("choosing for each client, then measuring on test data")
            ended = ending.end(trainer, found, mixtures)
            told = summary_of(job, search, ended, clock.spent, seconds, stopped, refit)
            ending.write(folder, trainer, ended, told, clock.spent)
            _write_config(folder, job, trainer, ended)
    made = Fit(folder, job, portfolio, temporary)
    if stopped:
        log.warning("stopped before the budget was used: this is the best so far; resume goes on")
    return made


def _searched(
    search: Search, trainer: Trainer, clock: Clock, folder: Path, shown: FitProgress, processes: Processes, refit: bool
) -> bool:
    """Train candidates until the time is over; True where somebody stopped it before."""
    try:
        with on_stop(), processes:
            going_on = True
            while going_on:  # again where all that were going on had to end before the next could be named
                going_on = False
                for attempt, outcome in processes.results(_attempts(search, trainer, clock, shown, processes, refit)):
                    if outcome is None:
                        continue
                    outcome = replace(outcome, at=round(clock.spent, 3))
                    search.tell(attempt.candidate, outcome)
                    append_trial(folder, attempt.candidate, outcome)
                    shown.ended(search.leader)
                    going_on = True
        return False
    except KeyboardInterrupt as stop:
        if search.leader is None or (isinstance(stop, Interrupted) and stop.number != 2):
            raise
        return True


def _attempts(
    search: Search, trainer: Trainer, clock: Clock, shown: FitProgress, processes: Processes, refit: bool
) -> Iterator[Call[Attempt, Outcome | None]]:
    """What to train now, asked for whenever a process is free."""
    while True:
        left = _before_the_end(search, trainer, clock) - (_again_seconds(search, clock) if refit else 0.0)
        attempt = search.next(left)
        if attempt is None or left <= 0:
            return
        yield _call(attempt, trainer, now() + left, shown.tried(attempt, search.leader), processes)


def _call(
    attempt: Attempt, trainer: Trainer, until: float, listeners: Sequence[Listener], processes: Processes
) -> Call[Attempt, Outcome | None]:
    if processes.at_once > 1:
        return attempt, train_elsewhere, (attempt, until)
    return attempt, trainer.train, (attempt, until, listeners)


def _trained_again(
    found: list[Finalist], search: Search, trainer: Trainer, clock: Clock, shown: FitProgress
) -> tuple[list[Finalist], bool]:
    """The finalists, trained once more with the validation data; and whether somebody stopped that.

    All of them or none: a comparison of models that have seen more with others that have not would be unfair.
    """
    due = {(m.candidate.number, m.outcome.rounds): Attempt(m.candidate, m.outcome.rounds, again=True) for m in found}
    left = _before_the_end(search, trainer, clock)
    needed = MARGIN * sum(a.candidate.seconds_per_round() * a.rounds for a in due.values()) / search.at_once
    if needed > left or not trainer.job.federation.sizes("val").any():
        return found, False
    made: dict[tuple[int, int], Outcome] = {}
    try:
        with on_stop(), Processes(search.at_once, trainer) as processes:
            calls = (_call(a, trainer, now() + left, shown.tried(a, search.leader), processes) for a in due.values())
            for attempt, outcome in processes.results(calls):
                if outcome is None or outcome.why:
                    return found, False
                made[attempt.candidate.number, attempt.rounds] = outcome
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted) and stop.number != 2:
            raise
        return found, True
    return [replace(m, again=made[m.candidate.number, m.outcome.rounds]) for m in found], False


def _before_the_end(search: Search, trainer: Trainer, clock: Clock) -> float:
    """Seconds that are left without those that the end may take.

    In the end the data goes through every finalist a few times, as an evaluation does, and the choice goes through the
    validation samples a few hundred times.
    """
    samples = int(trainer.job.federation.sizes("val").sum())
    shortest = [o.seconds / o.rounds for c in search.candidates for o in c.outcomes.values() if not o.why]
    closing = (6 * float(np.median(shortest)) if shortest else 0.0) + CHOICE_SECONDS * samples
    return clock.left - max(RESERVE * clock.budget, closing)


def _again_seconds(search: Search, clock: Clock) -> float:
    """What training the finalists again may take, each as long as can be; nothing is kept for it where that is long."""
    now_best = {m.candidate.number: m.candidate for m in finalists(search.candidates)}
    needed = MARGIN * search.rungs[-1] * sum(c.seconds_per_round() for c in now_best.values()) / search.at_once
    return needed if needed <= AGAIN * clock.budget else 0.0


def _nothing(search: Search, seconds: float, clock: Clock) -> ConfigError:
    """Why there is no model at all."""
    failed = [o for c in search.candidates for o in c.outcomes.values() if o.why]
    if failed:
        return ConfigError(f"every candidate failed, the first one for this reason: {failed[0].why}")
    return ConfigError(
        f"budget = {written(seconds)} is too little for one candidate: its first {search.rungs[0]} rounds were not "
        f"done after {written(clock.spent)}; give more time, fewer rounds, or a smaller model"
    )


# --- for a real federation --------------------------------------------------------------------------------------------


def _write_config(folder: Path, job: Job, trainer: Trainer, ended: ending.Ending) -> None:
    """chosen.toml: the best single method with its settings, as `personafl run` and `deploy` take it."""
    best = max(ended.finalists, key=lambda model: model.score)
    candidate = trainer.job_of(best.candidate, best.outcome.rounds)
    tables: dict[str, Any] = {"seed": job.seed, "rounds": best.outcome.rounds, "activity": job.schedule.activity}
    for name in ("data", "partition", "splits", "splitting", "task", "backbone", "model"):
        table = job.tables.get(name)
        if table is not None and (not isinstance(table, dict) or "name" in table or name == "backbone"):
            tables[name] = table
    tables["algorithm"] = described(candidate.algorithm)
    tables["local"] = candidate.local.table()
    text = "# The best single method of a fit, chosen on validation data.\n"
    if "class" in job.tables.get("model", {}):
        text += (
            "# The model was made in Python: name it, [model] name = 'package.module:Name' (docs/your-package.md).\n"
        )
    write_text(folder / "chosen.toml", text + tomli_w.dumps(without_none(tables)))
