"""Self-FL's FEMNIST with images as FedProx's code makes them: what the published numbers owe to the images.

The paper has "the same approach as FedProx", whose code does not read EMNIST: it scales NIST's images of 128 by 128
pixels down to 28 by 28 and divides by 255. So letters are small (9 pixels high, where EMNIST crops them and scales them
to 20), and dark on a bright ground: the mean pixel is .96, with EMNIST .18. LEAF makes FEMNIST in the same way, and of
its images 4,759 small letters a to j are at hand, a quarter of what the division draws.

*LEAF's images*: six methods with all settings searched, and as printed. *As printed* also for what differs one by one:
EMNIST's images dark, as few a client as there are of LEAF's, both, and LEAF's images bright. Claims are the paper's, as
variations: they are shown, and not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, above, at_most
from personafl_papers.tables.measures import columns
from personafl_papers.tables.search import SearchPlan
from personafl_papers.tables.selffl_federations import (
    BASELINES,
    OTHER_DATA,
    PRINTED,
    ROWS,
    TITLES,
    main_runs,
    printed,
    printed_runs,
    search,
)
from personafl_papers.tables.selffl_table1 import AS_PRINTED, KEYS, RENAMED, TABLE_1
from personafl_papers.tables.table import Found, Measured, Part, Table

FEDERATION = "leaf"
CONTROLS = ("femnist", "femnist-dark", "femnist-few", "femnist-few-dark", "leaf-bright")
"""What differs from EMNIST's images and from LEAF's, one thing after the other."""
CONTROLLED = ("selffl-sum", "fedavg", "ditto")
COLUMNS = {"accuracy": "accuracy", **KEYS}
WHAT = {"accuracy": "weighted accuracy", "top 10%": "top 10% accuracy", "worst 10%": "worst 10% accuracy"}


def first(found: Found) -> Sequence[tuple[str, SearchPlan]]:
    return [search(FEDERATION, found)]


def second(found: Found) -> Sequence[tuple[str, Plan]]:
    controls = [printed_runs(federation, found, CONTROLLED) for federation in CONTROLS]
    return [main_runs(FEDERATION, found), printed_runs(FEDERATION, found), *controls]


def measure(found: Found) -> Measured:
    numbers = {FEDERATION: columns(found.runs[FEDERATION], ROWS, COLUMNS)}
    for part in (printed(federation) for federation in (FEDERATION, *CONTROLS)):
        numbers[part] = columns(found.runs[part], PRINTED, COLUMNS)
    return Measured(numbers)


def nothing(federation: str) -> Claim:
    part = printed(federation)
    return Claim(
        f"FedAvg leaves the worst tenth of the clients with nothing: below 1% on {part}", "Table 1", (part,),
        at_most(part, "worst 10%", "FedAvg", 1.0), False,
    )  # fmt: skip


TABLE = Table(
    about="FEMNIST a to j with images as FedProx's code makes them: six methods, and what differs from EMNIST's images",
    paper="Ours, beside selffl-table1 and selffl-fig1-femnist (Self-FL, NeurIPS 2022)",
    cost="15 minutes (estimated)",
    data=("emnist", "femnist"),
    parts={
        FEDERATION: Part(
            f"{TITLES[FEDERATION]}; all settings searched", "Table 1", TABLE_1, OTHER_DATA[FEDERATION]
        ),
        printed(FEDERATION): Part(
            f"{TITLES[FEDERATION]}; settings as printed", "Table 1",
            {RENAMED.get(row, row): values for row, values in TABLE_1.items()}, OTHER_DATA[FEDERATION],
        ),
        **{
            printed(federation): Part(
                f"{TITLES[federation]}; settings as printed", "a variation", {}, OTHER_DATA[federation]
            )
            for federation in CONTROLS
        },
    },
    stages=(first, second),
    measure=measure,
    claims=(
        *(
            Claim(
                f"{row} is above FedAvg, Ditto, pFedMe and Per-FedAvg in {what} on {part}", "a variation", (part,),
                above(part, column, row, others), False,
            )
            for part, others, rows in (
                (FEDERATION, BASELINES, ("Self-FL", "Self-FL, smoothing 1")),
                (printed(FEDERATION), AS_PRINTED, (PRINTED["selffl-sum"],)),
            )
            for row in rows
            for column, what in WHAT.items()
        ),
        *(nothing(federation) for federation in (FEDERATION, *CONTROLS)),
    ),
)  # fmt: skip
