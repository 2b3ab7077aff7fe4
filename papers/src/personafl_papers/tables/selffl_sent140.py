"""Self-FL preprint, E.3: Sent140 with a warm start, the training and test accuracy of the personalized models.

E.3: 772 users with 30 or more tweets, 80/20, two LSTM layers of 256 on 300-dimensional GloVe, 25 tokens, η = 0.3,
batches of 10, 2 epochs, C = 0.1; 200 rounds of FedAvg, then 400 rounds of each method from its global model. Self-FL
takes the same 2 epochs and does not compute its steps. Scaled to the tweets at hand: users with 3 or more of them, a
smaller LSTM and fewer rounds after the warm start. All methods are searched on validation data (`search.py`), with as
many tries each, from a warm start of their own that has not seen that data; the warm start has the paper's η.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from personafl.config import parse
from personafl.federation import Federation
from personafl.runs.run import Run
from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, above, every, near
from personafl_papers.tables.measures import accuracy_on, columns, over_rounds
from personafl_papers.tables.search import Axes, Axis, SearchPlan, geometric
from personafl_papers.tables.selffl_federations import ROWS
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number, planned, searching, with_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PART, WARM, SEARCH, SEARCH_WARM = "sent140", "warm start", "search sent140", "search sent140, warm start"
SEEDS = 3
WARM_ROUNDS, ROUNDS = 200, 160
LEAST, HIDDEN = 3, 32
TEST, TRAIN, GLOBAL = "test accuracy", "training accuracy", "test accuracy, global"
MAJORITY = "each user's majority label"
UNCHANGED = 3.0
"""Percentage points within which test accuracy "does not change much"."""

METHODS: dict[str, dict[str, Any]] = {
    "selffl-activity": {"algorithm": {"name": "selffl", "smoothing": "activity", "use_steps": False}},
    "selffl": {"algorithm": {"use_steps": False}},
    "fedavg": {},
    "ditto": {},
    "pfedme": {"algorithm": {"lam": 5.0}},  # its authors' 15 times η = 0.3 is above 2, where w_i overshoots
    "perfedavg": {},
}
RATE = geometric("local.lr", 0.01, 3.0, 0.3)
FINE = (geometric("local.lr", 0.01, 5.0, 0.2, per_decade=3),)
AXES: dict[str, Axes] = {
    "selffl-activity": FINE,
    "selffl": FINE,
    "fedavg": FINE,
    "ditto": (RATE, Axis("algorithm.lam", (0, 0.01, 0.03, 0.1, 0.3, 1, 3), 0.3)),
    "pfedme": (geometric("local.lr", 0.003, 0.3, 0.1), geometric("algorithm.personal_lr", 0.003, 0.3, 0.1)),
    "perfedavg": (RATE, geometric("algorithm.alpha", 0.003, 1.0, 0.1)),
}
"""Self-FL has no ℓ_max here, as it takes the same 2 epochs; pFedMe's η is bounded by ηλ < 2 with λ = 5."""
TRIES, MOST_TRIES = 6, 8


def config(quick: bool, rounds: int, validation: bool = False) -> dict[str, Any]:
    """The tables of a config, without method and seed; quick: few rounds, and the users with most tweets."""
    tables: dict[str, Any] = {
        "data": {"name": "sent140", "tokens": 25},
        "partition": {"name": "natural", "least": LEAST},
        "splits": [0.6, 0.2, 0.2] if validation else [0.8, 0.0, 0.2],
        "model": {"name": "lstm", "hidden": HIDDEN, "layers": 2},
        "local": {"lr": 0.3, "batch_size": 10, "epochs": 2},
        "activity": 0.1,
        "rounds": rounds,
        "eval_every": 20,
        "checkpoint_every": 0,
    }
    if quick:
        tables |= {"rounds": 4, "eval_every": 2, "partition": {"name": "natural", "least": LEAST, "clients": 40}}
        tables["model"] = {"name": "lstm", "hidden": 8, "layers": 2}
    return tables


def warm_start(found: Found) -> Sequence[tuple[str, Plan]]:
    fedavg: dict[str, dict[str, Any]] = {"fedavg": {}}
    return [
        (SEARCH_WARM, planned(config(found.quick, WARM_ROUNDS, True), fedavg, found.seeds(1, 1))),
        (WARM, planned(config(found.quick, WARM_ROUNDS), fedavg, found.seeds(SEEDS))),
    ]


def search(found: Found) -> Sequence[tuple[str, SearchPlan]]:
    tables = config(found.quick, ROUNDS, validation=True)
    return [
        (
            SEARCH,
            searching(from_warm(tables, run), METHODS, [seed], AXES, *((2,) if found.quick else (TRIES, MOST_TRIES))),
        )
        for seed, run in warm(found, SEARCH_WARM)
    ]


def after(found: Found) -> Sequence[tuple[str, Plan]]:
    methods = {name: with_settings(own, found.chosen(SEARCH, name)) for name, own in METHODS.items()}
    tables = config(found.quick, ROUNDS)
    return [(PART, planned(from_warm(tables, run), methods, [seed])) for seed, run in warm(found, WARM)]


def warm(found: Found, part: str) -> list[tuple[int, Run]]:
    """The runs of a warm start by seed; none where every seed failed, which the results say."""
    return list(found.runs.get(part, {}).get("fedavg", {}).items())


def from_warm(tables: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The same config, with a run's global model to begin with."""
    weights = str(run.path / "models" / "global.safetensors")
    return {**tables, "model": {**tables["model"], "weights": weights}}


def measure(found: Found) -> Measured:
    keys = {TEST: "accuracy", GLOBAL: "global_accuracy"}
    numbers = {PART: columns(found.runs[WARM], {"fedavg": "Warm start"}, keys)}
    numbers[PART] |= columns(found.runs[PART], ROWS, keys)
    federations = {seed: federation(found, seed) for seed in found.runs[WARM]["fedavg"]}
    every_run = {"Warm start": found.runs[WARM]["fedavg"]}
    every_run |= {row: found.runs[PART][method] for method, row in ROWS.items() if row in numbers[PART]}
    for row, runs in every_run.items():
        trained = [accuracy_on(run, federations[seed], "train") for seed, run in runs.items()]
        numbers[PART][row][TRAIN] = number(trained, 100)
    numbers[PART][MAJORITY] = {TEST: number([majority(each) for each in federations.values()], 100)}
    curves = {"warm start": over_rounds(found.runs[WARM], {"fedavg": "FedAvg"})}
    curves["after it"] = over_rounds(found.runs[PART], ROWS)
    return Measured(numbers, curves)


def federation(found: Found, seed: int) -> Federation:
    return parse({**config(found.quick, ROUNDS), "seed": seed}).federation()


def majority(federation: Federation) -> float:
    """Test accuracy of always saying what most of a user's training tweets are; a tie is right half of the time."""
    hits = 0.0
    for client in federation.ids:
        data = federation.client(client)
        labels, asked = data["train"][1].double(), data["test"][1].double()
        positive = torch.heaviside(labels.mean() - 0.5, torch.tensor(0.5, dtype=torch.float64))
        hits += float((1 - (asked - positive).abs()).sum())
    return hits / float(federation.sizes("test").sum())


def figures(measured: Measured) -> dict[str, tuple[Figure, str]]:
    from personafl_papers.tables.figures import curves

    label = "test accuracy of personalized models, %"
    return {"figure8": (curves(measured.curves, label), "Figures 7b and 8b: weighted accuracy over the rounds.")}


SLOW = ("Ditto", "pFedMe", "Per-FedAvg")
TABLE = Table(
    about="Sentiment of tweets by user: 200 rounds of FedAvg as a warm start, then each method from there",
    paper="Self-FL preprint, appendix E.3, Figures 7 and 8",
    cost="90 minutes (estimated)",
    data=("sent140",),
    parts={
        PART: Part(
            f"Sent140, users with {LEAST} or more tweets", "Figures 7, 8", {},
            "62,355 of Sentiment140's 1.6 million tweets, with few for each user: orders are compared, not values",
        ),
    },
    stages=(warm_start, search, after),
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            "After the warm start Self-FL and FedAvg converge better than Ditto, pFedMe and Per-FedAvg: a higher "
            "training accuracy of the personalized models", "E.3, Figure 8a", (PART,),
            every(above(PART, TRAIN, "Self-FL", SLOW), above(PART, TRAIN, "FedAvg", SLOW)),
        ),
        Claim(
            "The test accuracy does not change much after the warm start, with any method "
            f"(here: by less than {UNCHANGED:g} points)", "E.3, Figure 8b", (PART,),
            every(*(near(PART, TEST, row, "Warm start", UNCHANGED) for row in ("Self-FL", "FedAvg", *SLOW))),
        ),
        Claim(
            "Self-FL with smoothing 1 (not the paper's) has a higher training accuracy than Ditto, pFedMe and "
            "Per-FedAvg", "E.3, Figure 8a", (PART,), above(PART, TRAIN, "Self-FL, smoothing 1", SLOW), False,
        ),
    ),
    notes=(
        Note(
            "protocol difference",
            f"The paper's users have 30 or more tweets; here 1,534 users have {LEAST} or more, hardly "
            "more than one of them for test, so that a user's test accuracy is that of one tweet. What a personalized "
            "model can gain is hardly more than whether its user is more often glad or sad.",
            f"The row \"{MAJORITY}\": it uses no text, and is to be compared with the personalized models.",
        ),
        Note(
            "protocol difference",
            f"Two LSTM layers of {HIDDEN} units on GloVe of 100 dimensions, not of 256 on 300; {ROUNDS} rounds after "
            "the warm start, not 400.",
            "The config of the runs.",
        ),
        Note(
            "unstated choice",
            "pFedMe cannot have its authors' λ = 15 with η = 0.3: ηλ must be below 2, or w_i overshoots θ ever more. "
            f"Here λ = 5. All else is searched, {TRIES} to {MOST_TRIES} tries for each method with one seed.",
            "E.3 gives one learning rate for each FL algorithm and nothing else.",
        ),
    ),
    cut=f"{SEEDS} seeds; users with {LEAST} or more tweets; LSTM layers of {HIDDEN} units on 100-dimensional vectors; "
    f"{ROUNDS} rounds after the warm start instead of 400; the search has one seed.",
)  # fmt: skip
