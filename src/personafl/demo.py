"""The demo: forty clients with unlike handwritten digits, and what federation does for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from personafl.config import parse
from personafl.events import Listener
from personafl.run import Run
from personafl.train import train_config

ALGORITHMS = ("separate", "fedavg", "fedprox", "fedavg-ft", "ditto", "fedamp", "persfl", "selffl")


def config(algorithm: str, rounds: int, seed: int) -> dict[str, Any]:
    """The demo's config: 1,797 digits over 40 clients, each with few classes and few samples."""
    return {
        "seed": seed,
        "rounds": rounds,
        "activity": 0.5,
        "splits": [0.5, 0.1, 0.4],
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.3, "min_samples": 10},
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"lr": 0.1, "steps": 10, "batch_size": 10},
        "algorithm": {"name": algorithm},
    }


def run_demo(rounds: int, seed: int, out: Path, listeners: Callable[[str], Sequence[Listener]]) -> dict[str, Run]:
    """Train each algorithm on the same federation."""
    return {
        name: train_config(parse(config(name, rounds, seed)), out / name, listeners=listeners(name))
        for name in ALGORITHMS
    }


def row(name: str, run: Run) -> dict[str, str]:
    """What a table shows of a run."""
    score, seconds = run.score, run.seconds
    if "personal_accuracy" not in score:
        common = score.get("global_loss")
        return {
            "algorithm": name,
            "personalized loss": f"{score['personal_loss']:.4f}",
            "global loss": "–" if common is None else f"{common:.4f}",
            "seconds": f"{seconds:.1f}",
        }
    accuracy = np.array([a for a in run.clients().column("personal_accuracy").to_pylist() if a is not None])
    worst = np.sort(accuracy)[: max(1, -(-len(accuracy) // 10))].mean()
    traffic = run.rounds()[-1]
    return {
        "algorithm": name,
        "personalized": f"{score['personal_accuracy']:.1%}",
        "global model": f"{score['global_accuracy']:.1%}" if "global_accuracy" in score else "–",
        "worst 10% of clients": f"{worst:.1%}",
        "sent MB": f"{(traffic['bytes_up'] + traffic['bytes_down']) / 1e6:.1f}",
        "seconds": f"{seconds:.1f}",
    }


def chosen(runs: dict[str, Run]) -> str:
    """The algorithm to show: the best on validation data. Test data only tells how good it is."""
    return max((name for name in runs if name != "separate"), key=lambda n: runs[n].score["personal_val_accuracy"])


def sentence(runs: dict[str, Run]) -> str:
    """What the table means, in words, from its numbers."""
    alone = runs["separate"].clients().column("personal_accuracy").to_pylist()
    scores = {name: run.score["personal_accuracy"] for name, run in runs.items() if name != "separate"}
    best = chosen(runs)
    together = runs[best].clients().column("personal_accuracy").to_pylist()
    pairs = [(a, t) for a, t in zip(alone, together, strict=True) if a is not None and t is not None]
    better, worse = sum(t > a for a, t in pairs), sum(t < a for a, t in pairs)
    own = runs["separate"].score["personal_accuracy"]
    one = max(run.score.get("global_accuracy", 0.0) for run in runs.values())
    helped = "helps" if scores[best] > own else "does not help"
    return (
        f"Here the federation {helped}: training alone, clients get {own:.1%} of their own test digits right; with "
        f"{best} {scores[best]:.1%}, {better} of {len(pairs)} clients doing better than alone and {worse} worse. "
        f"One global model for everybody gets at best {one:.1%}."
    )
