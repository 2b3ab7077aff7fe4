"""The two federations of three groups by which the defaults of fedamp and heurfedamp were chosen.

    PERSONAFL_DATA=… python benchmarks/fedamp_defaults.py digits|fmnist

80% of a client's samples come from its group's dominating classes. 40 rounds of 20 steps, seed 0. Prints accuracy and
loss on the clients' validation data, and the mean weight within groups over that across groups.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import personafl as pf

GROUPS = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
CANDIDATES = (
    pf.Separate(), pf.FedAvg(), pf.Ditto(), pf.FedAMP(), pf.FedAMP(sigma_scale=0.35), pf.FedAMP(sigma_scale=0.5),
    pf.HeurFedAMP(), pf.HeurFedAMP(contrast=1.0),
)  # fmt: skip


def federation(x: np.ndarray, y: np.ndarray, per_group: int, samples: int) -> pf.Federation:
    draw = np.random.default_rng(0)
    pools = {c: list(draw.permutation(np.flatnonzero(y == c))) for c in range(10)}
    data = {}
    for number, dominating in enumerate(GROUPS):
        rest = [c for c in range(10) if c not in dominating]
        for k in range(per_group):
            chosen = []
            for _ in range(samples):
                c = draw.choice(dominating) if draw.random() > 0.2 else draw.choice(rest)
                if pools[c]:
                    chosen.append(pools[c].pop())
            data[f"g{number}-{k}"] = (x[chosen], y[chosen])
    return pf.Federation.from_clients(data, splits=(0.5, 0.25, 0.25), seed=0, classes=10)


def blocks(run: Path, per_group: int) -> str:
    found = sorted((run / "evaluations").glob("*.safetensors"))
    if not found:
        return ""
    weights = load_file(found[-1])["weights"]
    group = torch.arange(len(weights)) // per_group
    same = group[:, None] == group
    within = weights[same & ~torch.eye(len(weights), dtype=torch.bool)].mean()
    return f"within/across {within / weights[~same].mean():.1f}"


def main() -> None:
    if sys.argv[1] == "digits":
        samples, per_group, hidden, lr = pf.data.Digits().load(0), 8, 32, 0.1
        fed = federation(samples.x, samples.y, per_group, 60)
    else:
        samples, per_group, hidden, lr = pf.data.SOURCES["fmnist"]().load(0), 10, 50, 0.05
        train = slice(0, 60000)
        fed = federation(samples.x[train].reshape(60000, -1), samples.y[train], per_group, 200)
    for algorithm in CANDIDATES:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(fed.x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 10))
        local = pf.Local(lr=lr, batch_size=10, steps=20)
        with tempfile.TemporaryDirectory() as out:
            run = pf.train(
                fed, net, algorithm, rounds=40, local=local, engine="stacked", threads=1, eval_every=40,
                out=Path(out) / "run", progress=False,
            )  # fmt: skip
            accuracy, loss = run.score["personal_val_accuracy"], run.score["personal_val_loss"]
            print(f"{accuracy:.4f} loss {loss:.3f} {blocks(run.path, per_group)} {algorithm}", flush=True)


if __name__ == "__main__":
    main()
