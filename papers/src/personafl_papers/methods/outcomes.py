"""From the lines of a study to what each method reached on each federation.

A federation that a method refuses has no result of it, and a method that any federation lacks is not ranked. A method
fails on a federation where none of its tries ended well, or one of its seeds did not: there it is ranked last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from personafl_papers.methods.runs import Record, RunFile, StudyRun, chosen, tries
from personafl_papers.methods.sizes import Size

ALONE = "separate"


@dataclass(frozen=True)
class Outcome:
    """What a method reached on a federation.

    Attributes
    ----------
    status
        `done`; `refused`, `failed`, with the reason in `why`; or `missing`, where runs have not been made.
    settings
        What was chosen on validation data.
    accuracies, global_accuracies
        Over all test samples of all clients, by seed: of the personalized models, and of the global model.
    worse_off
        The share of clients with fewer right answers than when they train alone, mean over seeds.
    gradients, seconds
        How many a client computed in a run, and seconds of a processor that a run took, means over seeds.
    """

    status: str
    why: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    accuracies: tuple[float, ...] = ()
    global_accuracies: tuple[float, ...] = ()
    worse_off: float = np.nan
    gradients: float = np.nan
    seconds: float = np.nan

    @property
    def accuracy(self) -> float:
        """The mean over seeds; rounded, because what differs in its last bits only is equal and shares a rank."""
        return round(float(np.mean(self.accuracies)), 9) if self.accuracies else np.nan

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN for one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else np.nan


Outcomes = dict[str, dict[str, Outcome]]
"""By federation and method."""


def outcomes(file: RunFile, federations: Sequence[str], methods: Sequence[str], size: Size, seed: int) -> Outcomes:
    """What is known of these methods on these federations."""
    found: Outcomes = {}
    for federation in federations:
        final = {method: _final(file, federation, method, size, seed) for method in methods}
        alone = final.get(ALONE, (None, "", {}, []))[3]
        found[federation] = {method: _outcome(*one, alone) for method, one in final.items()}
    return found


def ranked_methods(found: Outcomes) -> list[str]:
    """The methods that have an outcome, good or bad, on every federation."""
    methods = next(iter(found.values()), {})
    return [m for m in methods if all(of[m].status in ("done", "failed") for of in found.values())]


def scores(found: Outcomes, methods: Sequence[str]) -> list[list[float]]:
    """Mean accuracy by federation and method; −∞ where a method failed."""
    return [[of[m].accuracy if of[m].status == "done" else -np.inf for m in methods] for of in found.values()]


_Final = tuple[str, str, dict[str, Any], list[Record]]


def _final(file: RunFile, federation: str, method: str, size: Size, seed: int) -> _Final:
    """Status, reason, settings, and a record for each seed."""
    tried = [file.known.get(run.key) for run in tries(federation, method, size, seed)]
    known = [record for record in tried if record is not None]
    if len(known) < len(tried):
        return "missing", "", {}, []
    settings = chosen(known)
    if settings is None:
        refused = all(record["status"] == "refused" for record in known)
        return "refused" if refused else "failed", known[0].get("why", ""), {}, []
    runs = [StudyRun(federation, method, s, settings, size) for s in range(seed, seed + size.seeds)]
    records = [file.known.get(run.key) for run in runs]
    made = [record for record in records if record is not None]
    if len(made) < len(records):
        return "missing", "", settings, []
    broken = [record for record in made if record["status"] != "done"]
    return ("failed", broken[0].get("why", ""), settings, []) if broken else ("done", "", settings, made)


def _outcome(status: str, why: str, settings: dict[str, Any], made: list[Record], alone: list[Record]) -> Outcome:
    if status != "done":
        return Outcome(status, why, settings)
    samples = [sum(record["n_test"]) for record in made]
    shared = [record["global"] / n for record, n in zip(made, samples, strict=True) if "global" in record]
    return Outcome(
        "done",
        settings=settings,
        accuracies=tuple(sum(record["test"]) / n for record, n in zip(made, samples, strict=True)),
        global_accuracies=tuple(shared),
        worse_off=_worse_off(made, alone),
        gradients=float(np.mean([record["gradients"] for record in made])),
        seconds=float(np.mean([record["seconds"] for record in made])),
    )


def _worse_off(made: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> float:
    if len(alone) != len(made):
        return np.nan
    return float(
        np.mean([np.mean(np.array(m["test"]) < np.array(a["test"])) for m, a in zip(made, alone, strict=True)])
    )
