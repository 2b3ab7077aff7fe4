"""Personalized models for clients that join after training, by the rule that suits the algorithm.

A newcomer gets what the server would send now, begins as every client does that is first seen (`new_client`), trains
for a round by itself, or for as many as `extras.Welcomes` says, and then has its personalized model as every other
client has. Nothing of the run changes, and newcomers do not influence each other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm
from personafl.algorithms.dry_run import kept_optimizer_state
from personafl.algorithms.extras import needs_validation, newcomer_rounds, sent_to_newcomer
from personafl.engines.base import Engine
from personafl.engines.work import Work
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.folders import read_client
from personafl.federation.missing import filled_clients
from personafl.federation.scaling import standardized_as
from personafl.federation.sequences import as_wanted
from personafl.inputs import Inputs, Shape, read_shape, shape_of, shape_text
from personafl.states import State, each, row
from personafl.storage.checkpoint import Checkpoint, server_state
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personalize


def newcomer_federation(
    data: dict[str, Any], algorithm: Algorithm, resolved: dict[str, Any], constants: State
) -> Federation:
    """The newcomers' data, checked against the model of a run.

    Newcomers that bring no splits of their own train on everything, or keep a fifth for validation where the
    algorithm chooses something on it. Where the run's data was standardized or filled in, theirs is in the same way.
    """
    splits = (0.8, 0.2, 0.0) if needs_validation(algorithm) else (1.0, 0.0, 0.0)
    classes, expected = resolved.get("classes"), _shape_in(resolved)
    padded = {client: as_wanted(brought, expected or ()) for client, brought in data.items()}
    federation = Federation.from_clients(
        filled_clients(padded, constants), splits=splits, classes=classes,
        label_type="numbers" if classes is None else "auto", name="newcomers", constants=constants,
    )  # fmt: skip
    shape = shape_of(federation.x)
    if expected is not None and shape != expected:
        raise DataError(
            f"the newcomer's samples have shape {shape_text(shape)}, the model wants {shape_text(expected)}"
        )
    return standardized_as(federation, constants)


def features_as(x: Any, resolved: dict[str, Any], constants: State) -> Inputs:
    """Samples as the models of a run want them: padded, filled in and standardized as the run's data was."""
    samples = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
    padded = as_wanted((x, np.zeros(samples, np.int64)), _shape_in(resolved) or ())
    federation = Federation.from_clients(
        filled_clients({"x": padded}, constants), splits=(1.0, 0.0, 0.0), splitting="end"
    )
    return standardized_as(federation, constants).x


def _shape_in(resolved: dict[str, Any]) -> Shape | None:
    """The shape that samples must have; None where a run does not know it."""
    return read_shape(resolved["input_shape"]) if "input_shape" in resolved else None


def read_newcomers(path: Path) -> dict[str, Any]:
    """One `.npz` file, or a folder with one for each newcomer; the id is the file's name."""
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; a relative path starts at the working directory")
    if path.is_file() and path.suffix != ".npz":
        raise DataError(f"{path} is not a .npz file: save the newcomer's samples with numpy.savez(path, x=x, y=y)")
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no .npz file; put one file a newcomer there, with the arrays x and y")
    return {file.stem: read_client(file)[0] for file in files}


def personalize_newcomers(algorithm: Algorithm, engine: Engine, found: Checkpoint, clients: int) -> Tensor:
    """A parameter vector for each newcomer, (K, P).

    Parameters
    ----------
    engine
        With the newcomers' data.
    found
        The checkpoint of the run that they join.
    clients
        How many clients that run had.
    """
    algorithm = algorithm.prepare(replace(LocalClients(engine).job_info, clients=clients))
    server = server_state(found, engine.task.theta0, algorithm.new_server(engine.task.theta0, clients))
    models = []
    for k in range(len(engine.federation)):
        ids = np.array([k], np.int64)
        own: State = {}
        up: State = {}
        for number in range(newcomer_rounds(algorithm)):
            sent = sent_to_newcomer(algorithm, server, row(up, 0))
            if number == 0:
                begun = algorithm.new_client(found.tensors["theta0"], sent.one(0))
                begun |= kept_optimizer_state(algorithm, engine.local, begun, sent.one(0))
                own = each(lambda value: value[None], begun)
            result = engine.run(Work(algorithm, found.round + 1 + number, "newcomer", ids, own, sent))
            own, up = result.own, result.up
        models.append(personalize(algorithm, engine, sent, ids, own, found.round, last=True).theta)
    return torch.cat(models)
