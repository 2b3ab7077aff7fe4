"""Run folders with known contents, as runs leave them."""

import numpy as np
import pyarrow as pa
import torch

from personafl.runs.run import Run
from personafl.storage.folder import RunFolder

N, TRAIN = np.array([10, 20, 10, 0]), np.array([50, 40, 30, 20])
IDS = ["anna", "bert", "<script>alert(1)</script>", "=1+1"]


def written(
    folder,
    algorithm="ditto",
    seed=0,
    correct=((9, 12, 4, 0),),
    common=None,
    ids=IDS,
    groups=None,
    columns=None,
    predictions=None,
    finished=True,
    regression=False,
    rounds=None,
    **settings,
):
    """`correct` are the clients' correct answers, evaluation after evaluation; for a regression, their losses."""
    files = RunFolder(folder)
    count, evaluations = len(ids), len(correct)
    n, train = np.resize(N, count), np.resize(TRAIN, count)
    files.create(
        {
            "created": "2026-01-01T00:00:00+00:00", "seed": seed, "rounds": rounds or evaluations, "activity": 0.5,
            "eval_every": 1, "checkpoint_every": 10, "data": {"name": "digits"},
            "partition": {"name": "dirichlet", "clients": count, "alpha": 0.3}, "splits": [0.5, 0.1, 0.4],
            "model": {"name": "mlp", "hidden": [8], "dropout": 0.0}, "local": {"lr": 0.1, "batch_size": 10, "steps": 3},
            "algorithm": {"name": algorithm, **settings},
            "resolved": {"fingerprint": f"{seed:064x}", "clients": count, "classes": 10, "engine": "loop", "threads": 1,
                         "device": "cpu", "parameters": 610, "loss": "mse" if regression else "cross_entropy"},
            "versions": {"personafl": "0.1.0", "torch": "2"},
        }
    )  # fmt: skip
    for r, values in enumerate(correct, 1):
        absent = n == 0
        table = {
            "client": pa.array(ids),
            "group": pa.array(groups or [None] * count, pa.string()),
            "round": pa.array([r] * count, pa.int32()),
            "n_train": pa.array(train),
            "n_val": pa.array(train // 10),
            "n_test": pa.array(n),
        }
        record = {"round": r, "active": count, "steps": 3.0, "bytes_up": 1_000_000 * r, "bytes_down": 0}
        losses = np.asarray(values, float) if regression else 1 - np.asarray(values) / np.maximum(n, 1)
        table["personal_loss"] = pa.array(losses, mask=absent)
        record["personal_loss"] = float((losses * n).sum() / n.sum())
        if not regression:
            table["personal_correct"] = pa.array(values, pa.int32(), mask=absent)
            table["global_correct"] = pa.array(
                common if common is not None else [0] * count, pa.int32(), mask=absent | (common is None)
            )
            record["personal_accuracy"] = float(np.sum(values) / n.sum())
            if common is not None:
                record["global_accuracy"] = float(np.sum(common) / n.sum())
        table["steps"] = pa.array([3] * count, pa.int32())
        table |= {name: pa.array(v) for name, v in (columns or {}).items()}
        files.evaluations.write(r, pa.table(table))
        files.append("rounds.jsonl", record)
        files.append("timings.jsonl", {"round": r, "round_seconds": 2.0})
    if predictions is not None:
        files.write_predictions(predictions)
    if finished:
        files.merge_clients()
        files.write_models("personal", {"weight": torch.zeros(count, 1)}, {})
    return Run(folder)


def compared(folder, seeds=2):
    """Ditto, training alone and FedAvg; Ditto's clients have .9 .6 .4, then one correct answer more with each seed."""
    for seed in range(seeds):
        written(folder / f"d{seed}", "ditto", seed, [(5, 9, 3, 0), (9, 12 + seed, 4, 0)], (6, 8, 5, 0), lam=1.0)
        written(folder / f"s{seed}", "separate", seed, [(4, 8, 4, 0), (5, 10, 5, 0)])
        written(folder / f"f{seed}", "fedavg", seed, [(5, 9, 5, 0), (5, 9, 5, 0)], (6, 8, 5, 0))
    return folder


def predicted(labels, scores, ids):
    """Predictions of two classes: the personalized models' scores are given, the global one's are all wrong."""
    said = (np.asarray(scores) > 0).astype(np.int32)
    n = len(labels)
    return pa.table(
        {
            "client": pa.DictionaryArray.from_arrays(np.asarray(ids, np.int32), IDS),
            "label": pa.array(labels, pa.int32()),
            "personal_class": pa.array(said),
            "personal_confidence": pa.array(np.full(n, 0.8), pa.float32()),
            "personal_score": pa.array(scores, pa.float32()),
            "global_class": pa.array(1 - np.asarray(labels), pa.int32()),
            "global_confidence": pa.array(np.full(n, 0.8), pa.float32()),
            "global_score": pa.array(1.0 - 2.0 * np.asarray(labels), pa.float32()),
        }
    )
