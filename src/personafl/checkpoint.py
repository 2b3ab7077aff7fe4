"""Checkpoints: complete, atomic, checked. A damaged one is noticed and the one before it is used.

A checkpoint is two files: `round-000050.safetensors` with all tensors, and `round-000050.json`, written last, with
the checksum of the first and the plain values. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from personafl.algorithms.base import State
from personafl.files import disk_errors, write_tensors, write_text

log = logging.getLogger("personafl")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    tensors: State
    values: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint, then `prune`."""
    with disk_errors(folder, "creating"):
        folder.mkdir(parents=True, exist_ok=True)
    stem = f"round-{checkpoint.round:06d}"
    data = folder / f"{stem}.safetensors"
    write_tensors(data, checkpoint.tensors)
    record = {
        "round": checkpoint.round,
        "sha256": _checksum(data),
        "bytes": data.stat().st_size,
        "values": checkpoint.values,
    }
    write_text(folder / f"{stem}.json", json.dumps(record, indent=1))
    prune(folder, checkpoint.round, keep)


def prune(folder: Path, round: int, keep: int = 2) -> None:
    """Remove all but a round's checkpoint and the newest before it, `keep` in all.

    Later ones are damaged, or the run would have gone on from them.
    """
    kept = sorted(path.stem for path in folder.glob("round-*.json") if path.stem <= f"round-{round:06d}")[-keep:]
    for path in sorted(folder.glob("round-*")):  # the .json goes before its data
        if path.name.partition(".")[0] not in kept or path.suffix == ".partial":
            path.unlink(missing_ok=True)


def latest(folder: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None. Damaged ones are passed over with a warning."""
    for path in sorted(folder.glob("round-*.json"), reverse=True):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            log.warning("checkpoint %s is damaged (%s): using the one before it", path.name, error)
    return None


def _read(path: Path) -> Checkpoint:
    record = json.loads(path.read_text(encoding="utf-8"))
    data = path.with_suffix(".safetensors")
    if data.stat().st_size != record["bytes"]:
        raise ValueError(f"{data.name} has {data.stat().st_size} bytes, expected {record['bytes']}")
    if _checksum(data) != record["sha256"]:
        raise ValueError(f"{data.name} does not match its checksum")
    return Checkpoint(int(record["round"]), load_file(data), dict(record["values"]))


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
