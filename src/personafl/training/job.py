"""A job: everything that a run is made of, in one object."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.algorithms.extras import trained_task
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.registry import checked, not_frozen
from personafl.settings import EngineSettings, Local, RaySettings, Schedule
from personafl.training.combinations import check_combination
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


@dataclass(frozen=True, eq=False)
class Job:
    """What is trained, on which data, how and where.

    Attributes
    ----------
    federation, task, algorithm
        The clients' data; the model with its loss and metrics; the method.
    schedule, local, engine, ray, privacy, robust
        As in a config.
    seed
        What cohorts, batches and dropout follow from.
    tables
        What run.toml says of data and model.
    """

    federation: Federation
    task: Task
    algorithm: Algorithm
    schedule: Schedule = field(default_factory=Schedule)
    local: Local = field(default_factory=Local)
    engine: EngineSettings = field(default_factory=EngineSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    privacy: Privacy | None = None
    seed: int = 0
    tables: dict[str, Any] = field(default_factory=dict)
    robust: Robust | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "local", self.local.for_rounds(self.schedule.rounds))
        object.__setattr__(self, "task", trained_task(self.algorithm, self.task))

    def check(self) -> None:
        """Check what was built in Python as strictly as a config is."""
        kind = type(self.algorithm)
        if wrong := not_frozen(kind):
            raise ConfigError(f"algorithm: {wrong}")
        if ALGORITHMS.knows(kind):
            checked(kind, "algorithm", asdict(self.algorithm))
        checked(Local, "local", asdict(self.local))
        checked(Schedule, "", asdict(self.schedule))
        if self.privacy is not None:
            checked(Privacy, "privacy", asdict(self.privacy))
        check_combination(self.algorithm, self.privacy, self.robust)

    def resuming(self, begun: dict[str, Any]) -> Job:
        """This job with the engine and the threads that its run began with: they are part of the answer's last bits."""
        engine = self.engine
        if engine.name == "auto" and "engine" in begun:
            engine = replace(engine, name=begun["engine"])
        if engine.threads is None and engine.name == begun.get("engine"):
            engine = replace(engine, threads=begun["threads"])
        return replace(self, engine=engine)
