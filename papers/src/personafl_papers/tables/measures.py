"""From runs to numbers: the columns of `personafl compare`, and curves over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from personafl.engines import ENGINES
from personafl.federation import Federation
from personafl.federation.arrays import Split
from personafl.registry import checked
from personafl.runs.run import Run
from personafl.settings import Local
from personafl.study.judgement import measure
from personafl_papers.tables.claims import Number
from personafl_papers.tables.table import number

Runs = Mapping[str, Mapping[int, Run]]
"""By method and seed: `found.runs[part]`."""


def columns(runs: Runs, rows: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, dict[str, Number]]:
    """Numbers in percent, from columns of `study.COLUMNS`.

    Parameters
    ----------
    rows
        The name of each method in the table.
    keys
        The column of `study` for each column of the table, such as {"top 10%": "top_10"}.
    """
    out: dict[str, dict[str, Number]] = {}
    for method, row in rows.items():
        if not runs.get(method):
            continue  # every seed failed, which the results say
        found = [measure(run) for run in runs[method].values()]
        out[row] = {column: number([one[key] for one in found], 100) for column, key in keys.items()}
    return out


def over_rounds(
    runs: Runs, rows: Mapping[str, str], key: str = "personal_accuracy", scale: float = 100
) -> dict[str, dict[str, list[Any]]]:
    """The course of a column of rounds.jsonl: for each row of the table rounds, mean and standard error over seeds."""
    out: dict[str, dict[str, list[Any]]] = {}
    for method, row in rows.items():
        if runs.get(method):
            rounds, values = by_round(list(runs[method].values()), key)
            spread = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(values.shape[1])
            out[row] = {
                "rounds": rounds,
                "mean": _rounded(scale * values.mean(0)),
                "error": _rounded(scale * spread),
            }
    return out


def by_round(runs: Sequence[Run], key: str = "personal_accuracy") -> tuple[list[int], np.ndarray[Any, Any]]:
    """The rounds that were evaluated, and a column of rounds.jsonl at each, a row for each run."""
    records = [[(r["round"], r[key]) for r in run.rounds() if key in r] for run in runs]
    return [r for r, _ in records[0]], np.array([[value for _, value in one] for one in records], np.float64)


def accuracy_on(run: Run, federation: Federation, split: Split) -> float:
    """Of the personalized models after the last round on their clients' data, weighted by samples.

    Run folders have it for test and validation data only.
    """
    state = load_file(run.path / "models" / "personal.safetensors")
    theta = torch.cat([state[name].flatten(1) for name in run.task.names], 1)
    local = checked(Local, "local", run.manifest["local"])
    engine = ENGINES["stacked"](run.task, federation, local, int(run.manifest["seed"]), threads=1)
    hits = engine.evaluate(theta, np.arange(len(federation)), split)["correct"]
    return float(hits.sum() / federation.sizes(split).sum())


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
