"""From runs to a judgement: which method is better, for whom, and whether the difference is real.

Everything is measured on the clients' own test data after the last round, unless a column says otherwise. Nothing is
selected here: `--tune` chose on validation data before, and the answers below describe what came out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from personafl import metrics
from personafl.errors import RunError
from personafl.run import Run

Floats = NDArray[np.float64]
Results = Mapping[str, Mapping[int, Run]]
"""Runs by method and seed."""

LOCAL, GLOBAL = "separate", "fedavg"
LEVEL = 0.05


@dataclass(frozen=True)
class Column:
    """A number that a table shows: what it is, which way is better (1, −1, 0) and how it is written."""

    key: str
    title: str
    about: str
    better: int = 1
    form: str = ".2f"
    scale: float = 1.0

    def write(self, value: float) -> str:
        return "–" if not np.isfinite(value) else format(value * self.scale, self.form)


COLUMNS = (
    Column("accuracy", "accuracy %", "personalized models, over all test samples, last round", scale=100),
    Column("mean_accuracy", "mean %", "personalized models, mean over clients, last round", scale=100),
    Column("sd", "SD %", "standard deviation of the clients' accuracies", -1, scale=100),
    Column("worst_10", "worst 10%", "mean of the lowest tenth of the clients' accuracies", scale=100),
    Column("top_10", "top 10%", "over the test samples of the tenth of clients with most training data", scale=100),
    Column("bmta", "BMTA* %", "best evaluation's mean over clients; chosen on test data, so optimistic", scale=100),
    Column("global_accuracy", "global %", "the method's global model, over all test samples", scale=100),
    Column("f1", "F1 %", "macro F1 of the personalized models over all test samples: the mean over classes", scale=100),
    Column("ece", "ECE %", "expected calibration error of the personalized models, all test samples", -1, scale=100),
    Column("loss", "loss", "personalized models, mean over all test samples", -1, ".4f"),
    Column("pui", "PUI %", "clients that do better than alone and than with FedAvg's model (QoI > 0)", 1, ".0f"),
    Column("pud", "PUD %", "clients that do worse than the better of these (QoI < 0)", -1, ".0f"),
    Column("api", "API", "mean QoI of the improved clients, percentage points", scale=100),
    Column("mpi", "MPI", "median QoI of the improved clients, percentage points", scale=100),
    Column("apd", "APD", "mean QoI of the worsened clients, percentage points", scale=100),
    Column("mpd", "MPD", "median QoI of the worsened clients, percentage points", scale=100),
    Column("av", "AV", "variance of the improved clients' QoI, squared percentage points", -1, scale=1e4),
    Column("cs", "CS", "cosine similarity of the improved clients' QoI with equal ones", form=".3f"),
    Column("entropy", "entropy", "of the improved clients' shares of all improvement", form=".3f"),
    Column("ji", "JI", "Jain's index of the improved clients' QoI", form=".3f"),
    Column("seconds", "s", "seconds of training and evaluation of one run on this machine", -1, ".1f"),
    Column("megabytes", "MB", "sent up and down in one run, all clients", -1, ".1f"),
)
BY_KEY = {column.key: column for column in COLUMNS}
PERFORMANCE = ("mean_accuracy", "pui", "mpi", "api")
FAIRNESS = ("av", "cs", "entropy", "ji")


@dataclass(frozen=True)
class Difference:
    """A method against the best one, over paired clients of all seeds."""

    method: str
    against: str
    mean_difference: float
    p: float
    p_holm: float
    pairs: int

    @property
    def significant(self) -> bool:
        return bool(self.p_holm < LEVEL)


@dataclass(frozen=True)
class Verdict:
    """The answer to one question: who wins, on which of the metrics, and why not more can be said."""

    winners: tuple[str, ...]
    wins: dict[str, list[str]]
    why: str


@dataclass(frozen=True)
class Judgement:
    """What a comparison says: values by method, column and seed, and the answers to the two questions."""

    columns: tuple[Column, ...]
    values: dict[str, dict[str, list[float]]]
    seeds: dict[str, list[int]]
    primary: str
    best: str
    differences: list[Difference]
    performance: Verdict
    fairness: Verdict

    def mean(self, method: str, key: str) -> metrics.SeedMean:
        return metrics.mean_over_seeds(self.values[method][key])

    def records(self) -> list[dict[str, Any]]:
        """A row for each method and column, for CSV and JSON."""
        rows = []
        for method in self.values:
            for column in self.columns:
                found = self.mean(method, column.key)
                rows.append(
                    {"method": method, "metric": column.key, "mean": found.mean, "standard_error": found.standard_error,
                     "seeds": len(self.seeds[method]), "values": self.values[method][column.key], "about": column.about}
                )  # fmt: skip
        return rows


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
    values: dict[str, dict[str, list[float]]] = {}
    for method, runs in results.items():
        measured = [measure(run, *_references(results, method, seed)) for seed, run in runs.items()]
        values[method] = {column.key: [m.get(column.key, np.nan) for m in measured] for column in COLUMNS}
    shown = tuple(c for c in COLUMNS if any(np.isfinite(v).any() for v in (values[m][c.key] for m in values)))
    primary = "accuracy" if any(c.key == "accuracy" for c in shown) else "loss"
    best = _best(values, primary)
    return Judgement(
        shown,
        {m: {c.key: v[c.key] for c in shown} for m, v in values.items()},
        {m: list(runs) for m, runs in results.items()},
        primary,
        best,
        _differences(results, best),
        _verdict(values, PERFORMANCE),
        _verdict(values, FAIRNESS, {m: _mean(v["pui"]) for m, v in values.items()}),
    )


def measure(run: Run, local: Floats | None = None, common: Floats | None = None) -> dict[str, float]:
    """The columns of one run; `local` and `common` are the clients' accuracies alone and with one global model."""
    table = run.clients()
    last = run.rounds()[-1]
    found = {
        "seconds": run.seconds,
        "megabytes": (last["bytes_up"] + last["bytes_down"]) / 1e6,
        "loss": metrics.mean_loss(_floats(table, "personal_loss"), _floats(table, "n_test")),
    }
    if "personal_correct" not in table.column_names:
        return found
    correct, n = np.nan_to_num(_floats(table, "personal_correct")), _floats(table, "n_test")
    performance = metrics.performance_of(correct, n, _floats(table, "n_train"))
    found |= {
        "accuracy": performance.weighted_accuracy,
        "mean_accuracy": performance.mean_accuracy,
        "sd": performance.standard_deviation,
        "worst_10": performance.worst_10,
        "top_10": performance.top_10,
        "bmta": metrics.best_mean_accuracy(mean_accuracies(run)[1]).best,
    }
    if "global_accuracy" in (score := run.score):
        found["global_accuracy"] = score["global_accuracy"]
    if (predictions := run.predictions()) is not None:
        label, said = (_floats(predictions, name) for name in ("label", "personal_class"))
        found["f1"] = metrics.macro_scores(label.astype(np.int64), said.astype(np.int64)).f1
        confidence = _floats(predictions, "personal_confidence")
        found["ece"] = metrics.expected_calibration_error(confidence, label == said)
    if local is not None and common is not None:
        qoi = metrics.quantum_of_improvement(metrics.accuracies(correct, n), common, local)
        improved, even = metrics.improvement_of(qoi), metrics.fairness_of(qoi).improved
        found |= {k: v for k, v in asdict(improved).items() if k in BY_KEY}
        found |= {k: getattr(even, k) for k in FAIRNESS}
    return found


def accuracy_of(run: Run, who: str = "personal") -> Floats | None:
    """Each client's test accuracy after the last round; None where that is not measured, or there is no such model."""
    table = run.clients()
    if f"{who}_accuracy" not in table.column_names or table.column(f"{who}_correct").null_count == len(table):
        return None
    return _floats(table, f"{who}_accuracy")


def mean_accuracies(run: Run, who: str = "personal") -> tuple[list[int], list[float]]:
    """The rounds that were evaluated, and the mean over clients of the test accuracy at each."""
    table = run.folder.clients()
    rounds = _floats(table, "round").astype(np.int64)
    accuracy = metrics.accuracies(np.nan_to_num(_floats(table, f"{who}_correct")), _floats(table, "n_test"))
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
            raise RunError(f"{path} is not a run folder, and holds none: it has no run.toml")
        found += [Run(each) for each in inside]
    return found


def by_method(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Sort runs by method and seed. Runs of one algorithm under unlike settings are methods of their own.

    Such methods are named by the settings in which they differ: `ditto (lam=0.1)`, `ditto (lam=1)`.
    """
    settings = [_flat({k: v for k, v in run.manifest.items() if k not in _OF_A_RUN}) for run in runs]
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


_OF_A_RUN = ("created", "seed", "resolved", "versions", "checkpoint_every", "models_mb", "engine")


def _references(results: Results, method: str, seed: int) -> tuple[Floats | None, Floats | None]:
    """The clients' accuracies alone and with FedAvg's global model, on the same data; none for training alone.

    Runs of one seed that evaluate equally many clients evaluate the same ones.
    """
    if method == LOCAL or seed not in results.get(LOCAL, {}) or seed not in results.get(GLOBAL, {}):
        return None, None
    alone, together, run = results[LOCAL][seed], results[GLOBAL][seed], results[method][seed]
    compared = (alone, together, run)
    if len({(e.manifest["resolved"]["fingerprint"], e.manifest.get("eval_clients", 0)) for e in compared}) > 1:
        return None, None
    return accuracy_of(alone), accuracy_of(together, "global")


def _best(values: Mapping[str, Mapping[str, Sequence[float]]], key: str) -> str:
    sign = BY_KEY[key].better
    return max(values, key=lambda m: np.nan_to_num(sign * _mean(values[m][key]), nan=-np.inf))


def _differences(results: Results, best: str) -> list[Difference]:
    """Each method against the best, over the clients of all seeds that both have; Holm over the methods."""
    found: list[tuple[str, float, metrics.PairedTest]] = []
    for method, runs in results.items():
        seeds = [seed for seed in runs if seed in results[best]]
        if method == best or not seeds:
            continue
        mine, theirs = (np.concatenate([_score(results[m][seed]) for seed in seeds]) for m in (method, best))
        if len(mine) == len(theirs):
            difference = float(np.nanmean(mine - theirs)) if (~np.isnan(mine - theirs)).any() else np.nan
            found.append((method, difference, metrics.wilcoxon(mine, theirs)))
    corrected = metrics.holm([test.p for _, _, test in found])
    return [
        Difference(method, best, difference, test.p, float(p), test.pairs + test.zeros)
        for (method, difference, test), p in zip(found, corrected, strict=True)
    ]


def _score(run: Run) -> Floats:
    accuracy = accuracy_of(run)
    return -_floats(run.clients(), "personal_loss") if accuracy is None else accuracy


def _verdict(
    values: Mapping[str, Mapping[str, Sequence[float]]], keys: Sequence[str], pui: Mapping[str, float] | None = None
) -> Verdict:
    """Who is ahead on most of these metrics: the PersFL thesis decides so.

    Training alone is no candidate: it is what the others are measured against. With `pui`, candidates have to improve
    at least half of the clients: of one improved client every method would be perfectly fair.
    """
    candidates = [m for m in values if m != LOCAL and (pui is None or pui[m] >= 50)]
    wins: dict[str, list[str]] = {}
    for key in keys:
        means = {m: BY_KEY[key].better * _mean(values[m][key]) for m in candidates}
        means = {m: v for m, v in means.items() if np.isfinite(v)}
        for m in (m for m, v in means.items() if v >= max(means.values()) - 1e-12):
            wins.setdefault(m, []).append(key)
    if not wins:
        none = "no method improves half of the clients" if pui else "there is nothing to tell the methods apart by"
        return Verdict((), {}, none)
    most = max(map(len, wins.values()))
    winners = tuple(m for m, won in wins.items() if len(won) == most)
    why = "; ".join(f"{m} on {', '.join(BY_KEY[k].title for k in won)}" for m, won in wins.items())
    return Verdict(winners, wins, f"ahead: {why}")


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else np.nan


def _floats(table: pa.Table, column: str) -> Floats:
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), np.float64)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
