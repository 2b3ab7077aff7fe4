"""What attackers among the clients do to the others, by method and robust rule: the study of docs/robust.md.

    python benchmarks/robust.py [--seeds 2] [--keep papers/results/robust.csv]    runs what the file lacks
    python benchmarks/robust.py --tables [--picture docs/images/robust.svg]       tables and picture from the file

Digits over 20 clients (Dirichlet 0.3), one hidden layer of 32, 12 rounds of 10 steps at 0.3 with batches of 20. Of the
clients 0, 2, 4 or 8 attack in every round. Measured are the 12 clients that attack in none of these settings, each on
its own test data: the mean of their accuracies, and that of the worst tenth (two clients). Methods and
rules have their defaults. Rate and rounds are the same for all; they were set after a trial at 0.1 on one seed.
"""

import argparse
import csv
import logging
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

import personafl as pf
from personafl.engines import make_engine
from personafl.errors import TrainingFailed
from personafl.jobs import module_task
from personafl.storage.folder import RunFolder
from personafl.training.attackers import Attack, AttackedClients, flip_labels
from personafl.training.rounds import Origin, run_rounds

METHODS = {
    "separate": pf.Separate(), "fedavg": pf.FedAvg(), "fedavg-ft": pf.FedAvgFT(), "ditto": pf.Ditto(),
    "fedper": pf.FedPer(), "apfl": pf.APFL(), "fedamp": pf.FedAMP(), "heurfedamp": pf.HeurFedAMP(),
    "selffl": pf.SelfFL(),
}  # fmt: skip
RULES = ("none", "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
SIZES = {"scaled": 100.0, "sign-flipped": 3.0, "gaussian": 10.0, "count-inflated": 1000.0, "label-flipped": 1.0}
SHARES = (0.1, 0.2, 0.4)
CLIENTS = 20
FIELDS = ("method", "model", "rule", "attack", "share", "seed", "mean", "worst")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=Path("papers/results/robust.csv"))
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    if not asked.tables and not asked.picture:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        study(asked.keep, asked.seeds)
        return
    from robust_tables import picture, tables  # beside this file

    found = read(asked.keep)
    if asked.tables:
        print(tables(found, list(METHODS), RULES, list(SIZES), SHARES))
    if asked.picture:
        picture(found, list(METHODS), list(SIZES), SHARES, asked.picture)


def study(keep: Path, seeds: int) -> None:
    """Make the rows that the file lacks."""
    done = {tuple(row[key] for key in FIELDS[:6] if key != "model") for row in read(keep)}
    new = not keep.exists()
    with keep.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        for seed in range(seeds):
            for attack, share in [("nobody", 0.0), *((attack, share) for attack in SIZES for share in SHARES)]:
                for method in METHODS:
                    for rule in rules_for(method):
                        if (method, rule, attack, str(share), str(seed)) not in done:
                            writer.writerows(rows(method, rule, attack, share, seed))
                            file.flush()


def rules_for(method: str) -> list[str]:
    """The rules that the method can be combined with; training alone needs none."""
    found = ["none"]
    for rule in RULES[1:] if method != "separate" else ():
        try:
            pf.Robust(rule).check(METHODS[method])
        except pf.PersonaflError:
            continue
        found.append(rule)
    return found


def rows(method: str, rule: str, attack: str, share: float, seed: int) -> list[list[object]]:
    """A run, as rows of the file."""
    order = np.random.default_rng(seed).permutation(CLIENTS)
    attackers = tuple(sorted(order[: round(share * CLIENTS)].tolist()))
    honest = np.sort(order[round(max(SHARES) * CLIENTS) :])
    models = ("personal", "global") if method == "fedavg" else ("personal",)
    scores = train(method, rule, attack, attackers, seed)
    made: list[list[object]] = []
    for model in models:
        accuracies = np.sort(scores[model][honest]) if scores else np.full(len(honest), np.nan)
        worst = accuracies[: max(1, round(len(honest) / 10 + 0.5))]
        numbers = [round(float(part.mean()), 4) for part in (accuracies, worst)]
        made.append([method, model, rule, attack, share, seed, *numbers])
    return made


def train(method: str, rule: str, attack: str, attackers: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """The accuracy of each client's personalized and of the common model; nothing where the run failed."""
    federation = digits(seed)
    if attack == "label-flipped":
        federation = flip_labels(federation, attackers)
    torch.manual_seed(seed)
    task = module_task(federation, nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    local, schedule = (
        pf.Local(lr=0.3, steps=10, batch_size=20),
        pf.Schedule(rounds=12, eval_every=0, checkpoint_every=0),
    )
    engine, _ = make_engine(pf.EngineSettings("stacked", 1), task, federation, local, seed)
    wrong = Attack(
        attack if attack in SIZES and attack != "label-flipped" else "scaled", attackers, SIZES.get(attack, 1.0)
    )
    robust = None if rule == "none" else pf.Robust(rule)
    with tempfile.TemporaryDirectory() as folder:
        clients = AttackedClients(engine, wrong, folder=Path(folder))
        out = RunFolder(Path(folder) / "run")
        try:
            run_rounds(
                out,
                clients,
                METHODS[method],
                schedule,
                Origin(resolved={"clients": CLIENTS, "fingerprint": federation.fingerprint}),
                robust=robust,
            )
        except TrainingFailed:
            return {}
        table = pf.load_run(out.path).clients()
    tested = np.array(table.column("n_test"), float)
    names = {"personal": "personal_correct", "global": "global_correct"}
    return {
        key: np.array(table.column(name), float) / tested for key, name in names.items() if name in table.column_names
    }


@cache
def digits(seed: int) -> pf.Federation:
    """The clients' data."""
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=CLIENTS, alpha=0.3), seed=seed)


def read(keep: Path) -> list[dict[str, str]]:
    """The rows that there are."""
    if not keep.exists():
        return []
    with keep.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
