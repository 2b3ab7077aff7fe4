"""Compare Self-FL's conventions over several federations and seeds, to choose defaults by measurement.

    PERSONAFL_DATA=… python benchmarks/selffl_defaults.py OUT [--seeds 3] [--only mnist,letters] [--rounds 200]

Every run is a run folder in OUT and is kept; what is there already is not done again, so the study can be interrupted
and continued. Prints two Markdown tables: personalized accuracy after the last round, weighted by samples, mean ±
standard error over seeds, on validation data (what defaults are chosen by) and on test data (what is reported).
"""

import argparse
import json
import logging
from pathlib import Path

import numpy as np
import torch

from personafl.config import parse
from personafl.jobs import train_config
from personafl.runs.run import load

FEDERATIONS = {
    "mnist": {
        "data": {"name": "mnist", "normalize": "fedprox"},
        "partition": {"name": "powerlaw", "clients": 1000},
        "splits": [0.8, 0.1, 0.1],
        "model": {"name": "mclr"},
        "activity": 0.1,
        "local": {"lr": 0.03, "batch_size": 10, "steps": 20},
    },
    "letters": {
        "data": {"name": "letters", "classes": 10},
        "partition": {"name": "lognormal", "clients": 200},
        "splits": [0.8, 0.1, 0.1],
        "model": {"name": "mclr"},
        "activity": 0.1,
        "local": {"lr": 0.01, "batch_size": 10, "steps": 20},
    },
    "digits": {
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 60, "alpha": 0.3, "min_samples": 10},
        "splits": [0.6, 0.2, 0.2],
        "model": {"name": "mlp", "hidden": [32]},
        "activity": 0.2,
        "local": {"lr": 0.1, "batch_size": 10, "steps": 20},
    },
    "fmnist": {
        "data": {"name": "fmnist"},
        "partition": {"name": "practical", "groups": "fmnist"},
        "splits": [0.8, 0.1, 0.1],
        "model": {"name": "mclr"},
        "activity": 1.0,
        "local": {"lr": 0.05, "batch_size": 10, "steps": 20},
    },
}

PAPER = {"posterior": "paper", "variance": "sum", "scope": "cohort", "smoothing": "activity"}
EXACT = {"posterior": "exact", "variance": "mean", "scope": "all", "smoothing": "activity"}
VARIANTS = {
    "fedavg": {"name": "fedavg"},
    "fedavg, 40 steps": {"name": "fedavg", "steps": 40},
    "ditto": {"name": "ditto"},
    "pfedme": {"name": "pfedme", "personal_lr": 0.05},
    "perfedavg": {"name": "perfedavg"},
    "paper, sum, cohort": {"name": "selffl", **PAPER},
    "paper, sum, cohort, smoothing 1": {"name": "selffl", **PAPER, "smoothing": 1.0},
    "paper, sum, all, smoothing 1": {"name": "selffl", **PAPER, "scope": "all", "smoothing": 1.0},
    "paper, mean, all": {"name": "selffl", **PAPER, "variance": "mean", "scope": "all"},
    "exact, mean, all": {"name": "selffl", **EXACT},
    "exact, mean, all, smoothing 0.5": {"name": "selffl", **EXACT, "smoothing": 0.5},
    "exact, mean, all, smoothing 1": {"name": "selffl", **EXACT, "smoothing": 1.0},
    "exact, mean, cohort, smoothing 1": {"name": "selffl", **EXACT, "scope": "cohort", "smoothing": 1.0},
    "exact, mean, all, adaptive": {"name": "selffl", **EXACT, "smoothing": "adaptive"},
    "exact, mean, all, smoothing 1, window 5": {"name": "selffl", **EXACT, "smoothing": 1.0, "window": 5},
}


def one(federation: str, variant: str, seed: int, rounds: int, out: Path) -> dict[str, float]:
    algorithm = dict(VARIANTS[variant])
    table = json.loads(json.dumps(FEDERATIONS[federation]))
    if "steps" in algorithm:
        table["local"]["steps"] = algorithm.pop("steps")
    config = parse(
        {
            **table, "seed": seed, "rounds": rounds, "eval_every": 0, "checkpoint_every": 0, "algorithm": algorithm,
            "engine": {"name": "stacked", "threads": 1},
        }
    )  # fmt: skip
    folder = out / federation / variant.replace(", ", "-").replace(" ", "") / f"seed-{seed}"
    run = load(folder) if (folder / "clients.parquet").exists() else train_config(config, folder, resume=True)
    steps = float(np.mean(run.clients().column("steps").to_pylist()))
    return {"val": run.score["personal_val_accuracy"], "test": run.score["personal_accuracy"], "steps": steps}


def table(cells: dict[tuple[str, str], list[dict[str, float]]], names: list[str], split: str) -> str:
    lines = [f"| {split} | " + " | ".join(names) + " | mean |", "|-" * (len(names) + 2) + "|"]
    for variant in VARIANTS:
        row, means = [], []
        for federation in names:
            found = cells[variant, federation]
            values = np.array([cell[split] for cell in found]) * 100
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
            row.append(f"{values.mean():.2f} ± {error:.2f} ({np.mean([cell['steps'] for cell in found]):.0f})")
            means.append(values.mean())
        lines.append(f"| {variant} | " + " | ".join(row) + f" | {np.mean(means):.2f} |")
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--only", default=",".join(FEDERATIONS))
    given = arguments.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    names = given.only.split(",")
    cells: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in range(given.seeds):
        for federation in names:
            for variant in VARIANTS:
                found = one(federation, variant, seed, given.rounds, given.out)
                cells.setdefault((variant, federation), []).append(found)
                print(f"seed {seed} {federation} {variant}: {found}", flush=True)
    for split in ("val", "test"):
        print(f"\n{table(cells, names, split)}")


if __name__ == "__main__":
    main()
