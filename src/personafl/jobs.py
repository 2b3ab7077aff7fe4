"""`train`: a federation, a model and an algorithm in; a run out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from personafl.algorithms import Algorithm, FedAvg
from personafl.config import Config
from personafl.engines import Choice, make_engine
from personafl.errors import ConfigError, ModelError, RunError
from personafl.federation import Federation
from personafl.inputs import dtype_of, shape_of, some, written_shape
from personafl.kernels.modes import frozen_and_eval, frozen_hashes, whole_hash
from personafl.kernels.task import Objective, Task
from personafl.models import MCLR, default_model, initialize
from personafl.models.weights import load_weights
from personafl.registry import described
from personafl.runs.backbones import RAW
from personafl.runs.modules import called
from personafl.runs.run import Run
from personafl.settings import EngineSettings, Local, RaySettings, Schedule
from personafl.states import State
from personafl.storage.folder import RunFolder
from personafl.tasks import LearningTask, Metric, task_for
from personafl.training.arguments import (
    algorithm_of,
    check_federation,
    check_keys,
    check_listeners,
    check_model,
    check_seed,
    check_settings,
    features_hint,
)
from personafl.training.clients import Clients, LocalClients
from personafl.training.events import Listener, ProgressBar
from personafl.training.job import Job
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust
from personafl.training.rounds import Origin, run_rounds

log = logging.getLogger("personafl")


def train(
    federation: Federation,
    model: nn.Module,
    algorithm: Algorithm | str | None = None,
    *,
    seed: int = 0,
    schedule: Schedule | None = None,
    local: Local | None = None,
    engine: str | EngineSettings = "auto",
    ray: RaySettings | None = None,
    privacy: Privacy | None = None,
    robust: Robust | None = None,
    task: str | LearningTask | None = None,
    loss: str | Objective | None = None,
    metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Run:
    """Train personalized models for the clients of a federation.

    Parameters
    ----------
    federation
        The clients' data.
    model
        Any torch module; its present weights are where every client starts from.
    algorithm
        Such as `FedAvg()` (the default) or `FedProx(mu=0.1)`; or a name, such as "fedprox", for its defaults.
    seed
        What cohorts, batches and dropout follow from.
    schedule
        How many rounds, how many active clients, how often to evaluate: see `Schedule`.
    local
        Learning rate, batch size and local steps, see `Local`.
    engine
        The name of an engine or backend, or `EngineSettings`.
    ray
        The cluster of engine="ray", see `RaySettings`.
    privacy
        Clipping and noise on what clients send, see `Privacy`.
    robust
        What the server does about wrong answers of a few clients, see `Robust`.
    task
        What is learned, such as `pf.tasks.Regression(loss="huber")` or `"multilabel"`: loss and metrics. Left out, it
        follows from the labels, see docs/tasks.md.
    loss
        A function `(outputs, y) -> value per sample` in place of the task's loss; the metrics stay those of the task.
    metrics
        More metrics beside the task's: `{"name": function}` with functions `(outputs, y) -> value per sample`, or
        `pf.Metric`s, which say which way is better.
    out
        The run folder; left out, a temporary one that is deleted with the returned object.
    resume
        Continue the run in `out` (or start it, if there is none).
    progress
        Show a progress bar on a terminal.
    listeners
        More `Listener` objects to tell about rounds and evaluations.
    **settings
        Single fields of `Schedule` and `EngineSettings` by their names, such as `rounds=50`, `activity=0.2` or
        `threads=2`.

    Examples
    --------
    >>> import torch
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> run = pf.train(fed, nn.Linear(64, 10), pf.FedAvg(), rounds=2, progress=False)
    >>> len(run.clients()), run.personal("client-3")(torch.zeros(1, 64)).shape
    (5, torch.Size([1, 10]))
    """
    check_federation(federation)
    check_model(model)
    check_seed(seed)
    check_listeners(listeners)
    check_settings(
        schedule, local, privacy, engine, loss=loss, metrics=metrics, robust=robust, out=out, settings=settings
    )
    schedule, chosen = with_settings(schedule, engine, settings)
    for note in federation.notes:
        log.warning("%s", note)
    job = Job(
        federation,
        module_task(federation, model, task, loss, metrics),
        FedAvg() if algorithm is None else algorithm_of(algorithm),
        schedule,
        local or Local(),
        chosen,
        ray or RaySettings(),
        privacy,
        seed,
        module_tables(federation, model),
        robust,
    )
    return run_job(job, out, resume, [*listeners, *([ProgressBar()] if progress else [])])


def module_task(
    federation: Federation,
    module: nn.Module,
    task: str | LearningTask | None = None,
    loss: str | Objective | None = None,
    metrics: Mapping[str, Any] | Sequence[Metric] | None = None,
) -> Task:
    """A module with the task that is named, or else that the federation's labels stand for."""

    def outputs(rows: Tensor) -> Tensor:
        made = Task(module)
        with torch.no_grad():
            return made.predict(made.theta0, some(federation.x, rows))

    return Task(module, task_for(federation.y, lambda: training_labels(federation), task, loss, metrics, outputs))


def training_labels(federation: Federation) -> Tensor:
    """The labels of all clients' training data."""
    starts, sizes = federation.starts("train"), federation.sizes("train")
    return torch.cat([federation.y[i : i + n] for i, n in zip(starts.tolist(), sizes.tolist(), strict=True)])


def module_tables(federation: Federation, module: nn.Module) -> dict[str, Any]:
    """What run.toml says of data and a model that were made in Python."""
    return {"data": {"name": federation.name}, **_backbone_table(federation), "model": {"class": type(module).__name__}}


def _backbone_table(federation: Federation) -> dict[str, Any]:
    """What run.toml says of the backbone whose features the data is."""
    return {} if federation.backbone is None else {"backbone": federation.backbone.table()}


def with_settings(
    schedule: Schedule | None, engine: str | EngineSettings, settings: Mapping[str, Any]
) -> tuple[Schedule, EngineSettings]:
    """A schedule and engine settings with single fields changed by their names.

    >>> schedule, engine = with_settings(None, "loop", {"rounds": 3, "threads": 1})
    >>> schedule.rounds, engine.name, engine.threads
    (3, 'loop', 1)
    """
    made = EngineSettings(engine) if isinstance(engine, str) else engine
    of_schedule, of_engine = ([f.name for f in fields(kind)] for kind in (Schedule, EngineSettings))
    check_keys(settings)
    schedule = replace(schedule or Schedule(), **{k: v for k, v in settings.items() if k in of_schedule})
    return schedule, replace(made, **{k: v for k, v in settings.items() if k in of_engine})


def train_config(
    config: Config,
    out: str | Path,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    federation: Federation | None = None,
) -> Run:
    """Train what a config describes; its federation may be given where it was made already."""
    if not resume:
        RunFolder(Path(out)).check_free()  # before the data is loaded
    if federation is None:
        federation = config.federation()
        for note in federation.notes:
            log.warning("%s", note)
    return run_job(config_job(config, federation), out, resume, listeners)


def config_job(config: Config, federation: Federation) -> Job:
    """The job that a config describes, on a federation that was made of it."""
    model = config.model or (MCLR() if config.backbone else default_model(shape_of(federation.x)))
    parts = {"data": config.data, "partition": config.partition, "model": model}
    tables: dict[str, Any] = {key: described(value) for key, value in parts.items() if value is not None}
    tables |= _backbone_table(federation)
    if config.splits is not None:
        tables["splits"] = list(config.splits)
    if config.splitting != "random":
        tables["splitting"] = config.splitting
    kind = task_for(federation.y, lambda: training_labels(federation), config.task)
    if config.task is not None:
        tables["task"] = described(config.task)
    outputs = kind.outputs(federation.y, federation.classes)
    module = initialize(model, shape_of(federation.x), outputs, config.seed, federation.constants)
    if config.weights is not None:
        tables["model"]["weights"] = config.weights
        load_weights(module, Path(config.weights))
    return Job(
        federation,
        Task(module, kind),
        config.algorithm,
        config.schedule,
        config.local,
        config.engine,
        config.ray,
        config.privacy,
        config.seed,
        tables,
        config.robust,
    )


def run_job(job: Job, out: str | Path | None, resume: bool = False, listeners: Sequence[Listener] = ()) -> Run:
    """Train what a job describes, into a run folder or a temporary one."""
    job.check()
    if resume and out is None:
        raise RunError("resume needs the run folder: name it with out")
    if not job.federation.sizes("test").any():
        log.warning("no client has test samples, so nothing will be scored: give splits with a share for test")
    temporary = tempfile.TemporaryDirectory(prefix="personafl-") if out is None else None
    folder = RunFolder(Path(temporary.name if temporary else str(out)))
    if not resume:
        folder.check_free()
    with folder.lock():
        begun = folder.begun_manifest().get("resolved", {}) if resume and folder.exists else {}
        job = job.resuming(begun)
        try:
            clients, choice = make_clients(job, folder)
        except ModelError as error:
            hint = features_hint(job.federation) if "fails on a batch" in str(error) else ""
            raise ModelError(f"{error}{hint}") from error
        if clients.privacy != job.privacy:  # promised to people, so never left out in silence
            raise ConfigError(f"engine = {choice.engine!r} cannot protect what clients send: use another for [privacy]")
        frozen = frozen_hashes(job.task.template)
        resolved = _resolved(job, choice) | ({"frozen_sha256": whole_hash(frozen)} if frozen else {})
        log.info("%s", job.task.kind.sentence())
        if not job.task.template.training:
            log.warning(
                "the model is in eval(), and stays so while clients train: dropout does nothing, and batch "
                "normalization keeps its statistics, the same for all clients; call model.train() first if that is "
                "not meant"
            )
        if choice.engine == begun.get("engine"):
            resolved["engine_reason"] = begun.get("engine_reason", choice.reason)
        origin = Origin(job.tables, resolved, _constants(job.federation), frozen)
        with closing(clients):
            run_rounds(folder, clients, job.algorithm, job.schedule, origin, listeners, job.robust)
    backbone = job.federation.backbone
    return Run(folder.path, algorithm=job.algorithm, task=job.task, temporary=temporary, backbone=backbone)


def _constants(federation: Federation) -> State:
    """What models need besides their parameters, and what samples need before they go through a backbone."""
    raw = {} if federation.raw is None else federation.raw.constants
    return {**federation.constants, **{f"{RAW}{name}": value for name, value in raw.items()}}


def _resolved(job: Job, choice: Choice) -> dict[str, Any]:
    federation, kind = job.federation, job.task.kind
    classes = federation.classes if kind.has_classes else None
    resolved = {
        "engine": choice.engine,
        "threads": choice.threads,
        "memory": job.engine.memory,
        "device": job.engine.device,
        "engine_reason": choice.reason,
        "clients": len(federation),
        "classes": classes,
        "labels": federation.class_names if classes else None,
        "input_shape": written_shape(shape_of(federation.x)),
        "input_dtype": dtype_of(federation.x),
        "outputs": kind.outputs(federation.y, federation.classes),
        "fingerprint": federation.fingerprint,
        **frozen_and_eval(job.task.template),
    }
    if federation.raw is not None:
        resolved["raw"] = federation.raw.resolved()
    if job.engine.precision != "float32":
        resolved["precision"] = job.engine.precision
    if "name" not in job.tables.get("model", {}):
        resolved["module"] = called(job.task.inner or job.task.template)
    if job.privacy is not None and job.privacy.noise:
        resolved["noise"] = "follows from the seed: protects nobody"
    return resolved


def make_clients(job: Job, folder: RunFolder) -> tuple[Clients, Choice]:
    """The clients of a job, on the backend or engine that it asks for."""
    if job.engine.name == "flower-sim":
        from personafl.backends.flower.simulation import simulated_clients

        flower = simulated_clients(job, folder.path)
        return flower, Choice("flower-sim", flower.threads, "asked for")
    if job.engine.name == "ray":
        from personafl.backends.ray.clients import RayClients

        clients = RayClients(job, folder)
        return clients, Choice("ray", clients.threads, f"asked for; actors run the {clients.engine} engine")
    cohort = job.schedule.cohort_size(len(job.federation))
    engine, choice = make_engine(
        job.engine, job.task, job.federation, job.local, job.seed, cohort=cohort, rounds=job.schedule.rounds
    )
    return LocalClients(engine, job.engine.state_memory, folder.path, job.privacy), choice
