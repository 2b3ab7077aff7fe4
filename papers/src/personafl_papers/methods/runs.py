"""The runs of the study: each is a line of a file, and what is missing there is made.

A line is added when a run has ended, so a study that was killed goes on where it was. Of several lines of one run the
last counts. A method that refuses a federation, or diverges, or breaks, leaves a line that says so.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import needs_validation
from personafl.errors import ConfigError, DataError, ModelError, PersonaflError, TrainingFailed
from personafl.federation import Federation
from personafl.inputs import shape_of
from personafl.jobs import module_task, run_job
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.plugins import why
from personafl.registry import require_known_key
from personafl.settings import EngineSettings, Local, Schedule
from personafl.states import State
from personafl.storage.json_lines import JsonLines
from personafl.study.plan import HELD_BACK
from personafl.study.processes import Processes
from personafl.study.recipes import JobRecipe
from personafl.training.events import Listener
from personafl.version import __version__
from personafl_papers.methods.federations import FEDERATIONS
from personafl_papers.methods.grids import grid_of
from personafl_papers.methods.sizes import Size

EDITION = 1
"""Of the federations: counted up when one is made in another way, so that runs of the old one are not taken for it."""

MEMORY = Path("/dev/shm")
"""Where run folders go that nobody keeps, if it is there: a disk takes longer than the training."""

Record = dict[str, Any]
"""A line of the file, see `run_one`."""


@dataclass(frozen=True)
class StudyRun:
    """A run of the study.

    Attributes
    ----------
    settings
        Values of dotted keys, such as {"local.lr": 0.1}.
    held_back
        Whether a part of the validation data is kept from an algorithm that chooses on it, so that the try can be
        scored there.
    """

    federation: str
    method: str
    seed: int
    settings: dict[str, Any]
    size: Size
    held_back: bool = False

    @property
    def key(self) -> str:
        """What stands for this run in the file."""
        everything = [EDITION, __version__, self.federation, self.method, self.seed, self.settings, self.held_back]
        text = json.dumps([*everything, asdict(self.size)], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]

    def recipe(self) -> JobRecipe:
        """What is trained; the settings are checked."""
        size = self.size
        local = Local(batch_size=size.batch_size, steps=size.steps, held_back=HELD_BACK if self.held_back else None)
        schedule = Schedule(rounds=size.rounds, eval_every=0, checkpoint_every=0)
        engine = EngineSettings("stacked", threads=1)
        plain = JobRecipe(
            self.seed, ALGORITHMS[self.method](), schedule, local, engine, None, self._federation, self._task
        )
        return plain.with_settings(self.settings)

    def _federation(self, seed: int) -> Federation:
        return federation_of(self.federation, self.size, seed)

    def _task(self, seed: int, federation: Federation) -> Task:
        model = FEDERATIONS[self.federation].model(self.size)
        return module_task(federation, initialize(model, shape_of(federation.x), federation.classes or 1, seed))


@lru_cache(maxsize=3)
def federation_of(name: str, size: Size, seed: int) -> Federation:
    """A federation of the study; the last few are kept."""
    return FEDERATIONS[name].make(size, seed)


# --- one run ----------------------------------------------------------------------------------------------------------


class _LastEvaluation(Listener):
    def __init__(self) -> None:
        self.clients: pa.Table | None = None

    def evaluated(self, round: int, clients: pa.Table, server: State) -> None:
        self.clients = clients


def run_one(one: StudyRun) -> Record:
    """Train, and say what came out.

    Returns
    -------
    dict
        `status`: done, refused (the method does not take this federation or these settings), diverged, or error (with
        `why`). Of one that is done: `val` and `held`, the right answers and the samples of all clients together and
        the mean loss on validation data; `test`, each client's right answers; `n_test`, its samples; `global`, right
        answers of the global model, where there is one; `gradients`, how many a client computed on average.
    """
    begun = time.process_time()
    heard = _LastEvaluation()
    status, reason = "done", ""
    federation = federation_of(one.federation, one.size, one.seed)  # where that fails, no method is to blame
    try:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            run_job(one.recipe().job(federation), folder, listeners=[heard])
    except TrainingFailed as error:
        status, reason = "diverged", str(error)
    except (ConfigError, DataError, ModelError) as error:
        status, reason = "refused", str(error)
    except Exception as error:  # a defect of one method must not take the study with it
        status, reason = "error", str(error) if isinstance(error, PersonaflError) else why(error)
    said = {"status": status, **({"why": reason} if reason else {})}
    if status == "done" and heard.clients is not None:
        said |= _measured(heard.clients)
        if not np.isfinite(said["val"][2]):
            said = {"status": "diverged", "why": "the loss on validation data is not finite"}
    about = {"federation": one.federation, "method": one.method, "seed": one.seed, "settings": one.settings}
    return {"key": one.key, **about, **said, "seconds": round(time.process_time() - begun, 2)}


def _measured(clients: pa.Table) -> dict[str, Any]:
    def column(name: str) -> Any:
        return clients.column(name).to_numpy(zero_copy_only=False)

    def pooled(tag: str, counts: str) -> list[Any]:
        n = column(counts)
        loss = float(np.nansum(column(f"personal_{tag}_loss") * n) / max(n.sum(), 1))
        return [int(np.nansum(column(f"personal_{tag}_correct"))), int(n.sum()), round(loss, 6)]

    found: dict[str, Any] = {"val": pooled("val", "n_val")}
    if "n_held" in clients.column_names:
        found["held"] = pooled("held", "n_held")
    found |= {"test": _counts(column("personal_correct")), "n_test": _counts(column("n_test"))}
    if clients.column("global_correct").null_count < len(clients):
        found["global"] = int(np.nansum(column("global_correct")))
    found["gradients"] = round(float(np.nanmean(column("gradients"))), 1)
    return found


def _counts(values: Any) -> list[int]:
    return [int(value) for value in np.nan_to_num(values.astype(np.float64))]


# --- all runs ---------------------------------------------------------------------------------------------------------


def tries(federation: str, method: str, size: Size, seed: int) -> list[StudyRun]:
    """The settings that are tried for a method, with the first seed."""
    grid = grid_of(method)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    held = needs_validation(ALGORITHMS[method]())
    return [StudyRun(federation, method, seed, point, size, held) for point in points]


def check_grids(methods: Sequence[str]) -> None:
    """Raise a ConfigError where a grid names what a method does not have."""
    for method in methods:
        for key in grid_of(method):
            table, _, name = key.partition(".")
            known = list(asdict(ALGORITHMS[method]() if table == "algorithm" else Local()))
            require_known_key(f"{table}.", name, known)


def chosen(tried: Sequence[Record]) -> dict[str, Any] | None:
    """The settings with the best score on validation data, the first of equal ones; None if no try ended well.

    The score is the accuracy on what was held back from the method, where it was; of equal ones the loss decides.
    """

    def score(record: Record) -> tuple[float, float]:
        right, samples, loss = record["held"] if "held" in record else record["val"]
        return right / max(samples, 1), -loss

    done = [record for record in tried if record["status"] == "done"]
    return dict(max(done, key=score)["settings"]) if done else None


class RunFile:
    """The lines of a study, and the runs that are missing there."""

    def __init__(self, path: Path) -> None:
        self.lines = JsonLines(path, Record)
        self.known: dict[str, Record] = {record["key"]: record for record in self.lines.records()}

    def forget(self, methods: Sequence[str]) -> None:
        """Make the runs of these methods again."""
        self.known = {key: record for key, record in self.known.items() if record["method"] not in methods}

    def make(self, runs: Sequence[StudyRun], processes: Processes, tell: Callable[[str], None]) -> list[Record]:
        """The records of these runs; those that are missing are made."""
        new = [run for run in runs if run.key not in self.known]
        calls: Iterator[tuple[StudyRun, Callable[..., Record], tuple[Any, ...]]] = ((r, run_one, (r,)) for r in new)
        for count, (run, record) in enumerate(processes.results(calls), 1):
            self.lines.append(record)
            self.known[run.key] = record
            tell(f"{run.federation}: {count} of {len(new)} runs, {run.method} with seed {run.seed}")
        return [self.known[run.key] for run in runs]


def make_federation(
    federation: str, methods: Sequence[str], size: Size, seed: int, file: RunFile, processes: Processes,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """All runs of a federation: every method's tries with the first seed, then what was chosen with all seeds."""
    planned = {method: tries(federation, method, size, seed) for method in methods}
    made = iter(file.make([run for runs in planned.values() for run in runs], processes, tell))
    final = []
    for method, runs in planned.items():
        settings = chosen(list(itertools.islice(made, len(runs))))
        if settings is not None:
            final += [StudyRun(federation, method, s, settings, size) for s in range(seed, seed + size.seeds)]
    file.make(final, processes, tell)
