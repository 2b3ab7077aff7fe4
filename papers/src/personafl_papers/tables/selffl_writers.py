"""Self-FL on what is not the paper's division: FEMNIST by its true writers, by FedProx's generator, and small letters.

FedProx's published generator has three letters a client in its code, where its paper and Self-FL's have five; sizes are
the same, lognormal(4, 1) + 5, up to what there is of a letter. Letters of 16 by 8 pixels stand in for EMNIST's.

Protocol: the searched part of `selffl_federations.py`. Its claims are the paper's of Table 1 and Figure 1, as
variations: they are shown, and not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, above
from personafl_papers.tables.measures import columns
from personafl_papers.tables.search import SearchPlan
from personafl_papers.tables.selffl_federations import BASELINES, OTHER_DATA, ROWS, TITLES, main_runs, search
from personafl_papers.tables.table import Found, Measured, Note, Part, Table

KEYS = {"accuracy": "accuracy", "top 10%": "top_10", "worst 10%": "worst_10", "global model": "global_accuracy"}


def table(federation: str, about: str, data: str, cost: str, notes: tuple[Note, ...] = (), cut: str = "") -> Table:
    """The table of a federation that is not the paper's."""

    def first(found: Found) -> Sequence[tuple[str, SearchPlan]]:
        return [search(federation, found)]

    def second(found: Found) -> Sequence[tuple[str, Plan]]:
        return [main_runs(federation, found)]

    def measure(found: Found) -> Measured:
        return Measured({federation: columns(found.runs[federation], ROWS, KEYS)})

    return Table(
        about=about,
        paper="Ours, beside selffl-table1 and selffl-fig1 (Self-FL, NeurIPS 2022)",
        cost=cost,
        data=(data,),
        parts={
            federation: Part(f"{TITLES[federation]}; all settings searched", "a variation", {}, OTHER_DATA[federation])
        },
        stages=(first, second),
        measure=measure,
        claims=tuple(
            Claim(
                f"{row} is above FedAvg, Ditto, pFedMe and Per-FedAvg in {what} on {federation}",
                "a variation", (federation,), above(federation, column, row, BASELINES), False,
            )
            for row in ("Self-FL", "Self-FL, smoothing 1")
            for column, what in {"accuracy": "weighted accuracy", "top 10%": "top 10% accuracy",
                                 "worst 10%": "worst 10% accuracy"}.items()
        ),
        notes=notes,
        cut=cut,
    )  # fmt: skip


WRITERS = table(
    "writers", "FEMNIST by 380 people who wrote it, 62 characters: six methods, all settings searched",
    "femnist", "35 minutes (estimated)", (), "The search has one seed.",
)  # fmt: skip
GENERATOR = table(
    "femnist-3", "FEMNIST a to j with three letters a client, as FedProx's published generator deals them: six methods",
    "emnist", "12 minutes (estimated)",
)  # fmt: skip
LETTERS = table(
    "letters", "Ten letters of 16 by 8 pixels, which stand in for FEMNIST where it is not at hand",
    "letters", "7 minutes (measured)",
)  # fmt: skip
