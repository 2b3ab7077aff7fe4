"""Files of records that grow by a line at a time, and what they must be up to a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from personafl.files import disk_errors, private_opener, sync, write_atomically
from personafl.storage.reading import content, read_lines


class JsonLines:
    """A .jsonl file that this process appends to.

    `kind` is what `schemas` has for a line.

    Its checksum is carried along, so that noting it at a checkpoint costs no more than the lines that are new.
    """

    def __init__(self, path: Path, kind: Any) -> None:
        self.path, self.kind = path, kind
        self._hash: Any = None  # of what the file holds; None: not looked at yet
        self._bytes = self._count = 0
        self._named = False

    def __len__(self) -> int:
        """How many lines there are."""
        self._begin()
        return self._count

    def append(self, record: dict[str, Any]) -> None:
        """Add a line."""
        self._begin()
        line = (json.dumps(record) + "\n").encode()
        with disk_errors(self.path, "writing"), open(self.path, "ab", opener=private_opener) as file:
            file.write(line)
        self._hash.update(line)
        self._bytes += len(line)
        self._count += 1

    def extent(self) -> dict[str, Any]:
        """How long the file is now and its SHA-256, when that is safe on the disk."""
        self._begin()
        with disk_errors(self.path, "writing"):
            if self.path.exists():
                with open(self.path, "rb+") as file:
                    os.fsync(file.fileno())
                if not self._named:  # the file, and its name in the folder
                    sync(self.path.parent)
                    self._named = True
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def check(self, known: dict[str, Any]) -> None:
        """Raise a ValueError where the file does not begin with what was noted."""
        found = self._content()[: known["bytes"]]
        if len(found) < known["bytes"]:
            what = f"has {len(found)} bytes, {known['bytes']} are known" if self.path.exists() else "is missing"
            raise ValueError(f"{self.path} {what}")
        if hashlib.sha256(found).hexdigest() != known["sha256"]:
            raise ValueError(f"{self.path} does not match its checksum")

    def cut(self, size: int) -> None:
        """Drop what comes after so many bytes."""
        found = self._content()
        if len(found) > size:
            write_atomically(self.path, lambda to: _write(to, found[:size]))
        self._hash = None

    def keep(self, records: list[dict[str, Any]]) -> None:
        """Write the file anew, with these records."""
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(self.path, lambda to: _write(to, text.encode()))
        self._hash = None

    def records(self) -> list[dict[str, Any]]:
        """The records; a line cut short by a crash, or still being written, is left out."""
        return read_lines(self.path, self.kind, self._content())

    def _content(self) -> bytes:
        try:
            return content(self.path)
        except FileNotFoundError:
            return b""

    def _begin(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if self._hash is None or size != self._bytes:  # another object may have written to the file
            found = self._content()
            self._hash, self._bytes, self._count = hashlib.sha256(found), len(found), found.count(b"\n")


def _write(to: Path, written: bytes) -> None:
    to.write_bytes(written)
