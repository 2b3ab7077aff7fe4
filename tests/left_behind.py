"""Processes that a test started and did not end: found, named by the test, and ended, even if pytest itself is killed.

Every process inherits a mark in its environment, and the name of the test that started it, which pytest keeps there
(`PYTEST_CURRENT_TEST`). Some write over their environment (nginx), so the children of pytest, and who works in or was
started with its temporary folder, belong to it too. Linux only. As a program this file is the guard, which waits for
pytest's end and ends what is left.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "PERSONAFL_TESTS"
# They serve the whole of pytest, and end with it.
LASTING = ("left_behind.py", "multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Left:
    """A process that is alive, and the test that started it as far as is known."""

    pid: int
    parent: int
    command: str
    folder: str
    mark: str
    test: str

    def __str__(self) -> str:
        return f"{self.test or 'a test of this file'} left process {self.pid} running: {self.command[:200]}"


@dataclass(frozen=True)
class Family:
    """All that a pytest process starts: its mark, its number, and its temporary folder."""

    mark: str
    pytest: int
    folder: str

    def left(self) -> list[Left]:
        """Those that are alive, without those that last as long as pytest."""
        alive = [process for entry in Path("/proc").glob("[0-9]*") if (process := _read(entry))]
        alive = [one for one in alive if one.pid not in (self.pytest, os.getpid())]
        found = {one for one in alive if self._has(one)}
        while more := {one for one in alive if one.parent in {parent.pid for parent in found}} - found:
            found |= more
        lasting = {one for one in found if any(word in one.command for word in LASTING)}
        return sorted(found - lasting, key=lambda one: one.pid)

    def _has(self, one: Left) -> bool:
        inside = (one.folder + "/").startswith(self.folder + "/") or self.folder + "/" in one.command
        return one.mark == self.mark or one.parent == self.pytest or inside

    def ended(self, seconds: float) -> list[Left]:
        """Wait for all to end; those that have not after a while."""
        until = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def end(self, seconds: float = 20.0) -> None:
        """Kill until nothing is left: a process may start another while it is being looked for."""
        until = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < until:
            for one in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, signal.SIGKILL)
            time.sleep(0.05)


def _read(entry: Path) -> Left | None:
    """None for a process that has ended, or that is not ours to look into."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        words = (entry / "environ").read_bytes().split(b"\0")
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        folder = os.readlink(entry / "cwd")
    except OSError:
        return None
    if state in "ZX":
        return None
    kept = dict(word.decode(errors="replace").partition("=")[::2] for word in words)
    test = kept.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    return Left(int(entry.name), int(parent), command, folder, kept.get(MARK, ""), test)


def guard(family: Family) -> None:
    """Wait for pytest's end, however it comes, and end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == family.pytest:
        time.sleep(0.5)
    family.end()


if __name__ == "__main__":
    guard(Family(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
