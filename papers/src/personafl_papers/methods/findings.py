"""What the study found, as its page and its picture need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from personafl_papers.methods.grids import grid_of
from personafl_papers.methods.outcomes import ALONE, Outcome, Outcomes, ranked_methods, scores
from personafl_papers.methods.ranks import Ranking, against, ranked
from personafl_papers.methods.sizes import Size

LEVEL = 0.05
CONTROLS = (ALONE, "fedavg")
"""Training alone, and FedAvg's model trained on by each client: what the others are compared with one by one."""


@dataclass(frozen=True)
class Findings:
    """The outcomes of a study, and their ranks.

    Attributes
    ----------
    outcomes
        By federation and method.
    command
        What made it.
    clients
        What there is to say of each federation's clients: how many, with how many samples.
    left_out
        Federations that could not be made, and why.
    """

    size: Size
    outcomes: Outcomes
    command: str
    clients: Mapping[str, str]
    left_out: Mapping[str, str]

    @cached_property
    def methods(self) -> list[str]:
        return list(next(iter(self.outcomes.values())))

    @cached_property
    def ranked(self) -> list[str]:
        """The methods that have an outcome on every federation."""
        return ranked_methods(self.outcomes)

    @cached_property
    def ranking(self) -> Ranking:
        return ranked(scores(self.outcomes, self.ranked))

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean ranks."""
        return {m: float(r) for m, r in zip(self.ranked, self.ranking.means, strict=True)}

    @cached_property
    def order(self) -> list[str]:
        """The ranked methods, the best first; equal ones by name."""
        return sorted(self.ranked, key=lambda m: (self.means[m], m))

    @cached_property
    def p(self) -> dict[str, dict[str, float]]:
        """By control and method: p of the difference from the control, after Holm."""
        there = [control for control in CONTROLS if control in self.ranked]
        found = {c: against(self.ranked.index(c), self.ranking.means, len(self.outcomes)) for c in there}
        return {c: dict(zip(self.ranked, map(float, p), strict=True)) for c, p in found.items()}

    def of(self, method: str) -> list[Outcome]:
        """What a method reached, federation after federation."""
        return [of[method] for of in self.outcomes.values()]

    def at_largest_rate(self) -> tuple[int, int]:
        """How many searches took the largest local rate that they tried, and how many there were."""
        took = [
            outcome.settings["local.lr"] == max(grid_of(method)["local.lr"])
            for of in self.outcomes.values()
            for method, outcome in of.items()
            if "local.lr" in outcome.settings
        ]
        return sum(took), len(took)

    def worse_off(self, method: str) -> float:
        """The share of clients that do worse than alone, mean over federations."""
        return mean([outcome.worse_off for outcome in self.of(method)])


def mean(values: Sequence[float]) -> float:
    """The mean of what is known; NaN if nothing is."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else np.nan
