"""Runs the plans of a table: what is missing.

Every run is an ordinary run folder, made by `compare.run_plan` and named after its digest, so whatever is there is
reused, by other tables too, and a command that is repeated goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from personafl.study.launch import Launcher, RunCache, Search, run_plan
from personafl.study.plan import PlannedRun
from personafl.training.events import Listener
from personafl_papers.tables.search import End, Searched, SearchPlan, run_search
from personafl_papers.tables.table import Found, Stage

log = logging.getLogger("personafl")


def run_stages(stages: Sequence[Stage], found: Found, folder: Path, launcher: Launcher) -> None:
    """Run the stages of a table, one after the other, and put their runs to what was found.

    Parameters
    ----------
    folder
        Where run folders go; tables share it.
    launcher
        How runs are made, see `compare.run_plan`.
    """
    with _warning_once():
        for stage in stages:
            for part, plan in stage(found):
                if isinstance(plan, SearchPlan):
                    cache = RunCache(folder, _Teller(found, part, plan.jobs()).begun, launcher)
                    found.searches.setdefault(part, {}).update({one.method: one for one in run_search(plan, cache)})
                    continue
                made = run_plan(plan, folder, _Teller(found, part, plan.jobs()).begun, launcher)
                for method, runs in made.methods.items():
                    found.runs.setdefault(part, {}).setdefault(method, {}).update(runs)
                for search in made.searches:
                    found.searches.setdefault(part, {})[search.method] = of_grid(search)
                found.failures += [(part, *failure) for failure in made.failures]


def of_grid(search: Search) -> Searched:
    """A search of a whole grid: at an end of it, nobody knows what is beyond."""
    found: dict[str, End] = {}
    limits = {}
    for key, value in search.chosen.items():
        values = sorted({trial.settings[key] for trial in search.trials})
        limits[key] = (values[0], values[-1])
        found[key] = "out of tries" if value in limits[key] else "inside"
    return Searched(search.method, search.measure, search.trials, search.chosen, found, limits, len(search.trials))


class _Teller:
    def __init__(self, found: Found, part: str, jobs: int) -> None:
        self.found, self.part, self.jobs, self.count = found, part, jobs, 0

    def begun(self, job: PlannedRun, reused: bool) -> Sequence[Listener]:
        self.count += 1
        self.found.tell(f"{self.part}, run {self.count} of {self.jobs}: {job.method}, seed {job.seed}")
        return ()


@contextmanager
def _warning_once() -> Iterator[None]:
    """What the data has to say is said once, not for every plan."""
    said: set[str] = set()

    def new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return text not in said and not said.add(text)  # type: ignore[func-returns-value]

    log.addFilter(new)
    try:
        yield
    finally:
        log.removeFilter(new)
