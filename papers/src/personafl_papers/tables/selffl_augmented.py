"""Self-FL preprint, Figure 6: Algorithm 1 against Algorithm 2, which trains on to convergence, on MNIST and FEMNIST.

Settings are as printed (`selffl_federations.py`): the sum's gradient, smoothing by the activity rate, at most 40 steps;
Algorithm 2 then has 100 more, or fewer where a client's parameters hardly move. The figure shows the training accuracy
of the personalized models; the test accuracy is beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from personafl.config import parse
from personafl.study.plan import Plan
from personafl_papers.tables.claims import Claim, near
from personafl_papers.tables.measures import accuracy_on, columns, over_rounds
from personafl_papers.tables.selffl_federations import (
    OTHER_DATA,
    SEEDS,
    SUMMED,
    TITLES,
    config,
    here,
    printed_runs,
)
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number, planned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEDERATIONS = ("mnist", "femnist")
EXTRA = 100
ROWS = {"selffl-sum": "Algorithm 1", "selffl-aug-sum": "Algorithm 2"}
TRAIN, TEST = "training accuracy", "test accuracy"


def runs(found: Found) -> Sequence[tuple[str, Plan]]:
    out = []
    for federation in here(*FEDERATIONS):
        extra = 4 if found.quick else EXTRA
        second = {"algorithm": {**SUMMED["algorithm"], "name": "selffl-aug", "extra_steps": extra}}
        out.append((federation, printed_runs(federation, found, ["selffl-sum"])[1]))
        plan = planned(config(federation, found.quick), {"selffl-aug-sum": second}, found.seeds(SEEDS))
        out.append((federation, plan))
    return out


def measure(found: Found) -> Measured:
    numbers, curves = {}, {}
    for part in here(*FEDERATIONS):
        numbers[part] = columns(found.runs[part], ROWS, {TEST: "accuracy", "test accuracy, global": "global_accuracy"})
        curves[part] = over_rounds(found.runs[part], ROWS)
        for method, row in ROWS.items():
            made = found.runs[part].get(method, {})
            of_seed = {seed: parse({**config(part, found.quick), "seed": seed}).federation() for seed in made}
            if made:
                trained = [accuracy_on(run, of_seed[seed], "train") for seed, run in made.items()]
                numbers[part][row][TRAIN] = number(trained, 100)
    return Measured(numbers, curves)


def figures(measured: Measured) -> dict[str, tuple[Figure, str]]:
    from personafl_papers.tables.figures import curves

    panels = {TABLE.parts[part].title: rows for part, rows in measured.curves.items()}
    drawn = curves(panels, "test accuracy of personalized models, %")
    return {"figure6": (drawn, "Figure 6, with test accuracy: Algorithms 1 and 2 over the rounds.")}


TABLE = Table(
    about="Algorithm 1 against Algorithm 2, which trains on to convergence in every round, on MNIST and FEMNIST",
    paper="Self-FL preprint, appendix E.2, Figure 6",
    cost="10 minutes (estimated)",
    data=("mnist", "emnist"),
    parts={
        name: Part(f"{TITLES[name]}; settings as printed", "Figure 6", {}, OTHER_DATA[name]) for name in FEDERATIONS
    },
    stages=(runs,),
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            "Algorithms 1 and 2 are very close on FEMNIST: within 1 point of training accuracy", "E.2, Figure 6b",
            ("femnist",), near("femnist", TRAIN, "Algorithm 1", "Algorithm 2", 1.0),
        ),
        *(
            Claim(
                f"They are within 1 point of {column} on {part}", "E.2, Figure 6", (part,),
                near(part, column, "Algorithm 1", "Algorithm 2", 1.0), False,
            )
            for part, column in (("femnist", TEST), ("mnist", TRAIN), ("mnist", TEST))
        ),
    ),
    notes=(
        Note(
            "unstated choice",
            f"When Algorithm 2 has converged is not said: here after {EXTRA} more steps, or when the parameters moved "
            "by less than a thousandth in a step.",
            "Algorithm 2; the options of selffl-aug.",
        ),
    ),
)  # fmt: skip
