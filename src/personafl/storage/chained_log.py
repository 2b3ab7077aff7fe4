"""A file of JSON lines that is only ever appended to, and in which every later change is noticed.

Each line has a digest of itself and of all lines before it, and a file beside it, the head, says how many lines there
are and what the last digest is. A line that was changed, taken out or cut off is found and named. Several processes
may write, one at a time. A site's ledger is such a file, and so are the records of sites and of their operator.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from personafl.errors import RunError
from personafl.files import disk_errors, make_folder, write_atomically

try:
    import fcntl
except ImportError:  # no such lock on Windows
    fcntl = None  # type: ignore[assignment]

TAIL = 2**16
"""Bytes from the end that are looked at first when a line is added."""


class ChainedLog:
    """Lines of a log.

    Parameters
    ----------
    path
        Its file; the head is beside it, with the suffix `.head`.
    bad
        The error for what is wrong with it, from a few words that name file and line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = ChainedLog(Path(folder) / "log.jsonl")
    ...     log.add({"what": "joined"})
    ...     log.add({"what": "trained"})
    ...     _ = log.path.write_text(log.path.read_text().replace("joined", "passed"))
    ...     try:
    ...         log.lines()
    ...     except RunError as error:
    ...         print(str(error).split(":")[0])
    line 1 of log.jsonl is not as it was written
    """

    def __init__(self, path: Path, bad: Callable[[str], RunError] | None = None) -> None:
        self.path, self.head = path, path.with_suffix(".head")
        self._bad = bad or self._damaged

    def lines(self) -> list[dict[str, Any]]:
        """All of it, every line compared with its digest; a RunError where one is not as it was written."""
        if not self.path.exists() and not self.head.exists():
            return []
        with self._locked(os.O_RDONLY) as file:
            return self._read(file)[0]

    def add(self, said: Mapping[str, Any], check: Callable[[list[dict[str, Any]]], None] | None = None) -> None:
        """Write a line down, and have it on the disk.

        Parameters
        ----------
        check
            Gets all lines so far, and raises where this one must not be written: no other process comes in between.
            Without it only the end of the file is read, and compared with the head.
        """
        make_folder(self.path.parent)
        with self._locked(os.O_RDWR | (0 if self.head.exists() else os.O_CREAT)) as file:
            if check is None:
                count, last, end = self._end(file)
            else:
                lines, last, end = self._read(file)
                count = len(lines)
                check(lines)
            text, digest = _line(said, last)
            with disk_errors(self.path, "writing"):
                os.ftruncate(file, end)  # what a power cut has left of a line
                os.lseek(file, end, os.SEEK_SET)
                try:
                    if os.write(file, text) < len(text):
                        raise OSError(errno.ENOSPC, "")
                    os.fsync(file)
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(file, end)
                    raise
            _write_head(self.head, count + 1, digest, end + len(text))

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

    def _read(self, handle: int) -> tuple[list[dict[str, Any]], str, int]:
        """The lines, the last digest, and where the next line begins."""
        with os.fdopen(os.dup(handle), "rb") as file:
            file.seek(0)
            data = file.read()
        lines = data.split(b"\n")[:-1]
        found, digests = [], [""]
        for number, line in enumerate(lines, 1):
            said, digest = _parsed(line)
            if said is None or _line(said, digests[-1]) != (line + b"\n", digest):
                raise self._bad(f"line {number} of {self.path.name} is not as it was written")
            found.append(said)
            digests.append(digest)
        count, last, _ = self._expected()
        # The head is written after the line: a crash may have come in between, once.
        if not count <= len(lines) <= count + 1 or digests[count] != last:
            raise self._bad(f"{self.path.name} has {len(lines)} lines, {self.head.name} knows of {count}")
        return found, digests[-1], sum(map(len, lines)) + len(lines)

    def _end(self, handle: int) -> tuple[int, str, int]:
        """The number of lines, the last digest, and where the next line begins, by the end of the file alone."""
        count, last, length = self._expected()
        size = os.fstat(handle).st_size
        data = os.pread(handle, TAIL, max(0, size - TAIL))
        rest = len(data) - (data.rfind(b"\n") + 1)  # of a line that a power cut has cut short
        before, *end = [b"", *data[: len(data) - rest].split(b"\n")[:-1]][-2:]
        digest = _parsed(end[0])[1] if end else ""
        if digest == last and (count or not end) and length in (size - rest, None):
            return count, last, size - rest
        if end and _parsed(before)[1] == last and bool(count) == bool(before):
            said, digest = _parsed(end[0])  # a crash came between the line and its head
            if said is not None and _line(said, last) == (end[0] + b"\n", digest):
                return count + 1, digest, size - rest
        lines, digest, at = self._read(handle)  # says what is wrong, or that a line is longer than what was looked at
        return len(lines), digest, at

    def _expected(self) -> tuple[int, str, int | None]:
        """The lines, the last digest and the bytes that the head knows of; those of earlier versions have no bytes."""
        try:
            said = json.loads(self.head.read_text(encoding="utf-8"))
            return int(said["lines"]), str(said["digest"]), said.get("bytes")
        except FileNotFoundError:
            return 0, "", 0
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._bad(f"{self.head.name} cannot be read: {type(error).__name__}") from None

    def _damaged(self, why: str) -> RunError:
        return RunError(
            f"{why}: {self.path} was changed or cut after it was written; bring it and {self.head.name} back from a "
            "backup, or move both away to begin anew"
        )


def _parsed(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The record and the digest of a line; None where the line is not one of a log."""
    try:
        said = json.loads(line)
        return said, str(said.pop("digest"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, ""


def _line(said: Mapping[str, Any], last: str) -> tuple[bytes, str]:
    """A line after the one with the digest `last`, and its own digest."""
    digest = sha256((last + json.dumps(said, sort_keys=True)).encode()).hexdigest()[:32]
    return (json.dumps({**said, "digest": digest}, sort_keys=True) + "\n").encode(), digest


def _write_head(path: Path, lines: int, digest: str, length: int) -> None:
    def write(to: Path) -> None:
        with open(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"lines": lines, "digest": digest, "bytes": length}, file)

    write_atomically(path, write)
