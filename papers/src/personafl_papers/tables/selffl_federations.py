"""What the Self-FL paper's experiments on images share: federations, methods, and how their settings are searched.

Section 4.2: FedProx's splits, 90/10, C = 0.1, batches of 10, 200 rounds, 20 local steps for the baselines and at most
40 for Self-FL; η = 0.03 on MNIST and 0.01 on FEMNIST, "the same hyper-parameter configurations" for all. Smoothing by
the activity rate. Algorithm 1 descends the gradient of the batch's sum, ours of its mean, so its η is ours divided by
the batch size; which of them the baselines had is not said.

Hence two parts for each federation. *Searched*: every method has the same number of tries (`search.py`) on validation
data, in a federation of the same seed with 80/10/10: FedAvg a fine axis of η; Self-FL η and ℓ_max up to the paper's
limit; Ditto η and λ from 0 up; pFedMe η and η_p, with its authors' λ = 15; Per-FedAvg η and α. *As printed*: nothing is
searched; η is the paper's, Algorithm 1 is there with the sum and with the mean, and what the paper leaves open is as
the methods' authors have it. The paper's claims are decided by the searched part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from personafl.study.plan import Plan
from personafl_papers.tables.availability import available
from personafl_papers.tables.search import Axes, Axis, SearchPlan, geometric
from personafl_papers.tables.table import Found, planned, searching, with_settings

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

ACTIVITY = {"algorithm": {"name": "selffl", "smoothing": "activity"}}
METHODS: dict[str, dict[str, Any]] = {
    "selffl-activity": ACTIVITY,
    "selffl": {},
    "fedavg": {},
    "ditto": {},
    "pfedme": {},
    "perfedavg": {},
}

SUMMED = {"algorithm": {**ACTIVITY["algorithm"], "gradient": "sum"}}
"""Algorithm 1 as printed: the gradient of a batch's sum."""

RATE = geometric("local.lr", 0.003, 3.0, 0.1)
LIMIT = Axis("algorithm.l_max", (5, 10, 20, 40), 40)
"""The paper's "at most 40" is the limit: with more, Self-FL would be given more training than the others."""
AXES: dict[str, Axes] = {
    "selffl-activity": (RATE, LIMIT),
    "selffl": (RATE, LIMIT),
    "fedavg": (geometric("local.lr", 0.001, 5.0, 0.1, per_decade=3),),
    "ditto": (RATE, Axis("algorithm.lam", (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10), 0.1)),
    "pfedme": (geometric("local.lr", 0.001, 0.1, 0.03), geometric("algorithm.personal_lr", 0.003, 0.1, 0.1)),
    "perfedavg": (RATE, geometric("algorithm.alpha", 0.001, 1.0, 0.03)),
}
"""pFedMe's η and η_p end at 0.1: times λ = 15 they must be below 2, or steps overshoot ever more."""
TRIES, MOST_TRIES = 12, 18
"""For each method, and at most where a search has not come inside; FedAvg's axis has 12 points in all."""

PRINTED = {
    "selffl-sum": "Self-FL, Algorithm 1 as printed",
    "selffl-activity": "Self-FL, gradient of the mean",
    "selffl": "Self-FL, gradient of the mean, smoothing 1",
    "fedavg": "FedAvg",
    "ditto": "Ditto, λ = 1",
    "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg",
}
"""The part "as printed": Ditto's λ, pFedMe's λ, η_p and Per-FedAvg's α are their authors'."""

_FEMNIST: dict[str, Any] = {
    "partition": {"name": "lognormal", "clients": 200},
    "local": {"lr": 0.01, "batch_size": 10, "steps": 20},
}
_LETTERS_A_TO_J = {"data": {"name": "emnist", "classes": "abcdefghij"}, **_FEMNIST}
_LEAF: dict[str, Any] = {"name": "femnist", "classes": "abcdefghij", "complete": False}
_FEW = {**_FEMNIST["partition"], "mean": 2.43}
"""As many samples in all as there are images in `_LEAF`, 4,759, on the mean over seeds."""
FEDERATIONS: dict[str, dict[str, Any]] = {
    "mnist": {
        "data": {"name": "mnist", "normalize": "fedprox"},
        "partition": {"name": "powerlaw", "clients": 1000},
        "local": {"lr": 0.03, "batch_size": 10, "steps": 20},
    },
    "femnist": _LETTERS_A_TO_J,
    "femnist-3": {**_LETTERS_A_TO_J, "partition": {**_FEMNIST["partition"], "classes_per_client": 3}},
    "femnist-dark": {"data": {**_LETTERS_A_TO_J["data"], "normalize": "leaf"}, **_FEMNIST},
    "femnist-few": {**_LETTERS_A_TO_J, "partition": _FEW},
    "femnist-few-dark": {"data": {**_LETTERS_A_TO_J["data"], "normalize": "leaf"}, **_FEMNIST, "partition": _FEW},
    "leaf": {"data": {**_LEAF, "normalize": "leaf"}, **_FEMNIST},
    "leaf-bright": {"data": _LEAF, **_FEMNIST},
    "letters": {"data": {"name": "letters", "classes": 10}, **_FEMNIST},
    "writers": {
        "data": {"name": "femnist"},
        "partition": {"name": "natural", "least": 30},
        "local": {"lr": 0.01, "batch_size": 10, "steps": 20},
    },
}
TITLES = {
    "mnist": "MNIST, 1,000 clients",
    "femnist": "FEMNIST a to j, 200 clients with 5 letters each",
    "femnist-3": "FEMNIST a to j, 200 clients with 3 letters each",
    "femnist-dark": "EMNIST's images a to j, the ink dark",
    "femnist-few": "EMNIST's images a to j, as few a client as there are of LEAF's",
    "femnist-few-dark": "EMNIST's images a to j, as few and dark",
    "leaf": "FEMNIST a to j with images as LEAF's and FedProx's code make them, 200 clients",
    "leaf-bright": "LEAF's images a to j, the ink bright",
    "letters": "letters a to j of 16 by 8 pixels, 200 clients",
    "writers": "FEMNIST, 380 writers",
}
_OF_EMNIST = ("femnist", "femnist-3", "femnist-dark", "femnist-few", "femnist-few-dark")
NEEDS = {
    "mnist": "mnist", **dict.fromkeys(_OF_EMNIST, "emnist"), "letters": "letters",
    **dict.fromkeys(("writers", "leaf", "leaf-bright"), "femnist"),
}  # fmt: skip

SEEDS = 5
LETTERS = "52,152 handwritten letters of 16 by 8 pixels in place of FEMNIST: orders and gaps are compared, not values"
EMNIST = (
    "The letters a to j of EMNIST's test images, 11,916 of them: clients have half as many as in the paper, which says "
    "EMNIST; FedProx's code, which it says it used, makes other images of the same letters (selffl-images)"
)
LEAF = (
    "The 4,759 letters a to j of LEAF's images that are at hand, dealt once: clients have a quarter of the paper's. "
    "They are scaled from NIST's 128 by 128 pixels as they are, dark on a bright ground, as FedProx's code does it"
)
WRITERS = (
    "Not the paper's division: characters by the people who wrote them, of the 380 writers of 30 or more whose "
    "training part is at hand in full; shards that are missing are large ones, so that digits are 71% of the images"
)
OTHER_DATA = {
    "mnist": "", **dict.fromkeys(_OF_EMNIST, EMNIST), "letters": LETTERS, "writers": WRITERS,
    **dict.fromkeys(("leaf", "leaf-bright"), LEAF),
}  # fmt: skip


def here(*federations: str) -> list[str]:
    """Those whose data is at hand."""
    return [federation for federation in federations if available(NEEDS[federation])]


def printed(federation: str) -> str:
    """The name of the part with the paper's settings."""
    return f"{federation}, as printed"


def config(federation: str, quick: bool, validation: bool = False) -> dict[str, Any]:
    """The tables of a config, without method and seed; quick: few rounds and clients."""
    tables: dict[str, Any] = {
        **FEDERATIONS[federation], "activity": 0.1, "rounds": 200, "eval_every": 5, "checkpoint_every": 50,
        "splits": [0.8, 0.1, 0.1] if validation else [0.9, 0.0, 0.1], "model": {"name": "mclr"},
    }  # fmt: skip
    if quick:
        tables |= {"rounds": 8, "eval_every": 2, "partition": {**tables["partition"], "clients": 40}}
    return tables


def search(federation: str, found: Found, only: Sequence[str] = tuple(METHODS)) -> tuple[str, SearchPlan]:
    """The first stage. Two seeds where the validation data is small: 1,000 to 1,500 samples, in place of 6,000."""
    tables = config(federation, found.quick, validation=True)
    seeds = found.seeds(1 if federation in ("mnist", "writers") else 2, 1)
    axes = {method: AXES[method] for method in only}
    tries = (3,) if found.quick else (TRIES, MOST_TRIES)
    return f"search {federation}", searching(tables, METHODS, seeds, axes, *tries)


def methods(federation: str, found: Found) -> dict[str, dict[str, Any]]:
    """All methods with what the search has chosen."""
    part = f"search {federation}"
    return {name: with_settings(own, found.chosen(part, name)) for name, own in METHODS.items()}


def main_runs(federation: str, found: Found, only: Sequence[str] = tuple(METHODS)) -> tuple[str, Plan]:
    """The second stage: methods with what was chosen. Table 1, Figures 1 and 3 and E.6 share these runs."""
    tables = config(federation, found.quick)
    every = methods(federation, found)
    return federation, planned(tables, {name: every[name] for name in only}, found.seeds(SEEDS))


def printed_runs(federation: str, found: Found, only: Sequence[str] = tuple(PRINTED)) -> tuple[str, Plan]:
    """Methods with the paper's settings."""
    tables = config(federation, found.quick)
    own = {**METHODS, "selffl-sum": SUMMED}
    return printed(federation), planned(tables, {name: own[name] for name in only}, found.seeds(SEEDS))
