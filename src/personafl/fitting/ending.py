"""The end of a fit: a choice for each client on validation data, and only then a look at test data.

The choice is made with the models of the search, which have not seen the validation data. Where the finalists were then
trained again on it, clients get those models, with the weights that were chosen, and test data is asked about those.
A model that does worse on a client's validation samples though it was trained on them, by the measure and by the loss,
has gone wrong, by a last step that was too long, say: this client keeps that of the search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.engines import Engine, make_engine
from personafl.engines.base import Split
from personafl.engines.machine import torch_threads
from personafl.engines.measuring import measure_outputs
from personafl.files import write_atomically, write_text
from personafl.fitting.choice import Choice, Floats, choose, weights_of
from personafl.fitting.finalists import Finalist, labels, log_likelihoods, losses, outputs_of, owners, theta_of
from personafl.fitting.mixture import mixed_outputs, stacked_mixtures
from personafl.fitting.training import Trainer
from personafl.metrics.measures import Measure
from personafl.runs.run import Run
from personafl.states import Ints
from personafl.storage.folder import RunFolder
from personafl.streams import generator
from personafl.tasks.base import column_of
from personafl.training.evaluation import ClientIndex, client_table, summary

RESAMPLES = 2000
INTERVAL = (2.5, 97.5)


@dataclass
class Ending:
    """What a fit ended with.

    Attributes
    ----------
    finalists
        The models that clients chose from, those that nobody uses included.
    choice
        The weights, and how they came about.
    validation
        What each finalist reaches on each client's validation data, by the measure that ranks (F, K).
    kept
        Of which finalists a client keeps the model of the search, though it was trained again (F, K).
    table
        The rows of clients.parquet.
    """

    finalists: list[Finalist]
    choice: Choice
    newcomer: Floats
    validation: Floats
    kept: NDArray[np.bool_]
    table: pa.Table
    predictions: pa.Table | None
    thetas: list[Tensor]


def end(trainer: Trainer, found: list[Finalist], mixtures: bool) -> Ending:
    """Choose on validation data, then measure on test data."""
    job = trainer.job
    runs = [trainer.run_of(model.candidate, model.outcome) for model in found]
    engine, choice = make_engine(trainer.engine, job.task, job.federation, job.local, job.seed)
    with torch_threads(choice.threads), torch.no_grad():
        engines = [engine if run.task is job.task else _engine(trainer, run) for run in runs]
        thetas = [theta_of(run, model.who, job.federation.ids) for run, model in zip(runs, found, strict=True)]
        on_validation = _outputs(engines, thetas, "val")
        chosen = _choice(engine, on_validation, mixtures, job.seed)
        weights = chosen.weights
        nobody = weights_of(chosen.way, *_evidence(engine, on_validation, len(job.federation) + 1))[-1]
        reached = np.stack([_reached(engine, each) for each in on_validation])
        runs = [trainer.run_of(model.candidate, model.used) for model in found]
        again = [theta_of(run, model.who, job.federation.ids) for run, model in zip(runs, found, strict=True)]
        kept = _worse(engine, found, on_validation, _outputs(engines, again, "val"))
        thetas = [_with_kept(*each) for each in zip(again, thetas, kept, strict=True)]
        # Nothing is chosen from here on: this is where test data is looked at.
        on_test = _outputs(engines, thetas, "test")
        columns = _columns(engine, found, on_test, weights, "test", "")
        columns |= _columns(engine, found, on_validation, weights, "val", "val_")
        table = _table(engine, columns, runs, weights, max(model.outcome.rounds for model in found))
        predictions = _predictions(engine, on_test, weights, found)
    return Ending(found, chosen, nobody, reached, kept, table, predictions, thetas)


def _engine(trainer: Trainer, run: Run) -> Engine:
    """An engine for a method that trains another module than the user's."""
    return make_engine(trainer.engine, run.task, trainer.job.federation, trainer.job.local, trainer.job.seed)[0]


def _outputs(engines: Sequence[Engine], thetas: Sequence[Tensor], split: Split) -> Tensor:
    return torch.stack([outputs_of(engine, theta, split) for engine, theta in zip(engines, thetas, strict=True)])


def _evidence(engine: Engine, outputs: Tensor, clients: int) -> tuple[Floats, Ints, int]:
    owner = owners(engine, "val")
    return log_likelihoods(engine.task, outputs, labels(engine, "val"), owner, clients), owner, clients


def _choice(engine: Engine, outputs: Tensor, mixtures: bool, seed: int) -> Choice:
    """Which model for whom, by the measure that ranks on validation samples."""
    likelihood, owner, clients = _evidence(engine, outputs, len(engine.federation))
    y = labels(engine, "val")

    def points(weights: Floats, which: NDArray[np.bool_]) -> Floats:
        rows, counts = torch.from_numpy(np.flatnonzero(which)), np.bincount(owner[which], minlength=clients)
        mixed = mixed_outputs(engine.task.kind, outputs[:, rows], weights[which])
        return points_of(engine.task.kind.primary, measure_outputs(engine, mixed, y[rows], counts), counts)

    return choose(likelihood, owner, clients, points, seed, mixtures)


def points_of(measure: Measure, columns: Mapping[str, Floats], n: Ints) -> Floats:
    """What the measure adds up over clients, more is better; where it has no value, it is that of the loss."""
    counts = n.astype(np.float64)
    if measure.name == "accuracy" and "correct" in columns:
        return np.where(n > 0, columns["correct"], np.nan)
    if measure.name not in columns or not np.isfinite(columns[measure.name]).any():
        return np.where(n > 0, -columns["loss"], np.nan)
    return np.where(n > 0, measure.points(columns[measure.name], counts), np.nan)


def _reached(engine: Engine, outputs: Tensor) -> Floats:
    """Each client's value of the measure that ranks on its validation data; NaN without any."""
    measure, sizes = engine.task.kind.primary, engine.federation.sizes("val")
    columns = measure_outputs(engine, outputs, labels(engine, "val"), sizes)
    kind = column_of(measure)
    values = np.asarray(columns.get(kind, np.full(len(sizes), np.nan)), np.float64)
    values = values / np.maximum(sizes, 1) if kind in ("loss", "correct") else values
    return np.asarray(np.where(sizes > 0, values, np.nan))


def _worse(engine: Engine, found: Sequence[Finalist], before: Tensor, after: Tensor) -> NDArray[np.bool_]:
    """Who does worse on validation samples after training on them, by loss and by measure (F, K).

    A global model goes by the samples of all. Where the measure has no value, the loss decides.
    """
    y, sizes, measure = labels(engine, "val"), engine.federation.sizes("val"), engine.task.kind.primary
    owner, clients = owners(engine, "val"), len(sizes)
    worse = np.zeros((len(found), clients), np.bool_)
    for f, model in enumerate(found):
        if model.again is None:
            continue
        more, less = (losses(engine.task.kind, outputs[f], y, owner, clients) for outputs in (after, before))
        grown = np.bincount(owner, more - less, clients)
        now, then = (
            points_of(measure, measure_outputs(engine, outputs[f], y, sizes), sizes) for outputs in (after, before)
        )
        if model.who == "global":
            worse[f] = grown.sum() > 0 and not np.nansum(now) >= np.nansum(then)
        else:
            worse[f] = (grown > 0) & ~(now >= then)
    return worse


def _with_kept(again: Tensor, before: Tensor, kept: NDArray[np.bool_]) -> Tensor:
    """Parameters after the last training, and those before it for clients that keep these."""
    if kept.all():
        return before
    return torch.where(torch.from_numpy(kept)[:, None], before, again) if kept.any() else again


def _columns(
    engine: Engine, found: Sequence[Finalist], outputs: Tensor, weights: Floats, split: Split, tag: str
) -> dict[str, Any]:
    """What clients.parquet says of the fit (`personal_`), of one model for all (`global_`) and of training alone."""
    y, sizes, owner = labels(engine, split), engine.federation.sizes(split), owners(engine, split)
    fitted = mixed_outputs(engine.task.kind, outputs, weights[owner])
    made = {f"personal_{tag}{k}": v for k, v in measure_outputs(engine, fitted, y, sizes).items()}
    names = [model.label for model in found]
    for who, label in (("global", "one model"), ("alone", "alone")):
        if label in names:
            values = measure_outputs(engine, outputs[names.index(label)], y, sizes)
        else:
            values = {key: np.full(len(sizes), np.nan) for key in ("loss", *engine.task.kind.columns)}
        if who == "global" or not tag:
            made |= {f"{who}_{tag}{k}": v for k, v in values.items()}
    return made


def _table(engine: Engine, columns: dict[str, Any], runs: Sequence[Run], weights: Floats, rounds: int) -> pa.Table:
    """The rows of clients.parquet: those of a run, and the values alone and the weights of the finalists."""
    federation = engine.federation
    everybody, zeros = np.arange(len(federation)), np.zeros(len(federation), np.int64)
    sizes = federation.sizes("test")
    alone = {name: columns.pop(name) for name in [*columns] if name.startswith("alone_")}
    columns["gradients"] = sum((_gradients(run) * (weights[:, f] > 0) for f, run in enumerate(runs)), zeros * 1.0)
    table = client_table(
        ClientIndex.of(federation), engine.task, rounds, columns, zeros, zeros, zeros, zeros, everybody
    )
    for name, values in alone.items():
        kind = name.removeprefix("alone_")
        absent = (sizes == 0) | np.isnan(values)
        values = values / np.maximum(sizes, 1) if kind in ("loss", "correct") else values
        named = "alone_accuracy" if kind == "correct" else name
        table = table.append_column(named, pa.array(np.where(absent, 0, values), mask=absent))
    return table


def _gradients(run: Run) -> Floats:
    """How many gradients each client computed for a run."""
    values = run.clients().column("gradients").to_numpy(zero_copy_only=False)
    return np.nan_to_num(np.asarray(values, np.float64))


def _predictions(engine: Engine, outputs: Tensor, weights: Floats, found: Sequence[Finalist]) -> pa.Table | None:
    """predictions.parquet, for classifications: as that of a run."""
    federation, owner = engine.federation, owners(engine, "test")
    if not engine.task.classification or federation.y.dim() != 1 or not 0 < len(owner) <= 2_000_000:
        return None
    from personafl.training.predictions import prediction_columns

    fitted = mixed_outputs(engine.task.kind, outputs, weights[owner])
    clients = pa.DictionaryArray.from_arrays(owner.astype(np.int32), list(federation.ids))
    columns = {"client": clients, "label": pa.array(labels(engine, "test").numpy().astype(np.int32))}
    columns |= prediction_columns("personal", fitted)
    names = [model.label for model in found]
    if "one model" in names:
        columns |= prediction_columns("global", outputs[names.index("one model")])
    return pa.table(columns)


# --- the number, and its interval --------------------------------------------------------------------------------


def interval(measure: Measure, values: Floats, n: Floats, seed: int) -> tuple[float, float] | None:
    """A 95% interval of the pooled measure: clients are drawn again, with replacement, as whole clients."""
    known = np.flatnonzero((n > 0) & ~np.isnan(values))
    if len(known) < 2:
        return None
    rng = generator(seed, "fit interval")
    drawn = rng.integers(len(known), size=(RESAMPLES, len(known)))
    found = [measure.pooled(values[known][rows], n[known][rows]) for rows in drawn]
    low, high = np.percentile(found, INTERVAL)
    return float(low), float(high)


# --- the folder --------------------------------------------------------------------------------------------------


def write(folder: Path, trainer: Trainer, ending: Ending, summary_: dict[str, Any], seconds: float) -> None:
    """Make the folder of a fit that of a run as well: what opens runs opens it."""
    job, run_folder = trainer.job, RunFolder(folder)
    best = max(ending.finalists, key=lambda model: model.score)
    manifest = dict(trainer.run_of(best.candidate, best.used).manifest)
    rounds = int(ending.table.column("round")[0].as_py())
    manifest |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "algorithm": {"name": "fit"},
        "local": job.local.table(),
    }
    for key in ("files", "stopped"):
        manifest.pop(key, None)
    used = [model for f, model in enumerate(ending.finalists) if (ending.choice.weights[:, f] > 0).any()]
    traffic = [trainer.run_of(model.candidate, model.used).rounds()[-1] for model in used]
    record = {
        "round": rounds, "active": len(job.federation), "failed": [], "steps": 0.0,
        **{key: sum(int(each[key]) for each in traffic) for key in ("bytes_up", "bytes_down", "gradients")},
        **summary(ending.table, job.task.kind.measures),
    }  # fmt: skip
    write_text(run_folder.rounds_file, json.dumps(record) + "\n")
    write_text(run_folder.timings_file, json.dumps({"round": rounds, "round_seconds": round(seconds, 3)}) + "\n")
    write_atomically(run_folder.clients_file, lambda to: pq.write_table(ending.table, to))
    if ending.predictions is not None:
        run_folder.write_predictions(ending.predictions)
    _write_models(run_folder, trainer, ending)
    write_text(folder / "fit.json", json.dumps(summary_, indent=1) + "\n")
    run_folder.write_manifest(manifest)
    run_folder.note("files", run_folder.checksums())


def _write_models(folder: RunFolder, trainer: Trainer, ending: Ending) -> None:
    """models/personal.safetensors: every client's model, or the parts of its mixture with their weights."""
    ids = trainer.job.federation.ids
    weights = ending.choice.weights
    used = [f for f in range(weights.shape[1]) if (weights[:, f] > 0).any()]
    tasks = [trainer.run_of(ending.finalists[f].candidate, ending.finalists[f].used).task for f in used]
    folder.write_personal(ids, [stacked_mixtures(tasks, [ending.thetas[f] for f in used], weights[:, used])])


def measured(table: pa.Table, measure: Measure, who: str) -> Floats:
    """Each client's value on its test data: of the fit (`personal`), `alone`, or of one model for all (`global`)."""
    if measure.name == "accuracy" and who != "alone":
        hits, n = (_floats(table, name) for name in (f"{who}_{column_of(measure)}", "n_test"))
        return np.asarray(np.divide(hits, n, out=np.full(len(n), np.nan), where=n > 0))
    return _floats(table, f"{who}_{measure.name}")


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(zero_copy_only=False), np.float64)
