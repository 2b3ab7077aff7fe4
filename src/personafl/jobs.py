"""`train`: a federation, a model and an algorithm in; a run out."""

from __future__ import annotations

import logging
import platform
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from personafl.algorithms import ALGORITHMS, Algorithm, FedAvg
from personafl.config import Config, default_model
from personafl.engines import Choice, make_engine
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.kernels.task import LOSSES, Objective, Task
from personafl.models import initialize
from personafl.registry import checked
from personafl.runs.run import Run
from personafl.settings import EngineSettings, Local, RaySettings, Schedule
from personafl.states import State
from personafl.storage.folder import RunFolder
from personafl.training.clients import Clients, LocalClients
from personafl.training.events import Listener, ProgressBar, RunFiles
from personafl.training.privacy import Privacy
from personafl.training.runner import Runner
from personafl.version import __version__

log = logging.getLogger("personafl")


def train(
    federation: Federation,
    model: nn.Module,
    algorithm: Algorithm | None = None,
    *,
    rounds: int = 100,
    seed: int = 0,
    activity: float = 1.0,
    local: Local | None = None,
    privacy: Privacy | None = None,
    eval_every: int = 10,
    checkpoint_every: int = 10,
    eval_clients: int = 0,
    models_mb: int = 1024,
    engine: str = "auto",
    threads: int | None = None,
    memory: int = 1024,
    device: str = "cpu",
    state_memory: int = 1024,
    ray: RaySettings | None = None,
    loss: str | Objective | None = None,
    metrics: Mapping[str, Objective] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    listeners: Sequence[Listener] = (),
) -> Run:
    """Train personalized models for the clients of a federation.

    Parameters
    ----------
    federation
        The clients' data.
    model
        Any torch module; its present weights are where every client starts from.
    algorithm
        Such as `FedAvg()` (the default) or `FedProx(mu=0.1)`.
    rounds, activity, eval_every, checkpoint_every, eval_clients, models_mb
        See `Schedule`.
    local
        Learning rate, batch size and local steps, see `Local`.
    privacy
        Clipping and noise on what clients send, see `Privacy`.
    engine, threads, memory, device, state_memory
        See `EngineSettings`.
    ray
        The cluster of engine="ray", see `RaySettings`.
    loss, metrics
        See `Task`; left out, cross-entropy where the federation has classes, else squared error.
    out
        The run folder; left out, a temporary one that is deleted with the returned object.
    resume
        Continue the run in `out` (or start it, if there is none).
    progress
        Show a progress bar on a terminal.
    listeners
        More `Listener` objects to tell about rounds and evaluations.

    Examples
    --------
    >>> import personafl as pf
    >>> fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    >>> run = pf.train(fed, nn.Linear(64, 10), pf.FedAvg(), rounds=2, progress=False)
    >>> len(run.clients()), run.personal("client-3")(torch.zeros(1, 64)).shape
    (5, torch.Size([1, 10]))
    """
    task = Task(model, loss or _default_loss(federation), metrics)  # type: ignore[arg-type]
    return _train(
        federation,
        task,
        algorithm or FedAvg(),
        Schedule(rounds, activity, eval_every, checkpoint_every, eval_clients, models_mb),
        local or Local(),
        EngineSettings(engine, threads, memory, device, state_memory),
        seed,
        {"data": {"name": federation.name}, "model": {"class": type(model).__name__}},
        out,
        resume,
        [*listeners, *([ProgressBar()] if progress else [])],
        privacy,
        ray,
    )


def train_config(
    config: Config,
    out: str | Path,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    federation: Federation | None = None,
) -> Run:
    """Train what a config describes; its federation may be given where it is at hand already."""
    early = RunFolder(Path(out))
    if not resume:
        early.check_free()
    if federation is None:
        federation = config.federation()
        for note in federation.notes:
            log.warning("%s", note)
    outputs = federation.classes or int(np.prod(federation.y.shape[1:]))
    model = config.model or default_model(federation.x.shape[1:])
    config = replace(config, model=model)
    module = initialize(model, federation.x.shape[1:], outputs, config.seed, federation.tables)
    if config.weights is not None:
        load_weights(module, Path(config.weights))
    described = {
        key: value for key, value in config.tables().items() if key in ("data", "partition", "splits", "model")
    }
    return _train(
        federation, Task(module, _default_loss(federation)), config.algorithm, config.schedule, config.local,  # type: ignore[arg-type]
        config.engine, config.seed, described, out, resume, listeners, config.privacy, config.ray,
    )  # fmt: skip


def load_weights(module: nn.Module, path: Path) -> None:
    """Warm start: give a module the weights of a safetensors file, such as models/global.safetensors of a run."""
    run = RunFolder(path.parent.parent)
    if run.exists and path.exists():  # of a run: it knows what its files must be
        run.check_intact(f"{path.parent.name}/{path.name}")
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model.weights = {str(path)!r} cannot be read: {error}") from None
    wanted = {name: tuple(value.shape) for name, value in module.named_parameters()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    if found != wanted:
        name = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
        raise ConfigError(
            f"model.weights = {str(path)!r} belongs to another model: {name} is {found.get(name, 'missing')} there, "
            f"{wanted.get(name, 'missing')} here"
        )
    module.load_state_dict(state, strict=False)


def _default_loss(federation: Federation) -> str:
    return "mse" if federation.classes is None else "cross_entropy"


def _train(
    federation: Federation,
    task: Task,
    algorithm: Algorithm,
    schedule: Schedule,
    local: Local,
    settings: EngineSettings,
    seed: int,
    described: dict[str, Any],
    out: str | Path | None,
    resume: bool,
    listeners: Sequence[Listener],
    privacy: Privacy | None = None,
    ray: RaySettings | None = None,
) -> Run:
    if type(algorithm) in ALGORITHMS.values():  # built in Python, it was not checked by a config
        checked(type(algorithm), "algorithm", asdict(algorithm))
    checked(Local, "local", asdict(local))
    if privacy is not None:
        checked(Privacy, "privacy", asdict(privacy)).check(algorithm)
    if resume and out is None:
        raise RunError("resume needs the run folder: name it with out")
    temporary = tempfile.TemporaryDirectory(prefix="personafl-") if out is None else None
    folder = RunFolder(Path(temporary.name if temporary else str(out)))
    if not resume:
        folder.check_free()
    with folder.lock():
        going_on = resume and folder.exists
        if going_on:
            # The engine and its threads are part of the answer's last bits: keep what the run began with.
            begun = folder.manifest().get("resolved", {})
            if settings.name == "auto" and "engine" in begun:
                settings = replace(settings, name=begun["engine"])
            if settings.threads is None and settings.name == begun.get("engine"):
                settings = replace(settings, threads=begun["threads"])
        clients, choice = _clients(settings, task, federation, algorithm, local, seed, schedule, folder, privacy, ray)
        if clients.privacy != privacy:  # promised to people, so never left out in silence
            raise ConfigError(f"engine = {choice.engine!r} cannot protect what clients send: use another for [privacy]")
        resolved = {
            "engine": choice.engine,
            "threads": choice.threads,
            "memory": settings.memory,
            "device": settings.device,
            "engine_reason": choice.reason,
            "clients": len(federation),
            "classes": federation.classes,
            "labels": federation.labels,
            "input_shape": list(federation.x.shape[1:]),
            "input_dtype": str(federation.x.dtype).removeprefix("torch."),
            "outputs": federation.classes or int(np.prod(federation.y.shape[1:])),
            "fingerprint": federation.fingerprint,
        }
        if privacy is not None and privacy.noise:
            resolved["noise"] = "follows from the seed: protects nobody"
        if going_on and choice.engine == begun.get("engine"):
            resolved["engine_reason"] = begun["engine_reason"]
        with closing(clients):
            run_rounds(folder, clients, algorithm, schedule, described, resolved, federation.tables, listeners)
    return Run(folder.path, algorithm=algorithm, task=task, temporary=temporary)


def _clients(
    settings: EngineSettings,
    task: Task,
    federation: Federation,
    algorithm: Algorithm,
    local: Local,
    seed: int,
    schedule: Schedule,
    folder: RunFolder,
    privacy: Privacy | None,
    ray: RaySettings | None,
) -> tuple[Clients, Choice]:
    """The clients of a federation, on the engine that is asked for."""
    if settings.name == "flower-sim":
        from personafl.backends.flower.simulation import simulated_clients

        flower = simulated_clients(task, federation, algorithm, local, seed, folder.path, privacy)
        return flower, Choice("flower-sim", flower.threads, "asked for")
    if settings.name == "ray":
        from personafl.backends.ray.clients import RayClients

        clients = RayClients(federation, task, local, seed, folder, settings, ray, privacy)
        return clients, Choice("ray", clients.threads, f"asked for; actors run the {clients.engine} engine")
    engine, choice = make_engine(
        settings.name, task, federation, local, seed, settings.memory, settings.threads, settings.device,
        cohort=schedule.cohort_size(len(federation)), rounds=schedule.rounds,
    )  # fmt: skip
    return LocalClients(engine, settings.state_memory, folder.path, privacy), choice


def run_rounds(
    folder: RunFolder,
    clients: Clients,
    algorithm: Algorithm,
    schedule: Schedule,
    described: dict[str, Any],
    resolved: dict[str, Any],
    tables: State,
    listeners: Sequence[Listener] = (),
) -> None:
    """Train with these clients into a folder that is locked: begin a run there, or go on with the one that it holds.

    Parameters
    ----------
    described, resolved
        What run.toml says of data and model, and of what was found out.
    tables
        What the model needs besides its parameters.
    """
    task = clients.task
    manifest: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": clients.seed,
        **asdict(schedule),
        **described,
        "local": asdict(clients.local),
        "algorithm": {"name": algorithm.name, **asdict(algorithm)},
        **({} if clients.privacy is None else {"privacy": clients.privacy.table()}),
        "resolved": {
            **resolved,
            "loss": next((name for name, known in LOSSES.items() if known is task.objective), "custom"),
            "parameters": task.size,
        },
        "versions": {
            "personafl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    runner = Runner(algorithm, clients, schedule, folder, manifest, [RunFiles(folder), *listeners])
    if folder.exists:
        folder.check_same(manifest)
        manifest["created"] = folder.manifest().get("created", manifest["created"])
        runner.resume()
        folder.write_manifest(manifest)
    else:
        folder.create(manifest)
    folder.write_tables(tables)
    runner.run()
