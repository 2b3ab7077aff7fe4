"""What clipping and noise cost in a small federation: the table of docs/security.md.

    python benchmarks/privacy_cost.py [--seeds 3]

Digits over 20 clients (Dirichlet 0.1), a linear model of 650 parameters, 20 rounds of 10 steps at 0.1, clip 1. For each
method the accuracy on the clients' test data, weighted by samples, mean and standard deviation over seeds; of
fedavg the global model's. For fedamp also from how many other clients a cloud model effectively takes: 1/Σ p², p a
client's weights of the others after the last round, normalized.
"""

import argparse

import numpy as np
import torch
from torch import nn

import personafl as pf

NOISE = (None, 0.0, 0.1, 1.0)
METHODS = {"fedavg": pf.FedAvg(), "ditto": pf.Ditto(), "fedamp": pf.FedAMP(), "persfl": pf.PersFL()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"separate: {said([score(pf.Separate(), seed, None, 'personal')[0] for seed in seeds])}")
    for noise in NOISE:
        for name, algorithm in METHODS.items():
            which = "global" if name == "fedavg" else "personal"
            found = [score(algorithm, seed, noise, which) for seed in seeds]
            line = f"noise {noise}, {name} ({which}): {said([accuracy for accuracy, _, _ in found])}"
            if noise:
                line += f", largest epsilon {max(epsilon for _, epsilon, _ in found):,.1f}"
            if name == "fedamp":
                line += f", others {said([others for _, _, others in found], 1)}"
            print(line, flush=True)


def score(algorithm: pf.Algorithm, seed: int, noise: float | None, which: str) -> tuple[float, float, float]:
    """Accuracy, the largest ε, and how many others a cloud model takes from."""
    federation = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=20, alpha=0.1), seed=seed)
    torch.manual_seed(seed)
    seen = Weights()
    run = pf.train(
        federation, nn.Linear(64, 10), algorithm, rounds=20, seed=seed, local=pf.Local(lr=0.1, steps=10), eval_every=0,
        privacy=None if noise is None else pf.Privacy(clip=1.0, noise=noise), engine="stacked", threads=1,
        progress=False, listeners=[seen],
    )  # fmt: skip
    clients = run.clients()
    epsilon = max(clients.column("epsilon").to_pylist()) if noise else 0.0
    return run.score[f"{which}_accuracy"], epsilon, seen.others


class Weights(pf.Listener):
    """Remembers FedAMP's weights at the last evaluation."""

    others = float("nan")

    def evaluated(self, round, clients, server):  # type: ignore[no-untyped-def]
        if "weights" in server:
            weights = server["weights"].double().clone().fill_diagonal_(0.0)
            shares = weights / weights.sum(1, keepdim=True)
            self.others = float((1 / shares.square().sum(1)).mean())


def said(values: list[float], digits: int = 3) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


if __name__ == "__main__":
    main()
