"""Which candidate is trained next, and how far: successive halving over rounds, within a budget of time.

Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar: A system for massively parallel hyperparameter tuning.
MLSys 2020 (ASHA). Every method is tried first with the settings that were given. Then, again and again, the best third
of what was trained for few rounds is trained three times as long, and where nobody is due for that, a new candidate is
drawn. Ours: the best of each method is seen at two lengths before its method is given up, as some start slowly; half
of the draws are near the best of a method, half of the methods drawn are among the three that lead; and the end is
kept for the leader and the references, which have to be trained as long as their rivals to be worth a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from personafl.fitting.candidates import REFERENCES, Candidate, Outcome, Portfolio
from personafl.fitting.finalists import contenders
from personafl.settings import Local
from personafl.streams import generator

FACTOR = 3
"""Rounds of a rung to those of the rung below, and one in so many goes on."""
RUNGS = 4
MARGIN = 1.2
"""How much longer than it took before something may take."""
SPARE = 0.05
"""Share of the time that is kept beside what the end needs: where trainings are short, a machine that falters for a
second would else take it from the references."""


@dataclass(frozen=True)
class Attempt:
    """A candidate that is to be trained up to so many rounds; `again`: anew, on the validation data as well."""

    candidate: Candidate
    rounds: int
    again: bool = False


def rungs(rounds: int) -> list[int]:
    """Lengths of training, each three times the one before.

    >>> rungs(100), rungs(5), rungs(1)
    ([4, 12, 34, 100], [1, 2, 5], [1])
    """
    return sorted({math.ceil(rounds / FACTOR**i) for i in range(RUNGS)})


def together(seconds: Sequence[float], at_once: int) -> float:
    """How long trainings take of which so many go on at a time: not less than the longest of them.

    >>> together([4.0, 1.0, 1.0], 1), together([4.0, 1.0, 1.0], 2), together([1.0, 1.0, 1.0], 2), together([], 2)
    (6.0, 4.0, 1.5, 0.0)
    """
    return max(sum(seconds) / at_once, max(seconds, default=0.0))


class Search:
    """Asked what to train next, told what came of it.

    Parameters
    ----------
    portfolio
        The methods.
    local
        How clients train where nothing is searched.
    rounds
        The longest training.
    seed
        What draws follow from.
    trials
        How many candidates at most; left out, as many as there is time for.
    at_once
        How many are trained at the same time.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        local: Local,
        rounds: int,
        seed: int,
        trials: int | None = None,
        at_once: int = 1,
    ) -> None:
        self.portfolio, self.local, self.seed = portfolio, local, seed
        self.rungs = rungs(rounds)
        self.trials, self.at_once = trials, at_once
        self.candidates: list[Candidate] = []
        self._best: dict[str, Candidate] = {}
        self._going_on: set[int] = set()
        self._most = 0.0  # seconds that were left when there were most: what SPARE is a share of

    # --- told --------------------------------------------------------------------------------------------------

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Training a candidate ended."""
        self._going_on.discard(candidate.number)
        candidate.outcomes[outcome.rounds] = outcome
        self._note_best(candidate)

    def put(self, candidate: Candidate) -> None:
        """A candidate of an earlier session."""
        self.candidates.append(candidate)
        self._note_best(candidate)

    @property
    def leader(self) -> Candidate | None:
        """The best so far."""
        return max(self._best.values(), key=lambda c: (c.score, -c.number), default=None)

    def best_of(self, method: str) -> Candidate | None:
        """The best candidate of a method."""
        return self._best.get(method)

    def forget(self) -> list[str]:
        """Folders of trainings that are not needed any more; their scores stay.

        Needed are those that finalists can come of, and of each rung the better half of those that may go on. Who goes
        on all the same is trained from the start.
        """
        kept = {id(outcome) for outcome in contenders(self.candidates)}
        for rung in self.rungs[:-1]:
            here = sorted((c for c in self.candidates if rung in c.outcomes), key=lambda c: -c.outcomes[rung].best)
            kept |= {id(c.outcomes[rung]) for c in here[: len(here) // 2 + 1] if c.rounds == rung}
        forgotten = []
        for candidate in self.candidates:
            for rounds, outcome in candidate.outcomes.items():
                if outcome.folder and id(outcome) not in kept and candidate.number not in self._going_on:
                    forgotten.append(outcome.folder)
                    candidate.outcomes[rounds] = replace(outcome, folder="")
        return forgotten

    def _note_best(self, candidate: Candidate) -> None:
        best = self._best.get(candidate.method)
        if math.isfinite(candidate.score) and (best is None or candidate.score > best.score):
            self._best[candidate.method] = candidate

    # --- asked -------------------------------------------------------------------------------------------------

    def next(self, left: float) -> Attempt | None:
        """What to train now, with so many seconds left; None where there is no time for anything."""
        self._most = max(self._most, left)
        compared = {c.method for c in self.candidates if c.outcomes} >= set(REFERENCES)
        closing = compared and self._must_close(left)
        attempt = self._closing(left) if closing else self._first_look() or self._halving()
        if attempt is None or self._too_long(attempt, left):
            attempt = self._closing(left)
        if attempt is None and not self._full() and (quick := self._quick(left)):
            attempt = Attempt(self._drawn(quick), self.rungs[0])
        if attempt is not None:
            self._going_on.add(attempt.candidate.number)
        return attempt

    def _first_look(self) -> Attempt | None:
        """Every method once, as it was given."""
        seen = {c.method for c in self.candidates}
        missing = next((name for name in self.portfolio.algorithms if name not in seen), None)
        if missing is None or self._full():
            return None
        return Attempt(self._new(missing, {}), self.rungs[0])

    def _halving(self) -> Attempt | None:
        for below, above in reversed(list(zip(self.rungs, self.rungs[1:], strict=False))):
            if (due := self._due(below, above)) is not None:
                return Attempt(due, above)
        return None if self._full() else Attempt(self._drawn(), self.rungs[0])

    def _due(self, below: int, above: int) -> Candidate | None:
        """Who goes on from one rung to the next: of the best third, or the first of its method to do so."""
        here = [c for c in self.candidates if below in c.outcomes and not c.failed]
        ranked = sorted(here, key=lambda c: (-c.outcomes[below].best, c.number))
        waiting = [c for c in ranked if c.rounds == below and c.number not in self._going_on]
        best = ranked[: len(here) // FACTOR]
        if found := next((c for c in waiting if c in best), None):
            return found
        if below != self.rungs[0]:
            return None
        went = {c.method for c in self.candidates if c.rounds > below or c.number in self._going_on}
        return next((c for c in waiting if c.method not in went), None)

    def _full(self) -> bool:
        return self.trials is not None and len(self.candidates) >= self.trials

    def _new(self, method: str, settings: dict[str, object]) -> Candidate:
        candidate = Candidate(self._next_number(), method, settings)
        self.candidates.append(candidate)
        return candidate

    def _next_number(self) -> int:
        """Of earlier sessions some may be missing: those that were going on when the process was killed."""
        return 1 + max((c.number for c in self.candidates), default=-1)

    def _drawn(self, among: Sequence[str] = ()) -> Candidate:
        rng = generator(self.seed, "fit", self._next_number())
        methods = [m for m in self.portfolio.algorithms if self.best_of(m) is not None and m in (among or [m])]
        methods = methods or [*self.portfolio.algorithms]
        ahead = sorted(methods, key=lambda m: -getattr(self.best_of(m), "score", -np.inf))[:3]
        pool: Sequence[str] = ahead if rng.random() < 0.5 else methods
        method = pool[int(rng.integers(len(pool)))]
        best = self.best_of(method)
        near = best.settings if best is not None and rng.random() < 0.5 else None
        return self._new(method, self.portfolio.draw(method, near, self.local, rng))

    # --- the end -----------------------------------------------------------------------------------------------

    def cost(self, attempt: Attempt) -> float:
        """Seconds that an attempt may take, from what its method, or else any, took before; NaN where none did."""
        per_round = attempt.candidate.seconds_per_round()
        if math.isnan(per_round):
            alike = [
                c.seconds_per_round() for c in self.candidates if c.method == attempt.candidate.method and c.outcomes
            ]
            # The first training of all also loads what all need, which says nothing of the next.
            known = alike or [c.seconds_per_round() for c in self.candidates[1:] if c.outcomes and not c.failed]
            per_round = max(known, default=np.nan) if not alike else float(np.median(alike))
        return MARGIN * per_round * (attempt.rounds - attempt.candidate.rounds)

    def _too_long(self, attempt: Attempt, left: float) -> bool:
        cost = self.cost(attempt)
        return not math.isnan(cost) and cost > left

    def _important(self) -> list[Candidate]:
        """Who is to be trained to the end, most important first."""
        chosen = [self.leader, *(self.best_of(name) for name in REFERENCES)]
        rest = sorted((c for c in self.candidates if np.isfinite(c.score)), key=lambda c: (-c.score, c.number))
        found = [c for c in chosen if c is not None]
        return list({c.number: c for c in [*found, *rest[:3]]}.values())

    def _must_close(self, left: float) -> bool:
        """Whether the time that is left is only just enough for those who have to be trained to the end."""
        going = [Attempt(c, self.rungs[-1]) for c in self._important()[: 1 + len(REFERENCES)]]
        needed = together([self.cost(a) for a in going if a.candidate.rounds < a.rounds], self.at_once)
        known = [c.outcomes[self.rungs[0]].seconds for c in self.candidates if self.rungs[0] in c.outcomes]
        return bool(needed) and left < needed + float(np.median(known)) + SPARE * self._most

    def _quick(self, left: float) -> list[str]:
        """Methods of which there is time for a first, short training."""
        usual: dict[str, list[float]] = {}
        for candidate in self.candidates:
            if self.rungs[0] in candidate.outcomes and not candidate.failed:
                usual.setdefault(candidate.method, []).append(candidate.outcomes[self.rungs[0]].seconds)
        return [method for method, seconds in usual.items() if MARGIN * float(np.median(seconds)) < left]

    def _closing(self, left: float) -> Attempt | None:
        """The longest training for the most important one that there is time for."""
        for candidate in self._important():
            if candidate.failed or candidate.number in self._going_on:
                continue
            for rounds in reversed(self.rungs):
                attempt = Attempt(candidate, rounds)
                if rounds > candidate.rounds and not self._too_long(attempt, left):
                    return attempt
        return None
