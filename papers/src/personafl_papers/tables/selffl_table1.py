"""Self-FL, Table 1: the clients with most samples, and those who are served worst (FEMNIST).

Protocol: `selffl_federations.py`. Where EMNIST is not at hand, ten letters of `letters` take its place. Its images have
128 pixels, not 784, so a learning rate means something else there; a second part therefore searches η for every method,
three values each, on validation data.
"""

from __future__ import annotations

from collections.abc import Sequence

from personafl.study.plan import Plan
from personafl_papers.tables.availability import available
from personafl_papers.tables.claims import Claim, above, at_most
from personafl_papers.tables.measures import columns
from personafl_papers.tables.selffl_federations import (
    BASELINES,
    LETTERS,
    ROWS,
    SEEDS,
    config,
    main_runs,
    methods,
    search,
)
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, planned

KEYS = {"top 10%": "top_10", "worst 10%": "worst_10"}
TABLE_1 = {
    "FedAvg": {"top 10%": (70.48, 0.07), "worst 10%": (0.0, 0.0)},
    "Ditto": {"top 10%": (70.58, 0.14), "worst 10%": (0.0, 0.0)},
    "pFedMe": {"top 10%": (72.76, 0.28), "worst 10%": (17.97, 1.23)},
    "Per-FedAvg": {"top 10%": (74.95, 0.56), "worst 10%": (24.51, 1.55)},
    "Self-FL": {"top 10%": (76.24, 0.07), "worst 10%": (37.01, 1.57)},
}
RATES = [0.01, 0.03, 0.1]


def federations() -> list[str]:
    """The paper's where EMNIST is here; `letters` in any case."""
    return ["letters", *(["femnist"] if available("emnist") else [])]


def first(found: Found) -> Sequence[tuple[str, Plan]]:
    return [search(federation, found) for federation in federations()]


def second(found: Found) -> Sequence[tuple[str, Plan]]:
    tables = config("letters", found.quick, validation=True)
    every = methods("letters", found)
    grid = {method: {"local.lr": RATES} for method in every}
    searched = planned(tables, every, found.seeds(SEEDS), grid, tune_seeds=1 if found.quick else 2)
    return [*(main_runs(federation, found) for federation in federations()), ("letters, η searched", searched)]


def measure(found: Found) -> Measured:
    parts = [part for part in TABLE.parts if part in found.runs]
    return Measured({part: columns(found.runs[part], ROWS, KEYS) for part in parts})


def claims(part: str, row: str, remark: str = "", should_hold: bool = True) -> list[Claim]:
    """The sentence under Table 1, for each of its two lines."""
    return [
        Claim(
            f"Self-FL{remark} is above FedAvg, Ditto, pFedMe and Per-FedAvg in {column} accuracy on {part}",
            "Table 1", (part,), above(part, column, row, BASELINES), should_hold,
        )
        for column in KEYS
    ]  # fmt: skip


TABLE = Table(
    about="Accuracy of the clients with most samples (top 10%) and of those served worst (worst 10%), 200 clients",
    paper="Self-FL (Chen et al., NeurIPS 2022), Table 1",
    cost="5 minutes",
    data=("letters",),
    optional=("emnist",),
    parts={
        "femnist": Part("FEMNIST, letters a to j, five each", "Table 1", TABLE_1),
        "letters": Part("letters a to j, five each", "Table 1", TABLE_1, LETTERS),
        "letters, η searched": Part("letters a to j, η searched for each method", "Table 1", TABLE_1, LETTERS),
    },
    stages=(first, second),
    measure=measure,
    claims=(
        *claims("femnist", "Self-FL"),
        *claims("letters", "Self-FL"),
        *claims("letters", "Self-FL, smoothing 1", " with smoothing 1 (not the paper's)", False),
        *claims("letters, η searched", "Self-FL"),
        *claims("letters, η searched", "Self-FL, smoothing 1", " with smoothing 1 (not the paper's)", False),
        Claim(
            "FedAvg leaves the worst tenth of the clients with nothing: below 1% on letters", "Table 1", ("letters",),
            at_most("letters", "worst 10%", "FedAvg", 1.0),
        ),
    ),
    notes=(
        Note(
            "protocol difference",
            "Letters are not FEMNIST: 128 binary pixels instead of 784 grey ones. With the paper's η = 0.01, 200 "
            "rounds leave all methods far from the end of training, and Self-FL with its smoothing by 0.1 most of all.",
            "The rows with smoothing 1, and the part with η searched.",
        ),
        Note(
            "protocol difference",
            "Where η is searched, a tenth of a client's samples is for validation, and it trains on 80% of them; in "
            "the part beside it on 90%. Tests are on the same tenth.",
            "The shares in `selffl_federations.py`.",
        ),
        Note(
            "protocol difference",
            "FedProx's generator of FEMNIST gives every client the same first images of a class, so that test images "
            "occur in others' training data; here every image is dealt once.",
            "Its published code, which the paper says it uses; see the partition lognormal.",
        ),
        Note(
            "unstated choice",
            "Ditto's λ, pFedMe's η_p and λ and Per-FedAvg's α are not given for this experiment. Searched on "
            "validation data, three values each; pFedMe's λ is 15, its authors' value.",
            "Section 4.2 says only \"the same hyper-parameter configurations\".",
        ),
    ),
)  # fmt: skip
