"""What a site has answered, over all runs: a line for each answer, on its disk before the answer leaves.

`ledger.jsonl` is only ever appended to. Each line has a digest of itself and of all lines before it, and `ledger.head`
says how many there are and what the last digest is. A line that was changed, taken out or cut off is noticed: a site
then refuses to answer rather than forget what it has given away.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from personafl.errors import ConfigError, RunError
from personafl.files import disk_errors, make_folder, write_atomically
from personafl.training.accounting import composed_epsilon

try:
    import fcntl
except ImportError:  # no such lock on Windows
    fcntl = None  # type: ignore[assignment]

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
    """

    run: str
    round: int
    what: What
    algorithm: str
    clip: float | None = None
    noise: float = 0.0
    delta: float | None = None
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
        self.path, self.head = folder / "ledger.jsonl", folder / "ledger.head"
        self._client = client

    def entries(self) -> list[Entry]:
        """All answers so far; a RunError where they cannot be trusted."""
        if not self.path.exists() and not self.head.exists():
            return []
        with self._locked(os.O_RDONLY) as file:
            return self._read(file)[0]

    def add(self, entry: Entry, check: Callable[[Sequence[Entry]], None] = lambda entries: None) -> None:
        """Write an answer down, unless `check` raises for the answers so far. No other process comes in between."""
        make_folder(self.path.parent)
        with self._locked(os.O_RDWR | (0 if self.head.exists() else os.O_CREAT)) as file:
            entries, last, end = self._read(file)
            check(entries)
            text, digest = _line(entry, last)
            with disk_errors(self.path, "writing"):
                os.ftruncate(file, end)  # what a power cut has left of a line: its answer did not leave
                os.lseek(file, end, os.SEEK_SET)
                try:
                    if os.write(file, text) < len(text):
                        raise OSError(errno.ENOSPC, "")
                    os.fsync(file)
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(file, end)
                    raise
            _write_head(self.head, len(entries) + 1, digest)

    @contextmanager
    def _locked(self, flags: int) -> Iterator[int]:
        try:
            handle = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            raise self._bad(f"{self.path.name} is gone") from None
        except OSError as error:
            raise self._bad(f"{self.path.name}: {error.strerror}") from None
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _read(self, handle: int) -> tuple[list[Entry], str, int]:
        """The entries, the last digest, and where the next line begins."""
        with os.fdopen(os.dup(handle), "rb") as file:
            file.seek(0)
            data = file.read()
        lines = data.split(b"\n")[:-1]
        entries, digests = [], [""]
        for number, line in enumerate(lines, 1):
            try:
                said: dict[str, Any] = json.loads(line)
                digest = said.pop("digest")
                entry = Entry(**said)
                same = _line(entry, digests[-1]) == (line + b"\n", digest)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                same = False
            if not same:
                raise self._bad(f"line {number} of {self.path.name} is not as it was written")
            entries.append(entry)
            digests.append(digest)
        count, last = self._expected()
        # The head is written after the line: a crash may have come in between, once.
        if not count <= len(lines) <= count + 1 or digests[count] != last:
            raise self._bad(f"{self.path.name} has {len(lines)} lines, {self.head.name} knows of {count}")
        return entries, digests[-1], sum(map(len, lines)) + len(lines)

    def _expected(self) -> tuple[int, str]:
        try:
            said = json.loads(self.head.read_text(encoding="utf-8"))
            return int(said["lines"]), str(said["digest"])
        except FileNotFoundError:
            return 0, ""
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._bad(f"{self.head.name} cannot be read: {type(error).__name__}") from None

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


def _line(entry: Entry, last: str) -> tuple[bytes, str]:
    """The line of an entry after the one with the digest `last`, and its own digest."""
    said = asdict(entry)
    digest = sha256((last + json.dumps(said, sort_keys=True)).encode()).hexdigest()[:32]
    return (json.dumps({**said, "digest": digest}, sort_keys=True) + "\n").encode(), digest


def _write_head(path: Path, lines: int, digest: str) -> None:
    def write(to: Path) -> None:
        with open(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"lines": lines, "digest": digest}, file)

    write_atomically(path, write)
