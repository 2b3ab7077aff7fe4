"""Self-FL preprint, E.5 and E.6: few active clients and the smoothing, and the number of local steps over the rounds.

E.5 (Figure 9): MNIST with C = 0.02, otherwise as in Figure 1, with what was searched there with C = 0.1: for Self-FL
with the paper's smoothing for all its smoothings but 1. The smoothing coefficient is C in the paper; others are beside
it. E.6 (Figures 10 and 11) has C = 0.1 and does not name its data: MNIST here, the runs of Figure 1, and as printed,
with and without a memory of 4 rounds for σ_m² (`window`). The paper speaks of "theoretical values" of ℓ: here both what
(8) asked for and what a client took in a round, which is at most ℓ_max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from personafl.metrics import mean_accuracy
from personafl.runs.run import Run
from personafl.settings import Schedule
from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, Number, below
from personafl_papers.tables.measures import by_round, over_rounds
from personafl_papers.tables.search import SearchPlan
from personafl_papers.tables.selffl_federations import (
    SEEDS,
    SUMMED,
    config,
    methods,
    printed_runs,
    search,
)
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number, planned, with_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SELFFL = {"name": "selffl"}
METHODS: dict[str, dict[str, Any]] = {
    "selffl-activity": {"algorithm": {**SELFFL, "smoothing": "activity"}},
    "selffl-smoothing-0.1": {"algorithm": {**SELFFL, "smoothing": 0.1}},
    "selffl-smoothing-0.5": {"algorithm": {**SELFFL, "smoothing": 0.5}},
    "selffl": {},
    "fedavg": {},
}
ROWS = {
    "selffl-activity": "Self-FL, smoothing C",
    "selffl-smoothing-0.1": "Self-FL, smoothing 0.1",
    "selffl-smoothing-0.5": "Self-FL, smoothing 0.5",
    "selffl": "Self-FL, smoothing 1",
    "fedavg": "FedAvg",
    "ditto": "Ditto",
}
SPARSE, STEPS = "C = 0.02", "steps"
CURVES = ("personal_accuracy", "global_accuracy")
MARKS = {"round 100": 0.5, "round 150": 0.75, "round 200": 1.0}
"""Of 200; of fewer rounds the same shares."""
WINDOWS = {"selffl-sum": "all rounds", "selffl-sum-window-4": "the last 4 rounds"}
"""How much σ_m² remembers, for Algorithm 1 as printed."""
COLUMNS = {
    "mean ℓ taken by the active": "steps", "mean ℓ asked for by (8)": "asked_steps", "mean σ² of the active": "sigma2",
}  # fmt: skip


def first(found: Found) -> Sequence[tuple[str, SearchPlan]]:
    return [search("mnist", found)]  # of all methods, as in Figure 1: how far a search goes depends on the others


def second(found: Found) -> Sequence[tuple[str, Plan]]:
    tables = {**config("mnist", found.quick), "activity": 0.05 if found.quick else 0.02}
    own = methods("mnist", found)
    smoothed = found.chosen("search mnist", "selffl-activity")
    every = {m: own[m] if m in own else with_settings(each, smoothed) for m, each in METHODS.items()}
    window = {"selffl-sum-window-4": {"algorithm": {**SUMMED["algorithm"], "window": 4}}}
    return [
        (SPARSE, planned(tables, {**every, "ditto": own["ditto"]}, found.seeds(SEEDS))),
        (STEPS, printed_runs("mnist", found, ["selffl-sum"])[1]),
        (STEPS, planned(config("mnist", found.quick), window, found.seeds(SEEDS))),
    ]


def measure(found: Found) -> Measured:
    numbers: dict[str, dict[str, dict[str, Number]]] = {SPARSE: {}, STEPS: {}}
    for method, row in ROWS.items():
        for key, name in zip(CURVES, ("personalized", "global"), strict=True):
            _, values = by_round(list(found.runs[SPARSE][method].values()), key)
            half = values.shape[1] // 2 - 1
            own = numbers[SPARSE].setdefault(row, {})
            own[f"{name}, round 100"] = number(values[:, half].tolist(), 100)
            own[f"{name}, round 200"] = number(values[:, -1].tolist(), 100)
    curves: dict[str, Any] = {key: over_rounds(found.runs[SPARSE], ROWS, key) for key in CURVES}
    for method, memory in WINDOWS.items():
        runs = list(found.runs[STEPS][method].values())
        rounds = int(runs[0].manifest["rounds"])
        for name, share in MARKS.items():
            at = int(rounds * share)
            numbers[STEPS][f"{memory}, {name}"] = {
                title: number([mean_accuracy(active(run, at, column)) for run in runs])
                for title, column in COLUMNS.items()
            }
        curves[memory] = steps(runs, rounds // 2)
    return Measured(numbers, curves)


def active(run: Run, round: int, column: str) -> NDArray[np.float64]:
    """A column of clients.parquet of those who were active in a round, after it."""
    table = run.clients(round)
    schedule = Schedule(activity=run.manifest["activity"])
    ids = schedule.cohort(int(run.manifest["seed"]), round, len(table))
    return np.asarray(table.column(column).to_numpy(zero_copy_only=False), np.float64)[ids]


def steps(runs: Sequence[Run], half: int) -> dict[str, Any]:
    """Figures 10 and 11: ℓ of the active clients in a round; ℓ of one client at the evaluations, with its σ²."""
    edges = np.arange(0.5, 42.5, 2.0)
    counts = np.histogram(np.concatenate([active(run, half, "steps") for run in runs]), edges)[0]
    table = runs[0].folder.clients()
    mine = table.filter(np.asarray(table.column("client")) == table.column("client")[7].as_py())
    course = {"round": mine.column("round").to_pylist()}
    for key in ("asked_steps", "sigma2"):
        values = np.asarray(mine.column(key).to_numpy(zero_copy_only=False), np.float64)
        course[key] = [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]
    return {"edges": edges.tolist(), "counts": {f"round {half}": counts.tolist()}, "client": course}


def figures(measured: Measured) -> dict[str, tuple[Figure, str]]:
    import matplotlib
    from matplotlib.figure import Figure

    from personafl.palette import LIGHT
    from personafl.report.figures import STYLE
    from personafl_papers.tables.figures import curves, histograms

    panels = {"personalized models": measured.curves[CURVES[0]], "global model": measured.curves[CURVES[1]]}
    drawn = {
        "figure9": (curves(panels, "accuracy, %"), "Figure 9: MNIST with C = 0.02; bands are standard errors."),
        "figure10": (
            histograms(
                {f"MNIST, C = 0.1, σ² of {memory}": measured.curves[memory] for memory in WINDOWS.values()},
                "local steps ℓ", "active clients, all seeds",
            ),
            "Figure 10: ℓ of the clients that are active after half of the rounds.",
        ),
    }  # fmt: skip
    for name, memory in zip(("figure11", "figure11-window"), WINDOWS.values(), strict=True):
        client = measured.curves[memory]["client"]
        with matplotlib.rc_context(STYLE):
            course = Figure(figsize=(7, 3), layout="constrained")
            left, right = course.subplots(1, 2)
            for axes, key, label in ((left, "asked_steps", "ℓ by (8)"), (right, "sigma2", "uncertainty σ²")):
                values = [np.nan if v is None else v for v in client[key]]
                axes.plot(client["round"], values, color=LIGHT[0], marker=".")
                axes.set(xlabel="round", ylabel=label)
        caption = f"Figure 11, σ² of {memory}: ℓ of one client, as of its last activation, and its σ²."
        drawn[name] = (course, caption)
    return drawn


SLOW, OTHERS = "Self-FL, smoothing C", ["FedAvg", "Ditto"]


TABLE = Table(
    about="MNIST with 2% active clients and several smoothing coefficients (E.5); local steps over the rounds (E.6)",
    paper="Self-FL preprint, appendices E.5 and E.6, Figures 9 to 11",
    cost="30 minutes (estimated)",
    data=("mnist",),
    parts={
        SPARSE: Part("MNIST, 1,000 clients, C = 0.02", "Figure 9"),
        STEPS: Part("MNIST, 1,000 clients, C = 0.1: Self-FL's local steps", "Figures 10, 11"),
    },
    stages=(first, second),
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            "With C = 0.02 as the smoothing coefficient, Self-FL converges more slowly than FedAvg and Ditto: a lower "
            "accuracy of the personalized models after 100 rounds", "E.5, Figure 9", (SPARSE,),
            below(SPARSE, "personalized, round 100", SLOW, OTHERS),
        ),
        Claim(
            "The same for the global model", "E.5", (SPARSE,), below(SPARSE, "global, round 100", SLOW, OTHERS), False,
        ),
        Claim(
            "The small coefficient makes it slow: with smoothing 1 the global model is better after 100 rounds",
            "E.5", (SPARSE,), below(SPARSE, "global, round 100", SLOW, ["Self-FL, smoothing 1"]),
        ),
        *(
            claim
            for memory in WINDOWS.values()
            for claim in (
                Claim(
                    f"ℓ has a decreasing trend after round 150 (σ² of {memory})", "E.6, Figure 11", (STEPS,),
                    below(STEPS, "mean ℓ asked for by (8)", f"{memory}, round 200", [f"{memory}, round 150"]),
                    memory == WINDOWS["selffl-sum"],
                ),
                Claim(
                    f"σ_m² drops after round 150 (σ² of {memory})", "E.6", (STEPS,),
                    below(STEPS, "mean σ² of the active", f"{memory}, round 200", [f"{memory}, round 150"]),
                    memory == WINDOWS["selffl-sum"],
                ),
            )
        ),
    ),
    notes=(
        Note(
            "unstated choice",
            "With σ0² as a sum over the cohort, which is what makes Self-FL work, nearly every client takes the most "
            "steps allowed, so there is little of a trend of ℓ to see.",
            "docs/selffl.md: with plain means and the same posterior ℓ is 1 for nearly every client.",
        ),
        Note(
            "unstated choice",
            "Figure 11 is of one client, chosen at random, and of ℓ before it is limited; ours are means over the "
            "active clients. Where σ² remembers all rounds, the way from the initial model counts as variance.",
            "E.6; the rows with the last 4 rounds.",
        ),
    ),
)  # fmt: skip
