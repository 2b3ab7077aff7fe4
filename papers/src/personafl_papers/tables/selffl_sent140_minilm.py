"""Sent140 of the Self-FL preprint (E.3) with a pretrained model: heads on the features of a frozen MiniLM.

The data, splits, seeds, activity and local work of `selffl_sent140.py`; in place of an LSTM on word vectors, and of its
warm start, a linear head on the mean of all-MiniLM-L6-v2's vectors (384 features, 64 tokens), computed once. Its
weights are those that sentence-transformers made of a billion pairs of sentences; no paper has these numbers. Rates,
and one more setting of some methods, are searched on validation data with one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personafl.config import parse
from personafl.study.plan import Plan
from personafl_papers.tables import selffl_sent140
from personafl_papers.tables.availability import MINILM, weights_or_names
from personafl_papers.tables.claims import Claim, above
from personafl_papers.tables.measures import columns
from personafl_papers.tables.search import Axes, Axis, SearchPlan, geometric
from personafl_papers.tables.selffl_sent140 import GLOBAL, LEAST, MAJORITY, TEST, majority
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number, planned, searching, with_settings

PART, SEARCH = "sent140, MiniLM", "search sent140, MiniLM"
SEEDS, ROUNDS, TOKENS = 5, 60, 64
GAIN = 5.0
"""Percentage points above the majority label that a method should have."""

ROWS = {
    "separate": "alone", "fedavg": "FedAvg", "fedavg-ft": "FedAvg, fine-tuned", "ditto": "Ditto", "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg", "fedamp": "FedAMP", "heurfedamp": "HeurFedAMP", "selffl-activity": "Self-FL",
    "selffl": "Self-FL, smoothing 1", "persfl": "PersFL",
}  # fmt: skip
WITH_GLOBAL = ("fedavg", "ditto", "pfedme", "perfedavg", "selffl-activity", "selffl")
DISTILLED = "persfl"
"""Chooses its teacher and its students on validation data, a fifth of a user's tweets, and trains on three fifths."""

OWN: dict[str, dict[str, Any]] = {
    **{name: own for name, own in selffl_sent140.METHODS.items() if name in ROWS},
    "persfl": {"algorithm": {"distill_epochs": 3}},
}
METHODS: dict[str, dict[str, Any]] = {name: OWN.get(name, {}) for name in ROWS}
RATE = geometric("local.lr", 0.01, 10.0, 0.3)
FINE = (geometric("local.lr", 0.01, 10.0, 0.5, per_decade=3),)
AXES: dict[str, Axes] = {
    **{name: FINE for name in ROWS},
    "ditto": (RATE, Axis("algorithm.lam", (0, 0.01, 0.03, 0.1, 0.3, 1, 3), 0.3)),
    "pfedme": (geometric("local.lr", 0.003, 0.3, 0.1), geometric("algorithm.personal_lr", 0.003, 0.3, 0.1)),
    "perfedavg": (RATE, geometric("algorithm.alpha", 0.003, 1.0, 0.1)),
    "fedamp": (RATE, Axis("algorithm.sigma_scale", (0.125, 0.25, 0.5, 1, 2, 4, 8), 0.5)),
    "heurfedamp": (RATE, Axis("algorithm.contrast", (0.25, 0.5, 1, 2, 4, 8), 1)),
}
TRIES, MOST_TRIES = 8, 12
"""For each method, and at most where a search has not come inside. pFedMe's η is bounded by ηλ < 2 with λ = 5."""


def config(quick: bool, validation: bool = False) -> dict[str, Any]:
    """The tables of a config, without method and seed: those from scratch, with a backbone in place of the model."""
    tables = selffl_sent140.config(quick, ROUNDS, validation)
    del tables["model"]
    [file, _] = weights_or_names(f"{MINILM}/model.safetensors", f"{MINILM}/config.json")
    folder = str(Path(file).parent)
    tables["data"] = {"name": "sent140", "tokens": TOKENS, "tokenizer": folder}
    return {**tables, "eval_every": 0, "backbone": {"path": folder}}


def search(found: Found) -> Sequence[tuple[str, SearchPlan]]:
    axes, tries = {name: AXES[name] for name in METHODS}, (2,) if found.quick else (TRIES, MOST_TRIES)
    return [(SEARCH, searching(config(found.quick, validation=True), METHODS, found.seeds(1, 1), axes, *tries))]


def heads(found: Found) -> Sequence[tuple[str, Plan]]:
    """All methods with what was searched; `DISTILLED` with validation data, and the same tweets for test."""
    methods = {name: with_settings(own, found.chosen(SEARCH, name)) for name, own in METHODS.items()}
    plans = []
    for validation in (False, True):
        some = {name: own for name, own in methods.items() if (name == DISTILLED) == validation}
        if some:
            plans.append((PART, planned(config(found.quick, validation), some, found.seeds(SEEDS))))
    return plans


def measure(found: Found) -> Measured:
    runs = found.runs[PART]
    numbers = columns(runs, {name: ROWS[name] for name in METHODS}, {TEST: "accuracy"})
    with_global = {name: ROWS[name] for name in WITH_GLOBAL if name in METHODS}
    for row, more in columns(runs, with_global, {GLOBAL: "global_accuracy"}).items():
        numbers[row] |= more
    tables = {key: value for key, value in config(found.quick).items() if key != "backbone"}
    federations = (parse({**tables, "seed": seed}).federation() for seed in found.seeds(SEEDS))
    numbers[MAJORITY] = {TEST: number([majority(each) for each in federations], 100)}
    return Measured({PART: numbers})


TABLE = Table(
    about="Sentiment of tweets by user with a pretrained model: heads on the features of a frozen MiniLM",
    paper="Ours, beside selffl-sent140 (Self-FL preprint, appendix E.3)",
    cost="not timed",
    data=("sent140", "minilm"),
    parts={
        PART: Part(
            f"Sent140, users with {LEAST} or more tweets, all-MiniLM-L6-v2", "ours", {},
            "A sample of Sentiment140's 1.6 million tweets, with few for each user",
        ),
    },
    stages=(search, heads),
    measure=measure,
    claims=tuple(
        Claim(
            f"{row} on MiniLM's features is above each user's majority label by more than {GAIN:g} points", "ours",
            (PART,), above(PART, TEST, row, (MAJORITY,), GAIN), False,
        )
        for row in ROWS.values()
    ),
    notes=(
        Note(
            "protocol difference",
            f"Users with {LEAST} or more tweets, 1,534 of them, have 4,464 for training and 1,640 for test, as in "
            "selffl-sent140: of the same file both tables make the same splits.",
            "The sizes of the federation; a test compares the splits.",
        ),
        Note(
            "unstated choice",
            "PersFL is trained on three fifths of a user's tweets, where the others have four: it chooses its teacher "
            "and students on validation data. The tweets for test are the same.",
            "The config of the runs.",
        ),
    ),
    cut=f"Heads on features only: no LoRA in MiniLM. {SEEDS} seeds; {ROUNDS} rounds and no warm start, where "
    "selffl-sent140 has 200 and 160; the search has one seed.",
)  # fmt: skip
