"""A search within its budget: asks what to train, has it trained here or elsewhere, and notes what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from personafl.fitting.budget import Clock, now
from personafl.fitting.candidates import Outcome
from personafl.fitting.finalists import MOST, Finalist, finalists
from personafl.fitting.progress import FitProgress
from personafl.fitting.search import FACTOR, MARGIN, Attempt, Search, together
from personafl.fitting.training import Trainer, train_elsewhere, train_on_ray
from personafl.fitting.trials import append_forgotten, append_trial
from personafl.signals import Interrupted, on_stop
from personafl.study.processes import Call, Processes
from personafl.study.ray_calls import RayCalls

RESERVE = 0.06
"""Share of the budget that is kept for the choice, test data and the folder, before it is known what these take."""
AGAIN = 0.4
"""The largest share of the budget that is kept for training the finalists again with the validation data."""
ONCE_MORE = FACTOR / (FACTOR - 1)
"""Rounds of a rung to those above the rung below: training somebody again to what training it further."""
KEPT = 2.0
"""How many times what the last training should take is kept for it: where it takes longer, all of it is left out."""
FORGET_EVERY = 25
"""After so many trainings, those that are not needed any more are deleted."""
CHOICE_SECONDS = 2e-4
"""What the choice takes for a validation sample, generously."""
WITH_VALIDATION = "the finalists again with the validation data"
NO_TIME = f"There was no time to train {WITH_VALIDATION}."
STOPPED = f"Somebody stopped the fit before it trained {WITH_VALIDATION}."


@dataclass
class Running:
    """What a search needs to go on.

    Attributes
    ----------
    folder
        That of the fit.
    launcher
        Where candidates are trained.
    refit
        Whether time is kept for training the finalists again.
    """

    search: Search
    trainer: Trainer
    clock: Clock
    folder: Path
    shown: FitProgress
    launcher: Processes | RayCalls
    refit: bool
    _ended: int = 0

    def searched(self) -> bool:
        """Train candidates until the time is over; True where somebody stopped it before."""
        try:
            with on_stop(), self.launcher:
                going_on = True
                while going_on:  # again where all that were going on had to end before the next could be named
                    going_on = False
                    for attempt, outcome in self.launcher.results(self._attempts()):
                        if outcome is None:
                            continue
                        outcome = replace(outcome, at=round(self.clock.spent, 3))
                        self.search.tell(attempt.candidate, outcome)
                        append_trial(self.folder, attempt.candidate, outcome)
                        self._ended += 1
                        if self._ended % FORGET_EVERY == 0:
                            self._forget()
                        self.shown.ended(self.search.leader)
                        going_on = True
            return False
        except KeyboardInterrupt as stop:
            if self.search.leader is None or _ends_at_once(stop):
                raise
            return True

    def trained_again(self, found: list[Finalist]) -> tuple[list[Finalist], str]:
        """The finalists, trained once more with the validation data; or as they are, and a sentence that says why.

        All of them or none: a comparison of models that have seen more with others that have not would be unfair.
        """
        if not self.trainer.job.federation.sizes("val").any():
            return found, ""
        due = {_key(m): Attempt(m.candidate, m.outcome.rounds, again=True) for m in found}
        if self._seconds_again(list(due.values())) > self._before_the_end(RESERVE / 3):
            return found, NO_TIME
        made: dict[tuple[int, int], Outcome] = {}
        try:
            with on_stop(), self.launcher:
                # Each has the time that is left when it begins, so that all of them end in time.
                calls = (self._call(attempt, self._before_the_end(RESERVE / 3)) for attempt in due.values())
                for attempt, outcome in self.launcher.results(calls):
                    if outcome is None:
                        return found, NO_TIME
                    if outcome.why:
                        what = f"{attempt.candidate.described()}: {outcome.why}"
                        return found, f"It failed to train {WITH_VALIDATION} ({what})."
                    made[attempt.candidate.number, attempt.rounds] = outcome
        except KeyboardInterrupt as stop:
            if _ends_at_once(stop):
                raise
            return found, STOPPED
        return [replace(m, again=made[_key(m)]) for m in found], ""

    def _forget(self) -> None:
        """Delete what was trained and is not needed any more: a search trains hundreds of models for every client."""
        if names := self.search.forget():
            append_forgotten(self.folder, names)
            self.trainer.remove(names)

    def _attempts(self) -> Iterator[Call[Attempt, Outcome | None]]:
        """What to train now, asked for whenever somebody is free."""
        while True:
            left = self._for_attempts()
            attempt = self.search.next(left)
            if attempt is None or left <= 0:
                return
            yield self._call(attempt, left)

    def _call(self, attempt: Attempt, left: float) -> Call[Attempt, Outcome | None]:
        """How a candidate is trained in the seconds that are left."""
        self.shown.tried(attempt, self.search.leader)
        if isinstance(self.launcher, RayCalls):  # another machine has another clock
            return attempt, train_on_ray, (attempt, left)
        if self.launcher.at_once > 1:
            return attempt, train_elsewhere, (attempt, now() + left)
        return attempt, self.trainer.train, (attempt, now() + left)

    def _before_the_end(self, reserve: float = RESERVE) -> float:
        """Seconds that are left without those that the end may take, at least this share of the budget.

        In the end the data goes through every finalist a few times, as an evaluation does, and the choice goes through
        the validation samples a few hundred times.
        """
        samples = int(self.trainer.job.federation.sizes("val").sum())
        shortest = [o.seconds / o.rounds for c in self.search.candidates for o in c.outcomes.values() if not o.why]
        # There are no more finalists than trainings, those of the next one included.
        models = min(len(shortest) + 1, MOST)
        closing = (models * float(np.median(shortest)) if shortest else 0.0) + CHOICE_SECONDS * samples
        return self.clock.left - max(reserve * self.clock.budget, closing)

    def _for_attempts(self) -> float:
        """Seconds that the next attempt may take: those for the last training are kept, unless they are many.

        They may yet be trained as long as can be. In the end it is known that they were not: then they may as well be
        trained as they are, and whoever is tried now as well, once more.
        """
        left = self._before_the_end()
        if not self.refit:
            return left
        ahead = {_key(m): m for m in finalists(self.search.candidates)}
        longest = {m.candidate.number: Attempt(m.candidate, self.search.rungs[-1]) for m in ahead.values()}
        most = self._seconds_again(list(longest.values()))
        if most > AGAIN * self.clock.budget:
            return left
        now = self._seconds_again([Attempt(m.candidate, m.outcome.rounds) for m in ahead.values()])
        return max(left - most, (left - KEPT * now) / (1 + KEPT * ONCE_MORE))

    def _seconds_again(self, attempts: Sequence[Attempt]) -> float:
        """What these trainings may take; with more samples, a training by epochs has more steps."""
        job, more = self.trainer.job, 1.0
        if job.local.epochs is not None:
            train, val = (int(job.federation.sizes(split).sum()) for split in ("train", "val"))
            more = (train + val) / max(train, 1)
        seconds = [MARGIN * more * a.candidate.seconds_per_round() * a.rounds for a in attempts]
        return together(seconds, self.search.at_once)


def _key(model: Finalist) -> tuple[int, int]:
    return model.candidate.number, model.outcome.rounds


def _ends_at_once(stop: KeyboardInterrupt) -> bool:
    """Whether it was another signal than that of Ctrl-C, after which nothing is to be finished."""
    return isinstance(stop, Interrupted) and stop.number != 2
