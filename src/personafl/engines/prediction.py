"""What engines will take, from shapes alone: enough to leave out those that need not be timed."""

from __future__ import annotations

from dataclasses import dataclass

SPEED = 2e10
"""Floating-point operations a second of one core in a layer's products; what is decided by it is never close."""
CALL = 2e-4
"""Seconds that a layer takes in the loop whatever its size, forwards and backwards."""
CALL_AT_ONCE = 2.0
"""Times as many for the layer of all clients at once."""
SMALL_PRODUCTS = 1.5
"""Times as long for the products of all clients at once, at the most, as for theirs one after another."""
CERTAIN = 2.0
"""Who is predicted to take this many times as long is not timed."""
SHARED = 2e-3
"""Seconds of arithmetic in a step of all clients from which on several threads may be faster than one."""


WHOLE_CLIENTS = 5e-4
"""Seconds of arithmetic in one client's step from which on each thread takes clients of its own: benchmark jobs with
more took .63 to .70 times as long as on one thread, and as long as with shared layers or less."""


@dataclass(frozen=True)
class Shapes:
    """A step of local training in numbers.

    Attributes
    ----------
    flops : float
        Floating-point operations of one client's step.
    calls : int
        Calls of layers in it.
    clients : int
        Clients of a round.
    fit : int
        How many of them fit in `engine.memory` at once.
    stacks : bool or None
        Whether one pass of the model can do for all clients; None where nobody knows.

    Examples
    --------
    >>> mlp = Shapes(flops=84_000, calls=3, clients=100, fit=10_000, stacks=True)
    >>> mlp.untimed("loop", 1)
    'predicted to take 33 times as long as stacked'
    >>> mlp.untimed("threaded", 2)
    'a step is too short to be shared among threads'
    >>> mlp.untimed("stacked", 1) is None
    True
    >>> cnn = Shapes(flops=39_000_000, calls=12, clients=20, fit=300, stacks=True)
    >>> cnn.untimed("stacked", 1, most=2)
    'threads share clients'
    """

    flops: float
    calls: int
    clients: int
    fit: int
    stacks: bool | None

    @property
    def arithmetic(self) -> float:
        """Seconds of the products in a client's step."""
        return self.flops / SPEED

    @property
    def loop(self) -> float:
        """Seconds of a client's step in the loop."""
        return self.calls * CALL + self.arithmetic

    @property
    def stacked(self) -> float:
        """Seconds of a client's step among those of all clients at once."""
        return self.calls * CALL * CALL_AT_ONCE / self.together + SMALL_PRODUCTS * self.arithmetic

    @property
    def together(self) -> int:
        """Clients that are computed at once."""
        return max(1, min(self.clients, self.fit))

    def untimed(self, engine: str, threads: int, most: int = 1) -> str | None:
        """Why an engine need not be timed, or None where only time can tell; `most` threads are there for clients."""
        if engine != "loop" and self.together == 1:
            return "one client at a time, as the loop does"
        if threads > 1 and self.together * self.arithmetic < SHARED:
            return "a step is too short to be shared among threads"
        if engine != "threaded" and self._whole_clients(most):
            return "threads share clients"
        if engine == "loop" and threads > 1 and self.stacks and self.together > 1:
            return "threads share clients rather than layers"
        if engine == "loop" and self.stacks and self.loop > CERTAIN * self.stacked:
            return f"predicted to take {self.loop / self.stacked:.0f} times as long as stacked"
        return None

    def _whole_clients(self, threads: int) -> bool:
        enough = self.together >= 2 * threads and self.arithmetic >= WHOLE_CLIENTS
        return bool(self.stacks) and threads > 1 and enough

    def best(self, candidates: list[tuple[str, int]]) -> tuple[str, int]:
        """Who is taken of (engine, threads) where there is no time to try: what shares clients among cores, if any."""
        order = ("threaded", "stacked", "loop") if self.stacks else ("loop",)
        found = [one for engine in order for one in candidates if one[0] == engine]
        return found[0] if found else candidates[0]
