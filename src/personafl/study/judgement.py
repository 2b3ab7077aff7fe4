"""From runs to a judgement: which method is better, for whom, and whether the difference is shown.

Everything is measured on the clients' own test data after the last round, unless a column says otherwise. Nothing is
selected here: `--tune` chose on validation data before, and the answers below describe what came out.
`differences.py` has the tests, `votes.py` the votes, `words.py` the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from personafl import metrics
from personafl.errors import RunError
from personafl.metrics.measures import ACCURACY, LOSS, Measure, ranking
from personafl.runs.run import Run
from personafl.storage.folder import flat, not_a_run
from personafl.study.columns import Column, columns_for
from personafl.study.differences import (
    Difference,
    Floats,
    Model,
    Outcome,
    Outcomes,
    Row,
    differences,
    first_of,
    mean,
    winner_of,
)
from personafl.study.values import common_measures, costs, floats, improvement_columns, value_columns, values_of
from personafl.study.votes import LOCAL, Verdict, fairness_vote, performance_vote

Results = Mapping[str, Mapping[int, Run]]
"""Runs by method and seed."""

GLOBAL = "fedavg"
ONE_MODEL = ("fedavg", "fedprox", "scaffold")
"""Algorithms whose own answer is the global model: it is a row, before the clients' models after local training."""


@dataclass(frozen=True)
class Judgement:
    """What a comparison says: values by row, column and seed, who is shown to be better, and the thesis's two votes.

    Attributes
    ----------
    rows
        A personalized model for each method, and the global one of `ONE_MODEL`.
    best, winner
        The row that ranks first by `primary`; and the same where it is shown to be better than every other, else None.
    measure
        What `primary` is.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    values: dict[str, dict[str, list[float]]]
    seeds: dict[str, list[int]]
    clients: int
    primary: str
    best: str
    winner: str | None
    differences: list[Difference]
    performance: Verdict
    fairness: Verdict
    measure: Measure = ACCURACY

    @property
    def spread_keys(self) -> tuple[str, ...]:
        """The columns of the measure that ranks: over all samples, its mean over clients, and how they are spread."""
        return self.primary, f"mean_{self.primary}", "sd", "worst_10", "top_10", f"global_{self.primary}"

    def mean(self, row: str, key: str) -> metrics.SeedMean:
        """The mean of a column over the seeds, with its standard error."""
        return metrics.mean_over_seeds(self.values[row][key])

    def row(self, key: str) -> Row:
        """The row with this key."""
        return next(row for row in self.rows if row.key == key)

    def name(self, key: str) -> str:
        """How tables call a row."""
        return self.row(key).name

    def records(self) -> list[dict[str, Any]]:
        """A line for each row and column, for CSV and JSON."""
        lines = []
        for row in self.rows:
            for column in self.columns:
                found, values = self.mean(row.key, column.key), self.values[row.key][column.key]
                lines.append(
                    {"method": row.method, "model": row.model, "label": row.name, "metric": column.key,
                     "mean": found.mean, "standard_error": found.standard_error, "seeds": len(self.seeds[row.key]),
                     "values": values, "about": column.about}
                )  # fmt: skip
        return lines


def judge(results: Results) -> Judgement:
    """Measure every run and compare the methods.

    Parameters
    ----------
    results
        Finished runs by method and seed. QoI and what follows from it need `separate` and `fedavg` among them.
    """
    results = {method: runs for method, runs in results.items() if runs}
    if not results:
        raise RunError("there is no finished run to judge")
    rows = [row for method, runs in results.items() for row in rows_of(method, list(runs.values()))]
    measures = common_measures([run for runs in results.values() for run in runs.values()])
    outcomes = {
        row.key: {seed: _outcome(results, row, seed, run, measures) for seed, run in results[row.method].items()}
        for row in rows
    }
    return judged(rows, outcomes, measures)


def judged(rows: Sequence[Row], outcomes: Outcomes, measures: tuple[Measure, ...] = (ACCURACY,)) -> Judgement:
    """Compare models by what they do for the clients; `measures` are what they were measured by."""
    measure, columns = ranking(measures), columns_for(measures)
    values = {
        key: {c.key: [one.columns.get(c.key, np.nan) for one in by_seed.values()] for c in columns}
        for key, by_seed in outcomes.items()
    }
    shown = tuple(c for c in columns if any(np.isfinite(v).any() for v in (values[m][c.key] for m in values)))
    measure = measure if any(c.key == measure.name for c in shown) else LOSS
    primary = measure.name
    best = first_of(values, primary, measure.better)
    ranked = {key: outcomes[key] for key in values if np.isfinite(mean(values[key][primary]))}
    found = differences(ranked, best) if best in ranked else []
    if measure.pool != "mean":  # they were added up as squares or logarithms
        score = {key: measure.better * mean(values[key][primary]) for key in ranked}
        found = [replace(d, mean_difference=score[d.method] - score[best]) for d in found]
    winner = winner_of(list(ranked), best, found)
    return Judgement(
        shown,
        tuple(rows),
        {m: {c.key: v[c.key] for c in shown} for m, v in values.items()},
        {m: list(by_seed) for m, by_seed in outcomes.items()},
        max((int((one.n > 0).sum()) for one in outcomes[best].values()), default=0),
        primary,
        best,
        winner,
        found,
        performance_vote(rows, values, winner, measure),
        fairness_vote(rows, values, outcomes, any(d.significant for d in found)),
        measure,
    )


def rows_of(method: str, runs: Sequence[Run]) -> list[Row]:
    """The models of a method that tables show: FedAvg's global one is FedAvg's own."""
    if runs[0].manifest["algorithm"]["name"] not in ONE_MODEL:
        return [Row(method)]
    trained = Row(method, "personal", f"{method}, after local training")
    has_global = all("global_loss" in run.score or f"global_{run.primary.name}" in run.score for run in runs)
    return [Row(method, "global", f"{method}, global model"), trained] if has_global else [trained]


def measure(
    run: Run,
    local: Floats | None = None,
    common: Floats | None = None,
    who: Model = "personal",
    measures: tuple[Measure, ...] = (ACCURACY,),
) -> dict[str, float]:
    """The columns of one run; `local` and `common` are the clients' values alone and with one global model."""
    table, first = run.clients(), ranking(measures)
    found, n = costs(run, table), floats(table, "n_test")
    if f"{who}_loss" in table.column_names:
        found["loss"] = metrics.mean_loss(floats(table, f"{who}_loss"), n)
    for other in measures:
        if (values := values_of(run, other, who)) is not None:
            found[other.name] = other.pooled(values, n)
    if first.name != "accuracy" and (values := values_of(run, first, who)) is not None:
        found |= value_columns(first, values, n, floats(table, "n_train"), local, common)
        if who == "personal" and (key := f"global_{first.name}") in (score := run.score):
            found[key] = score[key]
    return found | (_accuracy_columns(run, table, local, common, who) if first.name == "accuracy" else {})


def _accuracy_columns(
    run: Run, table: pa.Table, local: Floats | None, common: Floats | None, who: Model
) -> dict[str, float]:
    """What follows from the right answers, and what predictions tell beside them."""
    if f"{who}_correct" not in table.column_names:
        return {}
    correct, n = np.nan_to_num(floats(table, f"{who}_correct")), floats(table, "n_test")
    found = columns_of(correct, n, floats(table, "n_train"), local, common)
    found["bmta"] = metrics.best_mean_accuracy(mean_accuracies(run, who)[1]).best
    if who == "personal" and "global_accuracy" in (score := run.score):
        found["global_accuracy"] = score["global_accuracy"]
    if (predictions := run.predictions()) is not None and f"{who}_class" in predictions.column_names:
        label, said = (floats(predictions, name) for name in ("label", f"{who}_class"))
        found["f1"] = metrics.macro_scores(label.astype(np.int64), said.astype(np.int64)).f1
        confidence = floats(predictions, f"{who}_confidence")
        found["ece"] = metrics.expected_calibration_error(confidence, label == said)
    return found


def columns_of(
    correct: Floats, n: Floats, n_train: Floats, local: Floats | None = None, common: Floats | None = None
) -> dict[str, float]:
    """The columns that follow from the clients' correct answers after the last round."""
    performance = metrics.performance_of(correct, n, n_train)
    found = {
        "accuracy": performance.weighted_accuracy,
        "mean_accuracy": performance.mean_accuracy,
        "sd": performance.standard_deviation,
        "worst_10": performance.worst_10,
        "top_10": performance.top_10,
    }
    if local is not None and common is not None:
        found |= improvement_columns(metrics.quantum_of_improvement(metrics.accuracies(correct, n), common, local))
    return found


def accuracy_of(run: Run) -> Floats | None:
    """Each client's test accuracy after the last round, with its personal model; None where that is not measured."""
    return values_of(run, ACCURACY, "personal")


def mean_accuracies(run: Run, who: str = "personal") -> tuple[list[int], list[float]]:
    """The rounds that were evaluated, and the mean over clients of the test accuracy at each."""
    table = run.folder.clients()
    rounds = floats(table, "round").astype(np.int64)
    accuracy = metrics.accuracies(np.nan_to_num(floats(table, f"{who}_correct")), floats(table, "n_test"))
    which, place = np.unique(rounds, return_inverse=True)
    known = ~np.isnan(accuracy)
    sums = np.bincount(place[known], accuracy[known], len(which))
    counts = np.bincount(place[known], minlength=len(which))
    return which.tolist(), np.divide(sums, counts, out=np.full(len(which), np.nan), where=counts > 0).tolist()


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Open run folders; a folder that holds run folders, such as that of a comparison, stands for all of them."""
    found: list[Run] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"there is no run folder {path}")
        inside = [path] if (path / "run.toml").is_file() else sorted(p.parent for p in path.glob("*/run.toml"))
        if not inside:
            raise not_a_run(path, "is not a run folder, and holds none: it has no run.toml")
        found += [Run(each) for each in inside]
    return found


def by_method(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Sort runs by method and seed. Runs of one algorithm under unlike settings are methods of their own.

    Such methods are named by the settings in which they differ: `ditto (lam=0.1)`, `ditto (lam=1)`.
    """
    settings = [flat({k: v for k, v in run.manifest.items() if k not in _OF_A_RUN}) for run in runs]
    names = [str(run.manifest["algorithm"]["name"]) for run in runs]
    out: dict[str, dict[int, Run]] = {}
    for name in dict.fromkeys(names):
        mine = [s for s, n in zip(settings, names, strict=True) if n == name]
        unlike = [k for k in dict.fromkeys(k for s in mine for k in s) if len({repr(s.get(k)) for s in mine}) > 1]
        for run, own, n in zip(runs, settings, names, strict=True):
            if n != name:
                continue
            listed = ", ".join(f"{k.removeprefix('algorithm.')}={own.get(k)}" for k in unlike)
            label = f"{name} ({listed})" if listed else name
            seeds = out.setdefault(label, {})
            if run.manifest["seed"] in seeds:
                other = seeds[run.manifest["seed"]].path
                raise RunError(f"{run.path} and {other} are the same method with the same seed: name one of them")
            seeds[run.manifest["seed"]] = run
    return out


_OF_A_RUN = ("created", "seed", "resolved", "versions", "checkpoint_every", "models_mb", "engine", "files")


def _outcome(results: Results, row: Row, seed: int, run: Run, measures: tuple[Measure, ...]) -> Outcome:
    first = ranking(measures)
    local, common = _references(results, row.method, seed, first) if row.model == "personal" else (None, None)
    table, values = run.clients(), values_of(run, first, row.model)
    n, qoi = floats(table, "n_test"), None
    if values is None:
        points = LOSS.points(floats(table, f"{row.model}_loss"), n)
    else:
        points = floats(table, f"{row.model}_correct") if first.name == "accuracy" else first.points(values, n)
        if local is not None and common is not None:
            qoi = metrics.quantum_of_improvement(*(first.better * each for each in (values, common, local)))
    ids = [str(client) for client in table.column("client").to_pylist()]
    points = np.where(n > 0, points, np.nan)
    return Outcome(ids, n, points, _data(run), measure(run, local, common, row.model, measures), qoi)


def _references(results: Results, method: str, seed: int, measure: Measure) -> tuple[Floats | None, Floats | None]:
    """The clients' values alone and with FedAvg's global model, on the same data; none for training alone.

    Runs of one seed that evaluate equally many clients evaluate the same ones.
    """
    if method == LOCAL or seed not in results.get(LOCAL, {}) or seed not in results.get(GLOBAL, {}):
        return None, None
    alone, together, run = results[LOCAL][seed], results[GLOBAL][seed], results[method][seed]
    if len({_data(each) for each in (alone, together, run)}) > 1:
        return None, None
    return values_of(alone, measure), values_of(together, measure, "global")


def _data(run: Run) -> str:
    """What has to be the same for two runs to be measured on the same clients."""
    return f"{run.manifest['resolved']['fingerprint']} {run.manifest.get('eval_clients', 0)}"
