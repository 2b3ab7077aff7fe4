"""CIFAR-10 of the PersFL thesis with a pretrained model: heads on the features of a frozen EfficientNet-lite0.

Users, divisions (DS-1, DS-2, DS-3), shares and seeds of `persfl_tables.py`; in place of a CNN that begins with nothing,
a linear head on 1,280 features of images that are enlarged from 32 to 96 pixels, computed once. The backbone's weights
come from ImageNet, 1.3 million photographs of other people with labels, among them the kinds of CIFAR-10: this is no
comparison of methods with the thesis, whose users have nothing but their own images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from personafl.study.plan import Plan
from personafl_papers.tables import persfl_tables
from personafl_papers.tables.availability import EFFICIENTNET, weights_or_names
from personafl_papers.tables.claims import Claim, above
from personafl_papers.tables.persfl_measures import FEDAVG, measured_part
from personafl_papers.tables.search import Axes, Axis, SearchPlan, geometric
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, planned, searching, with_settings

SOURCE = "cifar10"
SPLITS = {"ds1": "DS-1", "ds2": "DS-2", "ds3": "DS-3"}
SEEDS, ROUNDS = 5, 25
METHODS: dict[str, dict[str, Any]] = {
    "separate": {},
    FEDAVG: {"algorithm": persfl_tables.GLOBAL},
    "fedavg-ft": {},
    "ditto": {},
    "pfedme": {"algorithm": {"lam": 5.0}},
    "perfedavg": {},
    "fedamp": {},
    "persfl": {"algorithm": {**persfl_tables.DISTILL, "distill_epochs": 1}},
}
ROWS = {
    "separate": "Separate", FEDAVG: "FedAvg", "fedavg-ft": "FedAvg, fine-tuned", "ditto": "Ditto", "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg", "fedamp": "FedAMP", "persfl": "PersFL",
}  # fmt: skip
RATE = geometric("local.lr", 0.003, 3.0, 0.1)
FINE = (geometric("local.lr", 0.005, 5.0, 0.1, per_decade=3),)
AXES: dict[str, Axes] = {
    "separate": FINE,
    FEDAVG: FINE,
    "fedavg-ft": FINE,
    "ditto": (RATE, Axis("algorithm.lam", (0, 0.01, 0.03, 0.1, 0.3, 1, 3), 0.3)),
    "pfedme": (geometric("local.lr", 0.003, 0.3, 0.1), geometric("algorithm.personal_lr", 0.003, 0.3, 0.1)),
    "perfedavg": (RATE, geometric("algorithm.alpha", 0.003, 1.0, 0.1)),
    "fedamp": (RATE, Axis("algorithm.sigma_scale", (0.125, 0.25, 0.5, 1, 2, 4, 8), 0.5)),
}
TRIES, MOST_TRIES = 8, 12
"""For each method, and at most where a search has not come inside. PersFL takes FedAvg's rate, and each client searches
its T and λ."""


def config(split: str, quick: bool) -> dict[str, Any]:
    """The tables of a config, without method and seed: those from scratch, with a backbone in place of the model."""
    [weights] = weights_or_names(EFFICIENTNET)
    module = "personafl_papers.models.efficientnet_lite0:EfficientNetLite0"
    return {
        **persfl_tables.config(SOURCE, split, quick),
        "model": {"name": "mclr"},
        "backbone": {"path": weights, "kind": "module", "module": module, "batch_size": 16},
        "rounds": 2 if quick else ROUNDS,
        "eval_every": 0,
    }


def search(found: Found) -> Sequence[tuple[str, SearchPlan]]:
    axes = {name: own for name, own in AXES.items() if name in METHODS}
    tables, tries = config("ds1", found.quick), (2,) if found.quick else (TRIES, MOST_TRIES)
    return [(f"search {SOURCE}, EfficientNet", searching(tables, METHODS, found.seeds(1, 1), axes, *tries))]


def heads(found: Found) -> Sequence[tuple[str, Plan]]:
    chosen = {
        name: with_settings(own, found.chosen(f"search {SOURCE}, EfficientNet", FEDAVG if name == "persfl" else name))
        for name, own in METHODS.items()
    }
    splits = [*SPLITS][:1] if found.quick else [*SPLITS]
    return [(f"{SOURCE} {s}", planned(config(s, found.quick), chosen, found.seeds(SEEDS))) for s in splits]


def measure(found: Found) -> Measured:
    """Accuracy of users; the first table of `persfl_measures.py`, without what compares rounds."""
    numbers = {}
    for split in SPLITS:
        runs = found.runs.get(f"{SOURCE} {split}")
        if runs:
            rows = measured_part(runs, ROWS)
            keys = ("accuracy", "SD", "T", "λ")
            numbers[f"{SOURCE} {split}"] = {
                row: {key: columns[key] for key in keys if key in columns} for row, columns in rows.items()
            }
    return Measured(numbers)


OTHER = "Features of a network that was trained on ImageNet: the thesis begins with nothing"
PERSONAL = tuple(row for name, row in ROWS.items() if name not in ("separate", FEDAVG))
TABLE = Table(
    about="CIFAR-10 by ten users with a pretrained model: heads on the features of a frozen EfficientNet-lite0",
    paper="Ours, beside persfl-tables (PersFL, Divi, thesis, Purdue 2021, Table 6.2)",
    cost="not timed",
    data=("cifar10", "efficientnet-lite0"),
    parts={
        f"{SOURCE} {split}": Part(
            f"CIFAR-10, {name}, EfficientNet-lite0 (ImageNet), 96 pixels", "ours", {}, OTHER,
        )
        for split, name in SPLITS.items()
    },
    stages=(search, heads),
    measure=measure,
    claims=tuple(
        Claim(
            f"{name}: {row} on ImageNet's features is above {', '.join(others)}", "ours", (f"{SOURCE} {split}",),
            above(f"{SOURCE} {split}", "accuracy", row, others), False,
        )
        for split, name in SPLITS.items()
        for row in PERSONAL
        for others in (("Separate", "FedAvg"),)
    ),
    notes=(
        Note(
            "protocol difference",
            "The features come from ImageNet's labels, and ImageNet has kinds of CIFAR-10 among its own. How much is "
            "theirs: without any training on CIFAR-10, ImageNet's own classes, put together to the ten kinds, name 56% "
            "of 256 test images right at 96 pixels, where chance is 10%.",
            "The network's `classify` on images enlarged to 96 pixels.",
        ),
        Note(
            "protocol difference",
            f"{ROUNDS} rounds for everybody, where persfl-tables has 25 to 100; an epoch of distillation.",
            "The config of the runs.",
        ),
    ),
    cut=f"Images are enlarged to 96 pixels, not 224. {ROUNDS} rounds; the search is on DS-1 with one seed.",
)  # fmt: skip
