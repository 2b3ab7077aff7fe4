"""Processes that a rehearsal starts: with a log each, known down to their grandchildren, and gone when it ends.

A SuperLink starts helpers in sessions of their own, so its session does not hold them all. Every process therefore also
inherits a mark in its environment, by which those that belong together are found (on Linux; elsewhere only the
process group is known).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from personafl.errors import RunError
from personafl.files import private_opener

MARK = "PERSONAFL_PROCESS"
_PROC = Path("/proc")
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Process:
    """A program that runs in the background.

    Parameters
    ----------
    name
        What it is called in messages.
    command : sequence of str
        The program and its arguments.
    log : Path
        Where its output goes, after what is there already.
    environment
        Environment variables besides those of this process.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        self._mark = uuid4().hex
        with open(log, "ab", opener=private_opener) as output:
            self._start = output.tell()
            try:
                self._popen = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment, MARK: self._mark},
                    start_new_session=True,
                    umask=0o077,
                )
            except OSError as error:
                raise RunError(f"{name} cannot be started: {error.strerror}: {error.filename}") from None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._popen.poll()

    def pids(self) -> list[int]:
        """All processes that belong to this one and are alive, those included whose parent is not."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for entry in _PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended in this moment, or is not ours to look into
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                # nginx writes over its environment, other programs leave their session.
                if session == self.pid or mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def output(self) -> str:
        """What this process wrote, without colours; an earlier one with the same log left out."""
        with open(self.log, "rb") as file:
            file.seek(self._start)
            return _COLOURS.sub("", file.read().decode("utf-8", "replace"))

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something holds; a process that ends before is an error that shows its last lines."""
        end = time.monotonic() + seconds
        while not ready():
            if self.code is not None:
                raise self.failed(f"ended with code {self.code} before it {what}")
            if time.monotonic() > end:
                raise self.failed(f"was not seen to have {what} within {seconds:g} seconds")
            time.sleep(0.1)

    def failed(self, how: str) -> RunError:
        """An error with the last lines of the log."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return RunError(f"{self.name} {how}; the end of {self.log}: {' | '.join(lines[-6:]) or 'nothing'}")

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.code is None:
            self._popen.terminate()

    def stop(self, seconds: float = 10.0) -> None:
        """Ask the process to end, and end it and what it started if it has not within some seconds."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started at once, as a power cut would."""
        end = time.monotonic() + 10
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.code is None:
                    os.killpg(self.pid, signal.SIGKILL)
            left = self.pids()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if (not left and self.code is not None) or time.monotonic() > end:
                break
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(5)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def accepts(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports on which processes listen, read from /proc."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for handle in (_PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(handle).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and words[9] in inodes:
                    address, port = words[1].split(":")
                    found.add((_plain(address), int(port, 16)))
    return found


def _plain(address: str) -> str:
    """An address of /proc/net/tcp: words of four bytes, each in the machine's order.

    >>> _plain("0100007F"), _plain("00000000000000000000000000000000")
    ('127.0.0.1', '::')
    """
    packed = b"".join(int(address[k : k + 8], 16).to_bytes(4, sys.byteorder) for k in range(0, len(address), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
