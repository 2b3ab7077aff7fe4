"""What the Self-FL paper's experiments on images share: federations, methods, and the search of what it leaves open.

Section 4.2: FedProx's splits, 90/10, C = 0.1, batches of 10, 200 rounds, 20 local steps for the baselines and at most
40 for Self-FL; η = 0.03 on MNIST and 0.01 on FEMNIST, "the same hyper-parameter configurations" for all. Smoothing by
the activity rate. The paper has no values for Ditto's λ, pFedMe's η_p and Per-FedAvg's α: three values each are
searched on validation data, in a federation of the same seed with 80/10/10; pFedMe's λ is 15, its authors' value.
FedAvg and Self-FL have nothing left to search: Self-FL's conventions are the defaults of docs/selffl.md, but for the
smoothing, which the paper gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from personafl.study.plan import Plan
from personafl_papers.tables.table import Found, planned, with_settings

ROWS = {
    "selffl-activity": "Self-FL",
    "selffl": "Self-FL, smoothing 1",
    "fedavg": "FedAvg",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg",
}
"""Methods, and what tables call them. Self-FL is shown as the paper has it, and with our default smoothing."""

BASELINES = ("FedAvg", "Ditto", "pFedMe", "Per-FedAvg")

METHODS: dict[str, dict[str, Any]] = {
    "selffl-activity": {"algorithm": {"name": "selffl", "smoothing": "activity"}},
    "selffl": {},
    "fedavg": {},
    "ditto": {},
    "pfedme": {},
    "perfedavg": {},
}

GRID: dict[str, dict[str, list[float]]] = {
    "ditto": {"algorithm.lam": [0.1, 1.0, 10.0]},
    "pfedme": {"algorithm.personal_lr": [0.01, 0.03, 0.1]},
    "perfedavg": {"algorithm.alpha": [0.01, 0.03, 0.1]},
}

_FEMNIST = {"partition": {"name": "lognormal", "clients": 200}, "local": {"lr": 0.01, "batch_size": 10, "steps": 20}}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "mnist": {
        "data": {"name": "mnist", "normalize": "fedprox"},
        "partition": {"name": "powerlaw", "clients": 1000},
        "local": {"lr": 0.03, "batch_size": 10, "steps": 20},
    },
    "letters": {"data": {"name": "letters", "classes": 10}, **_FEMNIST},
    "femnist": {"data": {"name": "emnist", "classes": "abcdefghij"}, **_FEMNIST},
}

SEEDS = 5
LETTERS = "52,152 handwritten letters of 16 by 8 pixels in place of FEMNIST: orders and gaps are compared, not values"


def config(federation: str, quick: bool, validation: bool = False) -> dict[str, Any]:
    """The tables of a config, without method and seed; quick: few rounds and clients."""
    tables: dict[str, Any] = {
        **FEDERATIONS[federation], "activity": 0.1, "rounds": 200, "eval_every": 5, "checkpoint_every": 50,
        "splits": [0.8, 0.1, 0.1] if validation else [0.9, 0.0, 0.1], "model": {"name": "mclr"},
    }  # fmt: skip
    if quick:
        tables |= {"rounds": 8, "eval_every": 2, "partition": {**tables["partition"], "clients": 40}}
    return tables


def search(federation: str, found: Found, only: Sequence[str] = tuple(GRID)) -> tuple[str, Plan]:
    """The first stage: what the paper leaves open. Two seeds, because the validation data of 200 clients is small."""
    tables = config(federation, found.quick, validation=True)
    seeds, grid = found.seeds(2, 1), {method: GRID[method] for method in only}
    return f"search {federation}", planned(tables, {m: METHODS[m] for m in only}, seeds, grid, len(seeds))


def methods(federation: str, found: Found) -> dict[str, dict[str, Any]]:
    """All methods with what the search has chosen."""
    part = f"search {federation}"
    return {name: with_settings(own, found.chosen(part, name)) for name, own in METHODS.items()}


def main_runs(federation: str, found: Found, only: Sequence[str] = tuple(METHODS)) -> tuple[str, Plan]:
    """The second stage: methods with the paper's settings. Table 1, Figures 1 and 3 and E.6 share these runs."""
    tables = config(federation, found.quick)
    every = methods(federation, found)
    return federation, planned(tables, {name: every[name] for name in only}, found.seeds(SEEDS))
