"""What a planned run is made of: a config, or what somebody built in Python; and what makes it another run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.config import Config
from personafl.federation import Federation
from personafl.jobs import config_job, module_tables
from personafl.kernels.task import Task
from personafl.registry import checked, require_known_key
from personafl.runs.run import Run
from personafl.settings import EngineSettings, Local, Schedule
from personafl.study.description import description
from personafl.training.combinations import check_combination
from personafl.training.job import Job
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust
from personafl.version import __version__


@dataclass(frozen=True, eq=False)
class JobRecipe:
    """A job from Python; its data and its model are made when its turn comes, and follow from the seed.

    Attributes
    ----------
    seed, algorithm, schedule, local, engine, privacy, robust
        As in `Job`.
    make_federation, make_task
        The data of a seed, and the model with its loss and metrics.
    temporary
        The folder that runs are in, where it is to go with the last of them.
    """

    seed: int
    algorithm: Algorithm
    schedule: Schedule
    local: Local
    engine: EngineSettings
    privacy: Privacy | None
    make_federation: Callable[[int], Federation]
    make_task: Callable[[int, Federation], Task]
    temporary: TemporaryDirectory[str] | None = None
    robust: Robust | None = None

    def federation(self) -> Federation:
        """The data of this seed."""
        return self.make_federation(self.seed)

    def job(self, federation: Federation) -> Job:
        """The job on a federation that `federation` made."""
        task = self.make_task(self.seed, federation)
        return Job(
            federation, task, self.algorithm, self.schedule, self.local, self.engine,
            privacy=self.privacy, robust=self.robust, seed=self.seed, tables=module_tables(federation, task.template),
        )  # fmt: skip

    def with_settings(self, settings: Mapping[str, Any]) -> JobRecipe:
        """With values for dotted keys: `local.…`, `algorithm.…`, or a field of the schedule. They are checked."""
        tables: dict[str, dict[str, Any]] = {"local": {}, "algorithm": {}, "": {}}
        for key, value in settings.items():
            table, dot, name = key.partition(".")
            tables[table if dot else ""][name or table] = value
        algorithm = self.algorithm
        for name in tables["algorithm"]:
            require_known_key("algorithm.", name, list(asdict(algorithm)))
        if type(algorithm) in ALGORITHMS.values():
            algorithm = checked(type(algorithm), "algorithm", asdict(algorithm) | tables["algorithm"])
        elif tables["algorithm"]:
            algorithm = replace(algorithm, **tables["algorithm"])
        local = checked(Local, "local", asdict(self.local) | tables["local"])
        check_combination(algorithm, self.privacy, self.robust)
        return replace(self, algorithm=algorithm, local=local, schedule=replace(self.schedule, **tables[""]))


Recipe = Config | JobRecipe


def job_of(recipe: Recipe, federation: Federation) -> Job:
    """What is trained, on the federation that was made of the recipe."""
    return config_job(recipe, federation) if isinstance(recipe, Config) else recipe.job(federation)


def run_of(recipe: Recipe, federation: Federation, path: Path) -> Run:
    """A finished run; one from Python knows its model and its algorithm."""
    if isinstance(recipe, Config):
        return Run(path, backbone=federation.backbone)
    task = recipe.make_task(recipe.seed, federation)
    return Run(path, algorithm=recipe.algorithm, task=task, temporary=recipe.temporary, backbone=federation.backbone)


def identity(recipe: Recipe, federation: Federation) -> str:
    """Eight characters that stand for a recipe, its data and the version: equal for runs that can be reused.

    The engine is no part of it. Of a module, a loss and an algorithm from Python, the weights and the code count, see
    `description`.
    """
    everything: list[Any]
    if isinstance(recipe, Config):
        tables = recipe.tables()
        weights = Path(recipe.weights).read_bytes() if recipe.weights and Path(recipe.weights).is_file() else b""
        everything = [sha256(weights).hexdigest()]
    else:
        job = recipe.job(federation)
        tables = {"seed": job.seed, **job.schedule.table(), **job.tables, "local": job.local.table()}
        tables["privacy"] = None if job.privacy is None else job.privacy.table()
        tables |= {} if job.robust is None else {"robust": job.robust.table()}
        everything = [
            description(job.algorithm),
            description(job.task.template),
            description(job.task.kind),
        ]
    kept = {key: value for key, value in tables.items() if key not in ("engine", "ray", "checkpoint_every")}
    everything = [kept, federation.fingerprint, __version__, *everything]
    return sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:8]
