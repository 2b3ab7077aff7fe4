"""Checkpoints: complete, atomic, checked. A damaged one is noticed and the one before it is used.

A checkpoint is `round-000050.safetensors` with the server's tensors, files `clients-….safetensors` with the rows of the
clients, which checkpoints may share (see `client_log.py`), and `round-000050.json`, written last, with the checksums of
these, of rounds.jsonl up to this round, and the plain values. What timings.jsonl was is in `round-000050.timings`,
apart, because times differ from run to run. Nothing is pickled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from personafl.errors import RunError
from personafl.files import checksum, disk_errors, make_folder, write_tensors, write_text
from personafl.states import State
from personafl.storage.client_log import ClientLog, Ids, file_name
from personafl.storage.reading import existing, read_json, read_tensors
from personafl.storage.schemas import CheckpointRecord, Extent

log = logging.getLogger("personafl")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round.

    `clients` are the files with clients' rows, by the round that wrote them; `files` and `timings` what the run
    folder's other files were (`RunFolder.extents`), empty in runs of earlier versions.
    """

    round: int
    tensors: State
    values: dict[str, Any]
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)


def save(
    folder: Path,
    checkpoint: Checkpoint,
    log: ClientLog | None = None,
    rows: Callable[[Ids], State] = lambda ids: {},
) -> None:
    """Write a checkpoint, with the `rows` of the clients that changed according to the log; then `prune`."""
    make_folder(folder)
    if log is not None:
        log.write(folder, checkpoint.round, rows)
    stem = f"round-{checkpoint.round:06d}"
    data = folder / f"{stem}.safetensors"
    write_tensors(data, checkpoint.tensors)
    record = {
        "round": checkpoint.round,
        "sha256": checksum(data),
        "bytes": data.stat().st_size,
        "values": checkpoint.values,
        "clients": {} if log is None else log.files,
        "files": checkpoint.files,
    }
    if checkpoint.files:
        write_text(folder / f"{stem}.timings", json.dumps(checkpoint.timings))
    write_text(folder / f"{stem}.json", json.dumps(record, indent=1))
    prune(folder, checkpoint.round)


def server_state(found: Checkpoint, theta0: Tensor, like: State) -> State:
    """What the server keeps, if it has all of `like`, with its types and shapes.

    What begins with no row or with one may have more: CFL's list of clusters grows.
    """
    wanted = {"theta0": theta0, **{f"server.{name}": value for name, value in like.items()}}
    for name, want in wanted.items():
        have = found.tensors.get(name)
        if have is None or have.dtype != want.dtype or not _grown(have.shape, want.shape):
            raise RunError(
                f"the checkpoint of round {found.round} is of another model or algorithm: its {name} is "
                f"{'missing' if have is None else _described(have)}, expected {_described(want)}"
            )
    server = {name: value for name, value in found.tensors.items() if name.startswith("server.")}
    return {name.removeprefix("server."): value for name, value in server.items()}


def _grown(have: torch.Size, want: torch.Size) -> bool:
    more = len(have) == len(want) > 0 and want[0] <= 1 and have[0] >= want[0]
    return have[1:] == want[1:] if more else have == want


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def prune(folder: Path, round: int) -> None:
    """Remove all but a round's checkpoint and the newest before it, and what these share.

    Later ones are damaged, or the run would have gone on from them.
    """
    records = sorted(path for path in folder.glob("round-*.json") if path.stem <= f"round-{round:06d}")[-2:]
    kept = {path.stem for path in records} | {name.partition(".")[0] for path in records for name in _shared(path)}
    for path in (*sorted(folder.glob("round-*")), *sorted(folder.glob("clients-*"))):  # a .json goes before its data
        if path.name.partition(".")[0] in kept and path.suffix != ".partial":
            continue
        with disk_errors(path, "removing"):
            if path.is_dir():  # not ours: it may be somebody's
                path.rename(path.with_name(f"damaged-{path.name}"))
            else:
                path.unlink(missing_ok=True)


def _shared(record: Path) -> list[str]:
    """The files of clients' rows that a record names; none where it is damaged."""
    try:
        return [file_name(int(round)) for round in read_json(record, CheckpointRecord)["clients"]]
    except (OSError, RunError):
        return []


def latest(
    folder: Path, clients: bool = True, check: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None. Damaged ones are passed over with a warning.

    Without `clients`, the rows of the clients are not looked at. `check` raises a ValueError for one that is of no use.
    """
    for path in sorted(folder.glob("round-*.json"), reverse=True):
        try:
            found = _read(path, clients)
            check(found)
            return found
        except (OSError, ValueError, RunError) as error:
            log.warning("checkpoint %s is damaged (%s): using the one before it", path.name, error)
    return None


def _read(path: Path, clients: bool) -> Checkpoint:
    record = read_json(path, CheckpointRecord)
    data = path.with_suffix(".safetensors")
    _verify(data, record)
    shared = {int(round): dict(known) for round, known in record["clients"].items()} if clients else {}
    for round, known in shared.items():
        _verify(path.parent / file_name(round), known)
    files = dict(record.get("files", {}))
    timings = read_json(path.with_suffix(".timings"), Extent) if files and clients else {}
    return Checkpoint(record["round"], read_tensors(data), record["values"], shared, files, timings)


def _verify(data: Path, known: dict[str, Any]) -> None:
    if existing(data).stat().st_size != known["bytes"]:
        raise ValueError(f"{data.name} has {data.stat().st_size} bytes, expected {known['bytes']}")
    if checksum(data) != known["sha256"]:
        raise ValueError(f"{data.name} does not match its checksum")
