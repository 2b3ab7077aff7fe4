"""What a site has answered, over all runs: a line for each answer, on its disk before the answer leaves.

`ledger.jsonl` is a `ChainedLog`: a line that was changed, taken out or cut off is noticed, and the site then refuses to
answer rather than forget what it has given away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from personafl.errors import ConfigError, RunError
from personafl.storage.chained_log import ChainedLog
from personafl.training.accounting import composed_epsilon

What = Literal["update", "nothing", "failed", "metrics"]
"""An answer to training: an update, or none, as the algorithm sends none or it was not finite; one to evaluation."""


@dataclass(frozen=True)
class Entry:
    """One answer of a site.

    Attributes
    ----------
    run, round, algorithm
        What it was an answer to; `run` as `JobDescription.run`.
    clip, noise, delta
        The run's `[privacy]`; None and a noise of 0 without.
    batches
        How many batches of noisy steps were drawn, where the noise is for samples.
    """

    run: str
    round: int
    what: What
    algorithm: str
    clip: float | None = None
    noise: float = 0.0
    delta: float | None = None
    batches: int = 0
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Ledger:
    """The answers of a site.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder), "ann")
    ...     for number in (1, 2):
    ...         ledger.add(Entry("a1", number, "update", "fedavg", 1.0, 8.0, 1e-5))
    ...     len(ledger.entries()), round(spent(ledger.entries(), 1e-5), 2)
    (2, 1.36)
    """

    def __init__(self, folder: Path, client: str) -> None:
        self._client, self._log = client, ChainedLog(folder / "ledger.jsonl", self._bad)
        self.path, self.head = self._log.path, self._log.head

    def entries(self) -> list[Entry]:
        """All answers so far; a RunError where they cannot be trusted."""
        return self._entries(self._log.lines())

    def add(self, entry: Entry, check: Callable[[Sequence[Entry]], None] = lambda entries: None) -> None:
        """Write an answer down, unless `check` raises for the answers so far. No other process comes in between."""
        self._log.add(asdict(entry), lambda lines: check(self._entries(lines)))

    def _entries(self, lines: Sequence[dict[str, Any]]) -> list[Entry]:
        try:
            return [Entry(**said) for said in lines]
        except TypeError:
            raise self._bad(f"{self.path.name} has a line that is no answer") from None

    def _bad(self, why: str) -> RunError:
        return RunError(
            f"site {self._client} cannot trust the ledger of what it has given away: {why}; bring {self.path.name} and "
            f"{self.head.name} back from a backup (to begin anew, and forget what was given away, move both away)"
        )


def spent(entries: Sequence[Entry], delta: float) -> float:
    """The ε of all updates; infinite if one of them had no noise."""
    return composed_epsilon((entry.noise for entry in entries if entry.what == "update"), delta)


def check_budget(client: str, entries: Sequence[Entry], entry: Entry, most: float | None, delta: float) -> None:
    """Refuse an answer after which more would be spent than a site allows."""
    if most is None or entry.what != "update":
        return
    before, after = spent(entries, delta), spent([*entries, entry], delta)
    if not after <= most:
        raise ConfigError(
            f"site {client} allows ε = {most:g} over all runs (most_epsilon, at δ = {delta:g}): its answers so far "
            f"have spent {before:.4g}, and this one with privacy.noise = {entry.noise:g} would make it {after:.4g}"
        )
