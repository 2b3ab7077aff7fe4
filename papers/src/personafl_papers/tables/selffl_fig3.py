"""Self-FL, Figure 3: histograms of the clients' accuracies, Self-FL against FedAvg. The runs are those of Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from personafl import metrics
from personafl.runs.run import Run
from personafl.study.judgement import accuracy_of
from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, Number, above, at_least
from personafl_papers.tables.search import SearchPlan
from personafl_papers.tables.selffl_federations import OTHER_DATA, ROWS, TITLES, main_runs, search
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("selffl-activity", "selffl", "fedavg")
QUANTILES = {"lower tenth": 0.1, "lower quarter": 0.25, "median": 0.5, "upper quarter": 0.75}
EDGES = np.linspace(0, 100, 21)
SHARE = "clients better off minus worse off"


FEDERATIONS = ("mnist", "femnist")


def first(federation: str, found: Found) -> Sequence[tuple[str, SearchPlan]]:
    return [search(federation, found)]  # of all methods, as in Figure 1: how far a search goes depends on the others


def second(federation: str, found: Found) -> Sequence[tuple[str, Plan]]:
    return [main_runs(federation, found, SHOWN)]


def measure(found: Found) -> Measured:
    numbers: dict[str, dict[str, dict[str, Number]]] = {}
    histograms: dict[str, Any] = {}
    for part in (part for part in FEDERATIONS if part in found.runs):
        runs = [found.runs[part].get(method, {}) for method in SHOWN]
        seeds = [seed for seed in runs[0] if all(seed in one for one in runs)]  # those that no method failed with
        if not seeds:
            continue
        every = {ROWS[m]: [accuracies(one[seed]) for seed in seeds] for m, one in zip(SHOWN, runs, strict=True)}
        numbers[part] = {row: _numbers(values, every["FedAvg"]) for row, values in every.items()}
        counts = {row: np.histogram(np.concatenate(values), EDGES)[0].tolist() for row, values in every.items()}
        histograms[part] = {"edges": EDGES.tolist(), "counts": counts}
    return Measured(numbers, histograms)


def accuracies(run: Run) -> NDArray[np.float64]:
    """In percent, of the clients that have test data."""
    found = accuracy_of(run)
    if found is None:
        return np.array([])
    return 100 * found[~np.isnan(found)]


def _numbers(by_seed: list[NDArray[np.float64]], fedavg: list[NDArray[np.float64]]) -> dict[str, Number]:
    out = {"mean": number([metrics.mean_accuracy(values) for values in by_seed])}
    for name, q in QUANTILES.items():
        out[name] = number([metrics.quantile(values, q) for values in by_seed])
    pairs = zip(by_seed, fedavg, strict=True)
    out[SHARE] = number([float(np.sign(mine - theirs).mean()) for mine, theirs in pairs], 100)
    return out


def figures(measured: Measured) -> dict[str, tuple[Figure, str]]:
    from personafl_papers.tables.figures import histograms

    panels = {TITLES[part]: panel for part, panel in measured.curves.items()}
    drawn = histograms(panels, "accuracy of a client's personalized model, %", "clients, all seeds")
    return {"figure3": (drawn, "Figure 3: how many clients get how much, after the last round.")}


def claims(part: str, row: str = "Self-FL", remark: str = "", should_hold: bool = True) -> list[Claim]:
    return [
        Claim(
            f"On {part}, user-level accuracy under Self-FL{remark} is shifted to the right of FedAvg's: a higher mean",
            "Section 4.2, Figure 3", (part,), above(part, "mean", row, ["FedAvg"]), should_hold,
        ),
        Claim(
            f"On {part}, more clients are better off with Self-FL{remark} than with FedAvg than are worse off",
            "Section 4.2, Figure 3", (part,), at_least(part, SHARE, row, 0.0), should_hold,
        ),
    ]  # fmt: skip


def table(federation: str, data: str, cost: str, notes: tuple[Note, ...] = ()) -> Table:
    """The figure's part of one federation."""
    return Table(
        about=f"Histograms of the clients' accuracies, Self-FL against FedAvg: {TITLES[federation]}",
        paper="Self-FL (Chen et al., NeurIPS 2022), Figure 3",
        cost=cost,
        data=(data,),
        parts={
            federation: Part(
                f"{TITLES[federation]}; all settings searched", "Figure 3", {}, OTHER_DATA[federation]
            )
        },
        stages=(partial(first, federation), partial(second, federation)),
        measure=measure,
        figures=figures,
        claims=(
            *claims(federation),
            *claims(federation, "Self-FL, smoothing 1", ", with smoothing 1 (not the paper's),", False),
        ),
        notes=(
            Note(
                "unstated choice",
                "Here every client counts alike, in Figure 1 every sample: clients with few samples decide the mean.",
                "selffl-fig1 and selffl-fig1-femnist have the same runs, weighted by samples.",
            ),
            *notes,
        ),
    )  # fmt: skip


TABLE = table("mnist", "mnist", "30 minutes (estimated), none after selffl-fig1")
SMOOTHING = Note(
    "unstated choice",
    "With smoothing by the activity rate, the paper's, the server moves a tenth of the way in each round, and is "
    "behind after 200 of them. With smoothing 1, all else searched alike, Self-FL's mean is that of FedAvg.",
    "The rows Self-FL, 85.5, Self-FL, smoothing 1, 89.3, and FedAvg, 88.9.",
    (
        "On femnist, user-level accuracy under Self-FL is shifted",
        "On femnist, more clients are better off with Self-FL",
    ),
)
FEMNIST = table("femnist", "emnist", "none after selffl-table1", (SMOOTHING,))
