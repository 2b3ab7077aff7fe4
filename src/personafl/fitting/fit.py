"""`fit`: a federation and a budget of time in; a model for each client, and an honest number, out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from personafl.algorithms import Algorithm, Separate
from personafl.data.sources import SOURCES
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.files import write_text
from personafl.fitting import ending
from personafl.fitting.budget import Clock, now, seconds_of, written
from personafl.fitting.candidates import Portfolio
from personafl.fitting.config import check_engine
from personafl.fitting.finalists import finalists
from personafl.fitting.progress import FitProgress
from personafl.fitting.result import Fit
from personafl.fitting.running import STOPPED, Running
from personafl.fitting.search import Search
from personafl.fitting.summary import summary_of
from personafl.fitting.training import Trainer
from personafl.fitting.trials import check_not_begun, check_same, read_trials
from personafl.fitting.validation import with_validation
from personafl.inputs import shape_of, written_shape
from personafl.jobs import module_tables, module_task, training_labels, with_settings
from personafl.kernels.task import Objective, Task
from personafl.models import default_model, initialize
from personafl.registry import described
from personafl.settings import EngineSettings, Local, Schedule
from personafl.storage.folder import RunFolder, without_none
from personafl.study.processes import Processes
from personafl.study.ray_calls import RayCalls, calls_on_ray
from personafl.tasks import LearningTask, Metric, task_for
from personafl.training.arguments import check_federation, check_model, check_seed, check_settings
from personafl.training.job import Job

log = logging.getLogger("personafl")

PLACES = ("here", "ray")


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
    at_once: int | None = None,
    on: str = "here",
    address: str | None = None,
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
        `if __name__ == "__main__":`, and module and loss must be ones that can be pickled. Left out, one; on Ray, as
        many as there are CPUs.
    on, address
        `here`, or `ray`: candidates are trained on a Ray cluster, whose machines share the disk that `out` is on. Its
        address is like `10.0.0.1:6379`; left out, the one of RAY_ADDRESS, or a Ray that is started here.
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
    return fit_job(job, out, budget, methods, mixtures, trials, resume, progress, begun, at_once, on, address, refit)


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
    at_once: int | None = None,
    on: str = "here",
    address: str | None = None,
    refit: bool = True,
) -> Fit:
    """`fit` for a job whose algorithm is not looked at; `begun` is when time began to count (`budget.now`)."""
    for key, count in (("trials", trials), ("at_once", at_once)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"{key} = {count!r}: must be a whole number of at least 1, or left out")
    check_engine(job.engine)
    if on not in PLACES:
        raise ConfigError(f"on = {on!r}: must be one of {', '.join(PLACES)}")
    if address is not None and on != "ray":
        raise ConfigError("address is for a fit on Ray: add on='ray' (--on ray)")
    if resume and out is None:
        raise RunError("resume needs the folder of the fit: name it with out")
    seconds, portfolio = seconds_of(budget), Portfolio(methods, job.local)
    temporary = tempfile.TemporaryDirectory(prefix="personafl-") if out is None else None
    folder = Path(temporary.name if temporary else str(out))
    if not resume:
        check_not_begun(folder)
        RunFolder(folder).check_free()
    with RunFolder(folder).lock():
        check_same(folder, job, portfolio)
        trainer = Trainer(job, folder.absolute() / "candidates", portfolio)
        with _launcher(on, address, at_once, trainer) as launcher:
            search = Search(portfolio, job.local, job.schedule.rounds, job.seed, trials, launcher.at_once)
            clock = Clock(seconds, read_trials(folder, search) if resume else 0.0, begun)
            with closing(FitProgress(job.task.kind.primary, clock, progress)) as shown:
                running = Running(search, trainer, clock, folder, shown, launcher, refit)
                stopped = running.searched()
                if search.leader is None:
                    raise _nothing(search, seconds, clock)
                found, not_again = finalists(search.candidates), ""
                if refit:
                    found, not_again = (found, STOPPED) if stopped else running.trained_again(found)
                    stopped = not_again == STOPPED
                shown.say("choosing for each client, then measuring on test data")
                ended = ending.end(trainer, found, mixtures)
                told = summary_of(job, search, ended, clock.spent, seconds, stopped, not_again)
                ending.write(folder, trainer, ended, told, clock.spent)
                _write_config(folder, job, trainer, ended)
    made = Fit(folder, job, portfolio, temporary)
    if stopped:
        log.warning("stopped before the budget was used: this is the best so far; resume goes on")
    return made


@contextmanager
def _launcher(on: str, address: str | None, at_once: int | None, trainer: Trainer) -> Iterator[Processes | RayCalls]:
    """Where candidates are trained."""
    if on == "ray":
        trainer.share_cores(1)
        with calls_on_ray(trainer.folder, address, at_once, trainer.engine.threads or 1, trainer) as calls:
            yield calls
        return
    processes = Processes(at_once or 1, trainer)
    if processes.at_once > 1:
        trainer.share_cores(processes.threads)
    yield processes


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
    """chosen.toml: the best single method with its settings, as `run` and `deploy init --config` take it."""
    best = max(ended.finalists, key=lambda model: model.score)
    candidate = trainer.job_of(best.candidate, best.outcome.rounds)
    tables: dict[str, Any] = {"seed": job.seed, "rounds": best.outcome.rounds, "activity": job.schedule.activity}
    named = _data_is_named(job.tables)
    for name in ("data", "partition", "splits", "splitting", "task", "backbone", "model"):
        if name in job.tables and (name != "data" or named):
            tables[name] = job.tables[name]
    looks = {"input_shape": written_shape(shape_of(job.federation.x)), "classes": job.federation.classes}
    if job.federation.classes is None:
        looks["outputs"] = job.federation.y.shape[1] if job.federation.y.ndim > 1 else 1
    tables["federation"] = looks
    tables["algorithm"] = described(candidate.algorithm)
    tables["local"] = candidate.local.table()
    text = "# The best single method of a fit, chosen on validation data.\n"
    if best.who == "global":
        text += "# It is the global model that was best: models/global.safetensors of a run.\n"
    if not named:
        text += "# The data was given in Python: a run needs [data]; the sites of a federation bring their own.\n"
    if "class" in job.tables.get("model", {}):
        text += (
            "# The model was made in Python: name it, [model] name = 'package.module:Name' (docs/your-package.md).\n"
        )
    write_text(folder / "chosen.toml", text + tomli_w.dumps(without_none(tables)))


def _data_is_named(tables: Mapping[str, Any]) -> bool:
    """Whether a config can name the data: that of Python has no path, and may be divided in another way."""
    name = tables.get("data", {}).get("name")
    return name in SOURCES and ("partition" in tables or getattr(SOURCES[name], "structure", "") != "pool")
