"""The fastest of some candidates, found by trials that cost little: small ones first, and never more than a budget.

A trial is a few steps of a few clients. Each candidate begins with one step of one client and goes on to four times as
many clients while it may still win. A step of k clients takes about a + b k seconds, so two trials say what it takes
with all of them; who is then clearly behind is stopped. When the budget of processor time is spent, what is known
decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

BEHIND = 1.5
"""Who takes this many times as long as the fastest is stopped: it is more than the noise of a busy machine."""
SHARE, MOST, FEW_STEPS = 0.05, 2.0, 40
"""The budget of processor time: this share of the run, but never more than so many seconds. Where a client's step is so
slow that nothing could be seen in that time, never more than so many steps."""
GROWTH, LAST_STEPS = 4, 3
"""A trial has so many times the clients of the one before; the last one has all clients and several steps."""
REPEATS, LITTLE = 10, 0.02
"""A trial is repeated, and the fastest time counts, while all of it takes less than this share of the budget."""
EQUAL, MANY = 1.1, 16
"""Where nobody takes this many times as long as the fastest, with so many clients, no more is to be found out."""
UNKNOWN = 3.0
"""What has not been tried is taken to cost this many times as much as what has, for each of its threads."""

Check = Callable[[], None]
Run = Callable[[int, int, Check], None]
"""Takes (clients, steps, check), and calls the check before each step; it may raise `Stopped`."""


class Stopped(Exception):
    """A trial must not go on."""


class Unfit(Exception):
    """A candidate cannot do the work at all; the text says why."""


@dataclass(frozen=True)
class Clock:
    """People wait by the first, the budget counts by the second, with all threads of this process.

    A candidate of one thread is timed by the second too, which is the first on a machine that has nothing else to do;
    unless it `waits` for a device.
    """

    wall: Callable[[], float] = time.perf_counter
    processor: Callable[[], float] = time.process_time
    waits: bool = False

    def of(self, threads: int) -> Callable[[], float]:
        """What a candidate with so many threads is timed by."""
        return self.processor if threads == 1 and not self.waits else self.wall


@dataclass(eq=False)
class Candidate:
    """An engine with a number of threads, and what was seen of it."""

    name: str
    threads: int
    run: Run
    prepare: Callable[[], object] = object
    """What comes before its first step, or raises `Unfit`: not timed, but it counts for the budget."""
    preparation: Callable[[float], float] = lambda gradient: 0.0
    """Processor seconds that this may take, where one client's step takes so many."""
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds by (clients, steps)."""
    cost: float = 0.0
    """Processor seconds of one client's step, in the last trial."""
    stopped: str = ""

    def __str__(self) -> str:
        return f"{self.name} with {self.threads} threads"

    def least(self, clients: int) -> float:
        """Seconds that a step of this many clients takes; where only one number of clients was tried, at least."""
        return self._step(clients, 0.0)

    def most(self, clients: int) -> float:
        """Seconds that a step of this many clients takes; where only one number of clients was tried, at most."""
        return self._step(clients, 1.0)

    def _step(self, clients: int, slope: float) -> float:
        points = {k: seconds / steps for (k, steps), seconds in self.seen.items()}
        *_, last = points
        each = slope * points[last] / last
        if len(points) > 1:
            before = [*points][-2]
            each = min(max((points[last] - points[before]) / (last - before), 0.0), points[last] / last)
        return points[last] + each * (clients - last)

    def outcome(self) -> str:
        """What was seen last, and why no more."""
        if not self.seen:
            return f"{self}: {self.stopped or 'not tried'}"
        (clients, steps), seconds = [*self.seen.items()][-1]
        size = f"{clients} client{'s' * (clients > 1)}, {steps} step{'s' * (steps > 1)}"
        return f"{self}: {size} in {1e3 * seconds:.1f} ms" + (f", {self.stopped}" if self.stopped else "")


class Trials:
    """Tries candidates and finds the fastest.

    Parameters
    ----------
    candidates : iterable of Candidate
        The first is tried first, and taken where nothing else is known.
    clients
        How many clients there are to try with.
    run_steps
        Steps that all clients take together in the run, of which the trials may cost `SHARE`; 0 where nobody knows.
    clock : Clock, optional
        Another way to tell the time.
    estimate
        Processor seconds of a client's step, as long as none was seen.

    Attributes
    ----------
    whole : bool
        Whether there was budget for all that was to be seen.
    disturbed : bool
        Whether this process had to wait for others, so that another time may give another choice.

    Examples
    --------
    >>> now = [0.0]
    >>> def taking(fixed, each):
    ...     def run(clients, steps, check):
    ...         for _ in range(steps):
    ...             check()
    ...             now[0] += fixed + each * clients
    ...
    ...     return run
    >>> loop, stacked = Candidate("loop", 1, taking(0.0, 0.01)), Candidate("stacked", 1, taking(0.02, 0.0005))
    >>> trials = Trials([loop, stacked], clients=30, run_steps=0, clock=Clock(lambda: now[0], lambda: now[0]))
    >>> str(trials.fastest())
    'stacked with 1 threads'
    >>> trials.reason()
    'loop with 1 threads: 4 clients, 1 step in 40.0 ms, clearly behind; stacked with 1 threads: 4 clients, ...'
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        clients: int,
        run_steps: float,
        clock: Clock | None = None,
        estimate: float = 0.0,
    ) -> None:
        self.candidates, self.clients, self.run_steps = list(candidates), clients, run_steps
        self._clock, self.estimate = clock or Clock(), estimate
        self._begun = self._clock.processor()
        self._waited, self._worked, self._prepared = 0.0, 0.0, 0.0
        self.whole = True

    def fastest(self) -> Candidate:
        """Try the candidates until one is left, nothing more can be learnt, or the budget is spent."""
        for clients, steps in self._sizes():
            self._stop_who_is_behind(clients * steps)
            for candidate in sorted(self.alive, key=self._rank):
                if self.alive == [candidate] and candidate.seen:
                    return candidate
                if candidate.stopped:
                    continue
                if not self._affordable(candidate, clients * steps):
                    self.whole = False
                    if candidate.seen:
                        return self.leader
                    candidate.stopped = "not tried, it might take too long"
                elif not self._try(candidate, clients, steps):
                    self.whole = False
                    return self.leader
                self._stop_who_is_behind(clients * steps)
            if clients >= MANY and all(self._rank(one) <= EQUAL * self._rank(self.leader) for one in self.alive):
                break
        return self.leader

    def _rank(self, candidate: Candidate) -> float:
        return candidate.most(self.clients) if candidate.seen else float("inf")

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Candidate]:
        """The candidates that are still tried."""
        return [candidate for candidate in self.candidates if not candidate.stopped]

    @property
    def leader(self) -> Candidate:
        """Who is the fastest by what is known."""
        seen = [candidate for candidate in self.alive if candidate.seen]
        return min(seen, key=self._rank, default=self.candidates[0])

    @property
    def spent(self) -> float:
        """Processor seconds of all trials so far."""
        return self._clock.processor() - self._begun

    @property
    def budget(self) -> float:
        """Processor seconds that all trials may take, for a run by whoever seems to need the fewest."""
        return min(self._share, max(MOST, FEW_STEPS * self._cost) + self._prepared)

    @property
    def _cost(self) -> float:
        return min((candidate.cost for candidate in self.candidates if candidate.seen), default=self.estimate)

    @property
    def _share(self) -> float:
        return SHARE * self.run_steps * self._cost if self.run_steps else MOST

    @property
    def disturbed(self) -> bool:
        """See the class: by the trials of one thread, which never wait for each other."""
        return self._waited > BEHIND * self._worked

    def reason(self) -> str:
        """What was seen, in one line."""
        seen = "; ".join(candidate.outcome() for candidate in self.candidates)
        return f"{seen}; {self.spent:.2f} s of processor time, of {self.budget:.2f} s at most"

    # --- trials --------------------------------------------------------------------------------------------

    def _sizes(self) -> Iterator[tuple[int, int]]:
        clients = 1
        while clients < self.clients:
            yield clients, 1
            clients *= GROWTH
        yield self.clients, 1
        yield self.clients, LAST_STEPS

    def _affordable(self, candidate: Candidate, steps: int) -> bool:
        if not candidate.seen:
            first = UNKNOWN * candidate.threads * self.leader.cost
            before = candidate.preparation(self.leader.cost)
            # What is prepared serves the whole run, so a long one may wait for it.
            return self.spent + before + first <= (self._share if before else self.budget)
        return self.spent + candidate.cost * steps <= self.budget

    def _try(self, candidate: Candidate, clients: int, steps: int) -> bool:
        """Whether there is budget left."""
        times: list[float] = []
        first = not candidate.seen
        if first and not self._fit(candidate):
            return self.spent <= self.budget
        begun = self.spent
        while len(times) < REPEATS:
            now = self._clock.of(candidate.threads)
            wall, begin, spent = self._clock.wall(), now(), self.spent
            try:
                candidate.run(clients, steps, self._check(candidate, begin, steps))
            except Stopped:
                break
            times.append(now() - begin)
            cost = self.spent - spent
            if candidate.threads == 1:
                self._waited, self._worked = self._waited + self._clock.wall() - wall, self._worked + cost
            candidate.cost = cost / (clients * steps)
            # The very first time, much is prepared that later steps find: it counts only if there is no other.
            candidate.seen[clients, steps] = min(times[1:] if first and len(times) > 1 else times)
            # The first time of a size also takes memory from the system, of which later steps have enough.
            little = LITTLE * self.budget * (REPEATS if len(times) == 1 else 1)
            if self.spent - begun + cost > min(little, self.budget - begun):
                break
        return self.spent <= self.budget

    def _fit(self, candidate: Candidate) -> bool:
        begun = self.spent
        try:
            candidate.prepare()
        except Unfit as why:
            candidate.stopped = str(why)
        self._prepared += self.spent - begun
        return not candidate.stopped

    def _check(self, candidate: Candidate, begun: float, steps: int) -> Check:
        """What is asked before each step: whether this trial is over the budget, or behind beyond doubt."""
        leader, spent, limit, now = self.leader, self.spent, float("inf"), self._clock.of(candidate.threads)
        if candidate.seen and leader is not candidate:
            limit = BEHIND * steps * leader.most(self.clients)

        def check() -> None:
            # What took little may only have waited for its turn on a busy machine.
            if now() - begun > limit and self.spent - spent > LITTLE * self.budget:
                candidate.stopped = "clearly behind"
            if candidate.stopped or self.spent > self.budget:
                raise Stopped

        return check

    def _stop_who_is_behind(self, steps: int) -> None:
        """Those that take too long by all that is known, unless it costs little to see it with one's own eyes."""
        for candidate in self.alive:
            behind = candidate.seen and candidate.least(self.clients) > BEHIND * self.leader.most(self.clients)
            if behind and candidate.cost * steps > LITTLE * self.budget:
                candidate.stopped = "clearly behind"
