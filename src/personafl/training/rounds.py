"""`run_rounds`: train with some clients into a run folder, from the start or from where it was."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from personafl.algorithms.base import Algorithm
from personafl.registry import described
from personafl.settings import Schedule
from personafl.states import State
from personafl.storage.folder import RunFolder
from personafl.training.clients import Clients
from personafl.training.events import Listener, RunFiles
from personafl.training.robust import Robust
from personafl.training.runner import Runner
from personafl.version import __version__


@dataclass(frozen=True)
class Origin:
    """What a run folder says of where a run comes from.

    Attributes
    ----------
    tables
        Data and model, as tables of a config.
    resolved
        What was found out: the engine, the number of clients, the data's fingerprint.
    constants
        What the model needs besides its parameters.
    frozen
        The SHA-256 of each of its parameters that is not trained.
    """

    tables: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    constants: State = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)


def run_rounds(
    folder: RunFolder,
    clients: Clients,
    algorithm: Algorithm,
    schedule: Schedule,
    origin: Origin,
    listeners: Sequence[Listener] = (),
    robust: Robust | None = None,
) -> None:
    """Train with these clients into a folder that is locked: begin a run there, or go on with the one that it holds."""
    manifest = _manifest(clients, algorithm, schedule, origin, robust)
    runner = Runner(algorithm, clients, schedule, folder, manifest, [RunFiles(folder), *listeners], robust)
    if folder.exists:
        folder.check_same(manifest)
        manifest["created"] = folder.begun_manifest().get("created", manifest["created"])
        runner.resume()
        folder.write_manifest(manifest)
    else:
        folder.create(manifest)
    folder.write_constants(origin.constants)
    folder.write_frozen(origin.frozen)
    runner.run()


def _manifest(
    clients: Clients, algorithm: Algorithm, schedule: Schedule, origin: Origin, robust: Robust | None
) -> dict[str, Any]:
    task = clients.task
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": clients.seed,
        **schedule.table(),
        "algorithm": described(algorithm),
        **origin.tables,
        "local": clients.local.table(),
        **({} if clients.privacy is None else {"privacy": clients.privacy.table()}),
        **({} if robust is None else {"robust": robust.table()}),
        "resolved": {
            **origin.resolved,
            "task": task.kind.settings,
            "loss": task.kind.loss_name,
            "metrics": {measure.name: measure.table() for measure in task.kind.measures},
            "parameters": task.size,
        },
        "versions": {
            "personafl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
