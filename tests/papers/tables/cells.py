"""One cell of a table at reduced size: what the tests of tables have in common."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from personafl.jobs import train_config
from personafl.runs.run import Run
from personafl.study.plan import Plan
from personafl_papers.tables import TABLES
from personafl_papers.tables.table import Found

REAL = Path(os.environ.get("PERSONAFL_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


def use_real_data(monkeypatch, table: str) -> None:
    """Skip where the data of a table is neither in the directory of PERSONAFL_DATA nor in ../shared/data."""
    if REAL.is_dir():
        monkeypatch.setenv("PERSONAFL_DATA", str(REAL))
    if lacking := TABLES[table].missing:
        pytest.skip(f"{', '.join(lacking)} is neither in the directory of PERSONAFL_DATA nor in ../shared/data")


@contextmanager
def first_stage(table: str, part: str, method: str, folder: Path) -> Iterator[Found]:
    """What later stages of a table start from: the model of its first."""
    with pytest.MonkeyPatch.context() as patch:
        use_real_data(patch, table)
        found = Found(quick=True)
        found.runs[part] = {method: {0: run_cell(table, part, method, folder, found=found)}}
        yield found


def run_cell(table: str, part: str, method: str, folder: Path, seed: int = 0, found: Found | None = None) -> Run:
    """Train one method of one part with one seed, as `--quick` does, without the searches of earlier stages."""
    found = found or Found(quick=True, seed=seed)
    for stage in TABLES[table].stages:
        for of, plan in stage(found):
            if of == part and isinstance(plan, Plan) and method in plan.methods:
                return train_config(plan.job(method, seed).config, folder / f"{method}-{seed}")
    raise KeyError(f"{table} has no {method} in {part}")
