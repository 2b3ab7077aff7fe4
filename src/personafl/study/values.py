"""The clients' values of a measure, whichever it is, and the columns of a comparison that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from personafl import metrics
from personafl.metrics.measures import Measure
from personafl.runs.run import Run
from personafl.study.columns import BY_KEY, EVENNESS
from personafl.study.differences import Floats


def floats(table: pa.Table, column: str) -> Floats:
    """A column as float64, null as NaN."""
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), np.float64)


def values_of(run: Run, measure: Measure, who: str = "personal") -> Floats | None:
    """Each client's value on its test data after the last round; None where there is no such value or model."""
    table, name = run.clients(), f"{who}_{measure.name}"
    if name not in table.column_names or table.column(name).null_count == len(table):
        return None
    return floats(table, name)


def common_measures(runs: Sequence[Run]) -> tuple[Measure, ...]:
    """The measures that all runs have, as the first one has them."""
    names = [{measure.name for measure in run.measures} for run in runs]
    return tuple(measure for measure in runs[0].measures if all(measure.name in known for known in names))


def value_columns(
    measure: Measure, values: Floats, n: Floats, n_train: Floats, local: Floats | None, common: Floats | None
) -> dict[str, float]:
    """The columns that follow from the clients' values after the last round.

    `local` and `common` are the clients' values alone and with one global model.
    """
    sign = measure.better or 1
    measured = np.where(n > 0, values, np.nan)
    known = ~np.isnan(measured)
    weights = np.zeros(len(n))
    weights[known] = metrics.top_weights(n_train[known])
    found = {
        measure.name: measure.pooled(measured, n),
        f"mean_{measure.name}": metrics.mean_accuracy(measured),
        "sd": metrics.standard_deviation(measured),
        "worst_10": sign * metrics.worst_accuracy(sign * measured),
        "top_10": measure.pooled(measured, n * weights),
    }
    if local is not None and common is not None:
        qoi = metrics.quantum_of_improvement(sign * measured, sign * common, sign * local)
        found |= improvement_columns(qoi)
    return found


def improvement_columns(qoi: Floats) -> dict[str, float]:
    """Who is better off, by how much, and how evenly."""
    improved, even = metrics.improvement_of(qoi), metrics.fairness_of(qoi).improved
    return {k: v for k, v in asdict(improved).items() if k in BY_KEY} | {k: getattr(even, k) for k in EVENNESS}


def costs(run: Run, table: pa.Table) -> dict[str, float]:
    """Seconds, traffic, and work: steps and, where the run counted them, gradients."""
    rounds = run.rounds()
    found = {"seconds": run.seconds, "megabytes": (rounds[-1]["bytes_up"] + rounds[-1]["bytes_down"]) / 1e6}
    taken = [(record["steps"], record.get("active", 1)) for record in rounds if "steps" in record]
    if active := sum(count for _, count in taken):
        found["steps"] = sum(steps * count for steps, count in taken) / active
    if "gradients" in table.column_names and table.column("gradients").null_count < len(table):
        found["gradients"] = float(np.nanmean(floats(table, "gradients")))
    return found
