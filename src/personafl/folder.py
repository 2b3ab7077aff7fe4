"""The run folder: what a run leaves behind, and who may write there.

run.toml            the resolved config, seed, versions, engine, data fingerprint
rounds.jsonl        one line per round
timings.jsonl       seconds of each round (apart, because they differ from run to run)
clients.parquet     one row per client per evaluation
evaluations/        what an algorithm reports about the federation at each evaluation
predictions.parquet one row per test sample, at the end: its class and what the models say
checkpoint/         what it takes to go on
models/             global.safetensors and personal.safetensors; others.json and others.safetensors, the clients that
                    personal.safetensors leaves out and the model they share; tables.safetensors, what the data has
                    for the model
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from personafl.algorithms.base import State
from personafl.errors import RunError
from personafl.files import (
    disk_errors,
    make_folder,
    private_opener,
    write_atomically,
    write_rows,
    write_tensors,
    write_text,
)

try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked there
    fcntl = None  # type: ignore[assignment]

_MAY_DIFFER = (
    "rounds", "eval_every", "eval_clients", "checkpoint_every", "models_mb", "versions", "resolved", "created",
)  # fmt: skip


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.rounds_file = path / "rounds.jsonl"
        self.timings_file = path / "timings.jsonl"
        self.clients_file = path / "clients.parquet"
        self.models = path / "models"
        self._parts = path / "clients.parts"

    # --- the manifest --------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.path / "run.toml").is_file()

    @property
    def unmerged(self) -> bool:
        """Whether evaluations wait to be merged, as they do until a run ends."""
        return self._parts.exists()

    def manifest(self) -> dict[str, Any]:
        """The contents of run.toml."""
        path = self.path / "run.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run folder: it has no run.toml") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_text(self.path / "run.toml", tomli_w.dumps(_without_none(manifest)))

    def check_free(self) -> None:
        """Refuse a folder that holds a run, or anything else."""
        with disk_errors(self.path, "reading"):
            if self.exists:
                raise RunError(
                    f"{self.path} already holds a run: continue it with --resume, or name another folder with --out"
                )
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file: name a folder with --out")
            if self.path.exists() and any(
                entry.suffix != ".partial" and entry.name != ".lock" for entry in self.path.iterdir()
            ):
                raise RunError(f"{self.path} is not empty and holds no run: name another folder with --out")

    def create(self, manifest: dict[str, Any]) -> None:
        """Start a new run here."""
        self.check_free()
        make_folder(self.path)
        self.write_manifest(manifest)

    def check_same(self, manifest: dict[str, Any]) -> None:
        """Refuse to continue a run under other settings than it was started with."""
        old, new = _flat(self.manifest()), _flat(_without_none(manifest))
        for key in sorted(old.keys() | new.keys()):
            if key.split(".")[0] not in _MAY_DIFFER and old.get(key) != new.get(key):
                raise RunError(
                    f"{self.path} holds another run: its {key} is {old.get(key)!r}, now it is {new.get(key)!r}; "
                    "resume with the same settings, or name another folder with --out"
                )
        for key, what in (("fingerprint", "data"), ("parameters", "model"), ("loss", "loss")):
            if old.get(f"resolved.{key}") != new.get(f"resolved.{key}"):
                raise RunError(f"the {what} is not the same as when {self.path} was started: cannot resume with it")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process at a time may train into a folder."""
        make_folder(self.path)
        with disk_errors(self.path, "creating"):
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process is training into {self.path}: wait for it, or use --out") from None
            yield
        finally:
            os.close(handle)

    # --- what rounds and evaluations leave -----------------------------------------------------------------

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to a .jsonl file."""
        path = self.path / name
        with disk_errors(path, "writing"), open(path, "a", encoding="utf-8", opener=private_opener) as file:
            file.write(json.dumps(record) + "\n")

    def write_clients(self, round: int, table: pa.Table) -> None:
        make_folder(self._parts)
        write_atomically(self._parts / f"round-{round:06d}.parquet", lambda to: pq.write_table(table, to))

    def write_evaluation(self, round: int, tensors: State) -> None:
        folder = self.path / "evaluations"
        make_folder(folder)
        write_tensors(folder / f"round-{round:06d}.safetensors", tensors)

    def write_predictions(self, table: pa.Table) -> None:
        write_atomically(self.path / "predictions.parquet", lambda to: pq.write_table(table, to))

    def write_models(self, name: str, tensors: State, metadata: dict[str, str]) -> None:
        make_folder(self.models)
        write_tensors(self.models / f"{name}.safetensors", tensors, metadata)

    def write_personal(self, clients: Sequence[str], parts: Iterable[State]) -> None:
        """Write the personalized models of these clients, which come some at a time."""
        make_folder(self.models)
        path = self.models / "personal.safetensors"
        write_rows(path, len(clients), parts, {"clients": json.dumps(list(clients))})

    def write_others(self, clients: Sequence[str], model: State | None) -> None:
        """Name the clients whose models are not written, and write the one that they share, where they do."""
        make_folder(self.models)
        with disk_errors(self.models, "cleaning"):
            for old in ("others.json", "others.safetensors"):
                (self.models / old).unlink(missing_ok=True)
        if clients and model is not None:
            self.write_models("others", model, {"format": "pt"})
        if clients:
            write_text(self.models / "others.json", json.dumps(list(clients)))

    def write_tables(self, tables: State) -> None:
        """Keep what the model needs besides its parameters, such as word vectors, with the run."""
        if tables:
            self.write_models("tables", tables, {})

    def merge_clients(self) -> None:
        """Make clients.parquet of the evaluations' parts: one row group each."""
        parts = sorted(self._parts.glob("round-*.parquet"))
        if not parts:
            return

        def write(to: Path) -> None:
            with pq.ParquetWriter(to, pq.read_schema(parts[0])) as writer:
                for part in parts:
                    file = pq.ParquetFile(part)
                    for group in range(file.num_row_groups):
                        writer.write_table(file.read_row_group(group))

        write_atomically(self.clients_file, write)
        # Renamed first: a crash in the middle of deleting must not leave half of the parts looking like all of them.
        rest = self._parts.with_suffix(".partial")
        shutil.rmtree(rest, ignore_errors=True)
        self._parts.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)

    def rewind(self, round: int) -> None:
        """Forget what was written after a round (a run continues from there)."""
        with disk_errors(self.path, "rewinding"):
            if self.clients_file.exists() and not self._parts.exists():
                self._split_clients()
            for folder in (self._parts, self.path / "evaluations"):
                for path in folder.glob("round-*"):
                    if int(path.name[6:12]) > round or path.suffix == ".partial":
                        path.unlink()
            for file in (self.rounds_file, self.timings_file):
                kept = [json.dumps(record) + "\n" for record in _json_lines(file) if record["round"] <= round]
                if file.exists():
                    write_text(file, "".join(kept))

    def _split_clients(self) -> None:
        """Undo `merge_clients`: each row group is an evaluation."""
        file = pq.ParquetFile(self.clients_file)
        partial = self._parts.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(0o700)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            round = table.column("round")[0].as_py()
            pq.write_table(table, partial / f"round-{round:06d}.parquet")
        partial.rename(self._parts)

    # --- reading -------------------------------------------------------------------------------------------

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl."""
        return _json_lines(self.rounds_file)

    def timings(self) -> list[dict[str, Any]]:
        """The lines of timings.jsonl."""
        return _json_lines(self.timings_file)

    def clients(self) -> pa.Table:
        """All rows of all evaluations so far."""
        parts = sorted(self._parts.glob("round-*.parquet"))
        if parts:
            return pa.concat_tables([pq.read_table(part) for part in parts])
        if self.clients_file.exists():
            return pq.read_table(self.clients_file)
        raise RunError(f"{self.path} has no evaluation yet")

    def predictions(self) -> pa.Table | None:
        """What the finished models say about every test sample; None where that is not kept."""
        path = self.path / "predictions.parquet"
        return pq.read_table(path) if path.exists() else None


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a .jsonl file; a line cut short by a crash is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else value
        for key, value in table.items()
        if value is not None
    }
