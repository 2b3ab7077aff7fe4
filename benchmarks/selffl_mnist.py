"""The FedProx MNIST split: Self-FL with the paper's smoothing beside its rivals with their documented settings.

    PERSONAFL_DATA=… python benchmarks/selffl_mnist.py OUT [--seeds 3]

1,000 clients, 90/10, 200 rounds, C = .1, η = .03, batch 10, ℓ_max = 40. pfedme and perfedavg are run with η = .03 as
the Self-FL paper does ("the same configurations"), and again with their own papers' learning rates. Weighted
personalized accuracy on test data after the last round; nothing is chosen here. Runs are kept in OUT and not done
again.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
from selffl_defaults import FEDERATIONS

from personafl.config import parse
from personafl.jobs import train_config
from personafl.runs.run import load

RIVALS = {
    "selffl (smoothing by activity)": ({"name": "selffl", "smoothing": "activity"}, {}),
    "selffl (default)": ({"name": "selffl"}, {}),
    "fedavg, 20 steps": ({"name": "fedavg"}, {}),
    "fedavg, 40 steps": ({"name": "fedavg"}, {"steps": 40}),
    "ditto": ({"name": "ditto"}, {}),
    "perfedavg": ({"name": "perfedavg"}, {}),
    "perfedavg, its paper's rates": ({"name": "perfedavg", "alpha": 0.01}, {"lr": 0.001}),
    "pfedme": ({"name": "pfedme"}, {}),
    "pfedme, its paper's rates": ({"name": "pfedme", "personal_lr": 0.1}, {"lr": 0.005, "batch_size": 20}),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--seeds", type=int, default=3)
    given = arguments.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    base = {**FEDERATIONS["mnist"], "splits": [0.9, 0.0, 0.1]}
    print("| | accuracy in %, mean ± standard error | each seed |\n|-|-|-|")
    for name, (algorithm, local) in RIVALS.items():
        scores = []
        for seed in range(given.seeds):
            config = parse(
                {
                    **base, "seed": seed, "rounds": 200, "eval_every": 0, "checkpoint_every": 0, "algorithm": algorithm,
                    "local": {**base["local"], **local}, "engine": {"name": "stacked", "threads": 1},
                }
            )  # fmt: skip
            folder = given.out / "".join(c if c.isalnum() else "-" for c in name) / f"seed-{seed}"
            run = load(folder) if (folder / "clients.parquet").exists() else train_config(config, folder, resume=True)
            scores.append(100 * run.score["personal_accuracy"])
        error = np.std(scores, ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else float("nan")
        each = ", ".join(f"{score:.2f}" for score in scores)
        print(f"| {name} | {np.mean(scores):.2f} ± {error:.2f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
