"""The run folder: what a run leaves behind, and who may write there.

run.toml            the resolved config, seed, versions, engine, data fingerprint; at the end, checksums of the files
rounds.jsonl        one line per round
timings.jsonl       seconds of each round (apart, because they differ from run to run)
clients.parquet     one row per client per evaluation
evaluations/        what an algorithm reports about the federation at each evaluation
predictions.parquet one row per test sample, at the end: its class and what the models say
checkpoint/         what it takes to go on
models/             global.safetensors and personal.safetensors; others.json and others.safetensors, the clients that
                    personal.safetensors leaves out and the model they share; tables.safetensors, what the data has
                    for the model; frozen.json, hashes of the parameters that were not trained, which it does not hold
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from personafl.errors import RunError
from personafl.files import (
    NO_LINKS,
    checksum,
    disk_errors,
    make_folder,
    write_atomically,
    write_rows,
    write_tensors,
    write_text,
)
from personafl.storage.evaluation_files import EvaluationFiles
from personafl.storage.json_lines import JsonLines
from personafl.storage.reading import existing, read_json, read_table, read_toml
from personafl.storage.schemas import BegunManifest, Manifest, Round, Timing, check_predictions

if TYPE_CHECKING:  # torch, which whoever only looks at a run does not need
    from personafl.states import State

try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked there
    fcntl = None  # type: ignore[assignment]

_MAY_DIFFER = (
    "rounds", "patience", "min_delta", "stopped",
    "eval_every", "eval_clients", "checkpoint_every", "models_mb", "versions", "resolved", "created", "files",
)  # fmt: skip


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.rounds_file = path / "rounds.jsonl"
        self.timings_file = path / "timings.jsonl"
        self.evaluations = EvaluationFiles(path)
        self.clients_file = self.evaluations.merged
        self.models = path / "models"
        self._lines = {
            "rounds.jsonl": JsonLines(self.rounds_file, Round),
            "timings.jsonl": JsonLines(self.timings_file, Timing),
        }
        self._intact: set[tuple[str, int, int]] = set()

    # --- the manifest --------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a run: a run.toml."""
        return (self.path / "run.toml").is_file()

    @property
    def unmerged(self) -> bool:
        """Whether evaluations wait to be merged, as they do until a run ends."""
        return self.evaluations.parts.exists()

    @property
    def complete(self) -> bool:
        """Whether training ended and the models are there, or at the sites that they belong to."""
        made = ("personal.safetensors", "elsewhere.json")
        return any((self.models / name).exists() for name in made) and not self.unmerged

    def manifest(self) -> dict[str, Any]:
        """The contents of run.toml, which has all that a run's has."""
        return self._manifest(Manifest)

    def begun_manifest(self) -> dict[str, Any]:
        """The same, of a run that may have said little of itself: for whoever writes it."""
        return self._manifest(BegunManifest)

    def _manifest(self, kind: type[BegunManifest]) -> dict[str, Any]:
        try:
            return read_toml(self.path / "run.toml", kind)
        except FileNotFoundError:
            raise not_a_run(self.path, "is not a run folder: it has no run.toml") from None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write run.toml."""
        write_text(self.path / "run.toml", tomli_w.dumps(without_none(manifest)))

    def note(self, key: str, table: dict[str, Any]) -> None:
        """Add a table to run.toml."""
        self.write_manifest({**self.begun_manifest(), key: table})

    def check_free(self) -> None:
        """Refuse a folder that holds a run, or anything else."""
        with disk_errors(self.path, "reading"):
            if self.exists:
                raise RunError(
                    f"{self.path} already holds a run: continue it with resume=True (--resume on the command "
                    "line), or name another folder with out (--out)"
                )
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file: name a folder with out (--out)")
            if self.path.exists() and any(
                entry.suffix != ".partial" and entry.name != ".lock" for entry in self.path.iterdir()
            ):
                raise RunError(f"{self.path} is not empty and holds no run: name another folder with out (--out)")

    def create(self, manifest: dict[str, Any]) -> None:
        """Start a new run here."""
        self.check_free()
        make_folder(self.path)
        self.write_manifest(manifest)

    def check_same(self, manifest: dict[str, Any]) -> None:
        """Refuse to continue a run under other settings than it was started with."""
        old, new = flat(self.begun_manifest()), flat(without_none(manifest))
        # A name before its settings: of two algorithms, that they are two is what matters.
        for key in sorted(old.keys() | new.keys(), key=lambda key: (not key.endswith(".name"), key)):
            if key.endswith(".class") and key not in old:  # a run of an earlier version
                continue
            if key.split(".")[0] not in _MAY_DIFFER and old.get(key) != new.get(key):
                raise RunError(
                    f"{self.path} holds another run: its {key} is {old.get(key)!r}, now it is {new.get(key)!r}; "
                    "resume with the same settings, or name another folder with out (--out)"
                )
        task = [key for key in sorted(old.keys() | new.keys()) if key.startswith("resolved.task.")]
        if changed := [key for key in task if "resolved.task.name" in old and old.get(key) != new.get(key)]:
            key = changed[0]
            raise RunError(
                f"{self.path} holds a run of another task: its {key.removeprefix('resolved.')} is {old.get(key)!r}, "
                f"now it is {new.get(key)!r}; resume with the same task, or name another folder with --out"
            )
        same = [("fingerprint", "data"), ("parameters", "model"), ("loss", "loss")]
        if "resolved.frozen_sha256" in old:  # earlier versions do not have it
            same.append(("frozen_sha256", "model's frozen part"))
        for key, what in same:
            if old.get(f"resolved.{key}") != new.get(f"resolved.{key}"):
                raise RunError(f"the {what} is not the same as when {self.path} was started: cannot resume with it")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process at a time may train into a folder."""
        make_folder(self.path)
        self._check_no_links()
        with disk_errors(self.path, "creating"):
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | NO_LINKS, 0o600)
        try:
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"another process is training into {self.path}: wait for it, or use another out (--out)"
                ) from None
            yield
        finally:
            os.close(handle)

    def _check_no_links(self) -> None:
        """Who trains into a folder writes into it and nowhere else: links lead out, and pipes are waited for."""
        with disk_errors(self.path, "reading"):
            for where, folders, files in os.walk(self.path):
                for path in (Path(where) / name for name in (*folders, *files)):
                    if path.is_symlink() or not (path.is_dir() or path.is_file()):
                        kind = "a link" if path.is_symlink() else "no file"
                        raise RunError(f"{path} is {kind}: a run writes into its own folder only; remove it")

    # --- what rounds and evaluations leave -----------------------------------------------------------------

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to rounds.jsonl or timings.jsonl."""
        self._lines[name].append(record)

    def write_predictions(self, table: pa.Table) -> None:
        """Write predictions.parquet."""
        write_atomically(self.path / "predictions.parquet", lambda to: pq.write_table(table, to))

    def write_models(self, name: str, tensors: State, metadata: dict[str, str]) -> None:
        """Write models/`name`.safetensors."""
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

    def write_constants(self, constants: State) -> None:
        """Keep what the model needs besides its parameters, such as word vectors, with the run."""
        if constants:
            self.write_models("tables", constants, {})

    def write_frozen(self, hashes: Mapping[str, str]) -> None:
        """Keep the hash of each parameter that is not trained: the numbers are the user's, and not written."""
        if hashes:
            make_folder(self.models)
            write_text(self.models / "frozen.json", json.dumps(dict(hashes), indent=1) + "\n")

    def frozen(self) -> dict[str, str]:
        """These hashes; nothing where all was trained, and in a run of an earlier version."""
        path = self.models / "frozen.json"
        if not path.exists():
            return {}
        self.check_intact("models/frozen.json")
        return read_json(path, dict[str, str])  # type: ignore[no-any-return]

    # --- the end of a run ------------------------------------------------------------------------------------

    def merge_clients(self) -> None:
        """Make clients.parquet of the evaluations, and note the checksums of all files in run.toml."""
        self.evaluations.merge()
        if self.exists:
            self.write_manifest({**self.begun_manifest(), "files": self.checksums()})
        self.evaluations.remove_parts()

    def checksums(self) -> dict[str, str]:
        """The SHA-256 of what a finished run leaves; times differ from run to run and are left out."""
        named = [self.rounds_file, self.clients_file, self.path / "predictions.parquet", self.evaluations.server]
        named += [path for path in sorted(self.models.glob("*")) if _is_kept(path)]
        return {path.relative_to(self.path).as_posix(): _checksum(path) for path in named if path.exists()}

    def check_intact(self, name: str) -> None:
        """Refuse a file of a finished run that is not what run.toml says; earlier versions say nothing."""
        known = self.begun_manifest().get("files", {}).get(name) if self.exists and not self.unmerged else None
        if known is None:
            return
        path = self.path / name
        with disk_errors(path, "reading"):
            about = path.stat() if path.is_dir() else existing(path).stat()
            seen = (name, about.st_mtime_ns, about.st_size)
            if seen not in self._intact and _checksum(path) != known:
                again = ", or continue the run with resume=True (--resume): models are made again"
                raise RunError(
                    f"{path} is damaged: it does not match its checksum in run.toml; put back a copy of it"
                    f"{again if path.parent == self.models else ''}"
                )
        self._intact.add(seen)

    # --- going on --------------------------------------------------------------------------------------------

    def extents(self) -> dict[str, Any]:
        """What a checkpoint has to know of the other files, when they are safe on the disk."""
        return {"rounds.jsonl": self._lines["rounds.jsonl"].extent(), "evaluations": self.evaluations.noted()}

    def timings_extent(self) -> dict[str, Any]:
        """The same of timings.jsonl, apart, because times differ from run to run."""
        return self._lines["timings.jsonl"].extent()

    def check(self, round: int, files: dict[str, Any], timings: dict[str, Any]) -> None:
        """Raise a ValueError where files that are older than a checkpoint are not what it knows of them."""
        self._lines["rounds.jsonl"].check(files["rounds.jsonl"])
        self._lines["timings.jsonl"].check(timings)
        try:
            for name in (self.clients_file.name, self.evaluations.server.name):
                self.check_intact(name)
        except RunError as error:
            raise ValueError(str(error)) from error
        self.evaluations.check(round, files["evaluations"])

    def rewind(self, round: int, files: dict[str, Any] | None = None, timings: dict[str, Any] | None = None) -> None:
        """Forget what was written after a round (a run continues from there), and after what a checkpoint knows."""
        known = {"rounds.jsonl": (files or {}).get("rounds.jsonl"), "timings.jsonl": timings}
        with disk_errors(self.path, "rewinding"):
            self.evaluations.rewind(round)
            for name, lines in self._lines.items():
                if (extent := known[name]) is not None:
                    lines.cut(extent["bytes"])
                elif lines.path.exists():  # no checkpoint, or one of an earlier version
                    lines.keep([record for record in lines.records() if record["round"] <= round])

    # --- reading -------------------------------------------------------------------------------------------

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl."""
        self.check_intact(self.rounds_file.name)
        return self._lines["rounds.jsonl"].records()

    def timings(self) -> list[dict[str, Any]]:
        """The lines of timings.jsonl."""
        return self._lines["timings.jsonl"].records()

    def clients(self) -> pa.Table:
        """All rows of all evaluations so far."""
        self.check_intact(self.clients_file.name)
        found = self.evaluations.read()
        if found is None:
            raise RunError(f"{self.path} has no evaluation yet")
        return found

    def predictions(self) -> pa.Table | None:
        """What the finished models say about every test sample; None where that is not kept."""
        path = self.path / "predictions.parquet"
        if path.exists():
            self.check_intact(path.name)
        return read_table(path, check_predictions) if path.exists() else None


def _is_kept(path: Path) -> bool:
    """Whether this is a file, and not what a killed process left."""
    return path.is_file() and path.suffix != ".partial" and not path.name.startswith(".")


def _checksum(path: Path) -> str:
    """The SHA-256 of a file, or one for all files of a folder."""
    if not path.is_dir():
        return checksum(path)
    listed = "".join(f"{checksum(file)} {file.name}\n" for file in sorted(path.glob("*")) if _is_kept(file))
    return hashlib.sha256(listed.encode()).hexdigest()


def not_a_run(path: Path, why: str) -> RunError:
    """What is wrong with a folder that has no run.toml."""
    begun = "holds a fit that has not ended: its command with --resume goes on (Python: resume=True)"
    return RunError(f"{path} {begun if (path / 'search.json').is_file() else why}")


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of tables with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """A table as TOML can have it: without what is None, tuples as lists."""
    return {
        key: without_none(value) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else value
        for key, value in table.items()
        if value is not None
    }
