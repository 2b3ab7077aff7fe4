"""What the PersFL thesis measures: users' accuracies, their spread, teachers, rounds, improvement and its fairness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.metrics import fairness_of, improvement_of, quantum_of_improvement
from personafl.runs.run import Run
from personafl.study.judgement import accuracy_of, mean_accuracies
from personafl_papers.tables.claims import Number
from personafl_papers.tables.measures import Runs
from personafl_papers.tables.table import number

Floats = NDArray[np.float64]
FEDAVG = "fedavg-global"
"""The method whose personalized model is FedAvg's global one."""

SAME = 0.005
"""Accuracies this close count as reached: half a point."""


def measured_part(runs: Runs, rows: Mapping[str, str]) -> dict[str, dict[str, Number]]:
    """The numbers of one division of one data set, by row."""
    out: dict[str, dict[str, Number]] = {}
    for method, row in rows.items():
        if not runs.get(method):
            continue  # every seed failed, which the results say
        found = [of_run(run, seed, runs) for seed, run in runs[method].items()]
        kept = [column for column in found[0] if all(np.isfinite(one.get(column, np.nan)) for one in found)]
        out[row] = {column: number([one[column] for one in found]) for column in kept}
    return out


def of_run(run: Run, seed: int, runs: Runs) -> dict[str, float]:
    """The columns of one run. Those that compare need FedAvg's, PersFL's or the separate run of the same seed."""
    mine = users_of(run)
    found: dict[str, float] = {
        "accuracy": 100 * float(np.nanmean(mine)),
        "SD": 100 * float(np.nanstd(mine, ddof=1)),
        "rounds": float(run.rounds()[-1]["round"]),
    }
    table = run.clients()
    if "teacher_round" in table.column_names:
        found["rounds to match"] = found["rounds"]  # the students are made after the last round
    elif seed in runs.get("persfl", {}):
        found["rounds to match"] = rounds_to_match(run, float(np.nanmean(users_of(runs["persfl"][seed]))))
    if "teacher_round" in table.column_names:
        found["T"], found["λ"] = (float(_column(table, c).mean()) for c in ("temperature", "imitation"))
        teachers = _column(table, "teacher_round")
        found["teacher's round"], found["different teachers"] = float(teachers.mean()), float(len(np.unique(teachers)))
    if seed in runs.get(FEDAVG, {}) and run.path != runs[FEDAVG][seed].path:
        common = users_of(runs[FEDAVG][seed])
        found |= {f"{key} over FedAvg": value for key, value in improvement(mine, common).items()}
        if run.manifest["algorithm"]["name"] != "separate" and seed in runs.get("separate", {}):
            found |= improvement(mine, common, users_of(runs["separate"][seed]))
    return found


def improvement(mine: Floats, *others: Floats) -> dict[str, float]:
    """PUI, API and MPI over the best of the others, and Jain's index of the improved users; NaN where there are none.

    >>> found = improvement(np.array([0.9, 0.8]), np.array([0.5, 0.7]), np.array([0.6, 0.4]))
    >>> {key: round(value, 2) for key, value in found.items()}
    {'PUI': 100.0, 'API': 20.0, 'MPI': 20.0, 'JI': 0.8}
    """
    qoi = quantum_of_improvement(mine, *others)
    improved = improvement_of(qoi)
    return {
        "PUI": improved.pui, "API": 100 * improved.api, "MPI": 100 * improved.mpi, "JI": fairness_of(qoi).improved.ji,
    }  # fmt: skip


def rounds_to_match(run: Run, target: float) -> float:
    """The first evaluated round whose mean accuracy comes close to the target; the last if none does."""
    rounds, means = mean_accuracies(run)
    return float(next((r for r, mean in zip(rounds, means, strict=True) if mean >= target - SAME), rounds[-1]))


def users_of(run: Run) -> Floats:
    """The accuracy of each user after the last round."""
    found = accuracy_of(run)
    assert found is not None  # all of these methods classify
    return found


def _column(table: Any, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(zero_copy_only=False), np.float64)
