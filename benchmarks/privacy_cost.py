"""What privacy costs in a small federation, three ways: the picture and the table of docs/security.md.

    python benchmarks/privacy_cost.py [--seeds 3] [--picture docs/images/privacy-cost.svg]

Digits over 50 clients (Dirichlet 1.0), a linear model of 650 parameters, 10 rounds of 10 steps at 0.1, batches of 8,
equal weights, everybody active; clip 0.5 for answers, 1 for gradients of samples; δ = 10⁻³. For each ε the noise that
gives it: at the clients, at the server (which is also what secure aggregation with shares of noise gives), and in
every local step, where ε is that of a sample and not of a client, of the client whose samples have the largest.
Accuracy on the clients' test data, weighted by samples, mean and standard deviation over seeds: of fedavg the global
model's, of the others the personalized models'. Nothing was chosen on these data.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import personafl as pf
from personafl.training.accounting import epsilon, sample_epsilon

ROUNDS, STEPS, BATCH, DELTA = 10, 10, 8, 1e-3
TARGETS = (1.0, 3.0, 10.0, 30.0, 100.0)
METHODS = {"fedavg": pf.FedAvg("equal"), "ditto": pf.Ditto(weights="equal"), "apfl": pf.APFL()}
GRADIENTS = {"fedavg": 1, "ditto": 2, "apfl": 2}  # on each batch
WAYS = {
    "local": "noise at the clients",
    "central": "noise at the server",
    "sample": "noise in every step (a sample's ε)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    seeds = range(given.seeds)
    print(f"separate: {said([score(pf.Separate(), seed, None) for seed in seeds])}", flush=True)
    free = {name: [score(algorithm, seed, None) for seed in seeds] for name, algorithm in METHODS.items()}
    for name, values in free.items():
        print(f"{name}, no privacy: {said(values)}", flush=True)
    found: dict[tuple[str, str], list[list[float]]] = {}
    for name, algorithm in METHODS.items():
        for way in WAYS:
            for target in TARGETS:
                values = [score(algorithm, seed, privacy(way, name, target, seed)) for seed in seeds]
                found.setdefault((name, way), []).append(values)
                print(f"{name}, {way}, epsilon {target:g}: {said(values)}", flush=True)
    for target in TARGETS:
        values = [score(pf.SelfFL(), seed, privacy("local", "selffl", target, seed)) for seed in seeds]
        print(f"selffl, local, epsilon {target:g}: {said(values)}", flush=True)
    print(f"selffl, no privacy: {said([score(pf.SelfFL(), seed, None) for seed in seeds])}", flush=True)
    if given.picture is not None:
        draw(found, free, given.picture)


def federation(seed: int) -> pf.Federation:
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=50, alpha=1.0), seed=seed)


def privacy(way: str, method: str, target: float, seed: int) -> pf.Privacy:
    """The noise that gives this ε to every client."""
    if way != "sample":
        noise = smallest(lambda z: epsilon(z, DELTA, ROUNDS), target)
        return pf.Privacy(0.5, noise, DELTA, noise_at="server" if way == "central" else "clients")
    rate = min(1.0, BATCH / int(federation(seed).sizes("train").min()))
    calls = GRADIENTS[method] ** 0.5
    noise = smallest(lambda z: sample_epsilon(z / calls, DELTA, rate, ROUNDS * STEPS), target)
    return pf.Privacy(1.0, noise, DELTA, unit="sample")


def smallest(spent: Callable[[float], float], target: float) -> float:
    """The noise multiplier that spends no more than the target, to three digits."""
    low, high = 1e-3, 1e5
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return round(high, 6)


def score(algorithm: pf.Algorithm, seed: int, private: pf.Privacy | None) -> float:
    torch.manual_seed(seed)
    run = pf.train(
        federation(seed), nn.Linear(64, 10), algorithm, rounds=ROUNDS, seed=seed, eval_every=0, privacy=private,
        local=pf.Local(lr=0.1, steps=STEPS, batch_size=BATCH), engine="stacked", threads=1, progress=False,
    )  # fmt: skip
    return run.score["global_accuracy" if algorithm.name == "fedavg" else "personal_accuracy"]


def said(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def draw(found: dict[tuple[str, str], list[list[float]]], free: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = dict(zip(WAYS, ("#d64545", "#2680c2", "#27ab83"), strict=True))
    figure, axes = plt.subplots(1, len(METHODS), figsize=(11, 3.6), sharey=True)
    for axis, name in zip(axes, METHODS, strict=True):
        axis.axhline(float(np.mean(free[name])), color="#52606d", linewidth=1, linestyle="--", label="no privacy")
        for way, label in WAYS.items():
            values = np.array(found[name, way])
            axis.errorbar(
                TARGETS,
                values.mean(1),
                values.std(1, ddof=1),
                color=colours[way],
                marker="o",
                markersize=4,
                label=label,
            )
        axis.set(xscale="log", title=name, xlabel="ε (δ = 10⁻³)", ylim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
