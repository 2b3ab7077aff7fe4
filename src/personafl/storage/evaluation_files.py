"""What evaluations leave in a run folder.

While a run goes on, the clients' rows of each evaluation are a file of their own in clients.parts, beside an index with
the checksums of an evaluation's files; at the end they become clients.parquet, a row group each. What the algorithm
reports about the federation is in evaluations/.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from personafl.errors import RunError
from personafl.files import checksum, make_folder, write_atomically, write_tensors
from personafl.storage.json_lines import JsonLines
from personafl.storage.reading import existing, problems, read_table
from personafl.storage.schemas import Evaluated, check_clients

if TYPE_CHECKING:
    from personafl.states import State


class EvaluationFiles:
    """The files of the evaluations of one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts, self.merged, self.server = path / "clients.parts", path / "clients.parquet", path / "evaluations"
        self._index = JsonLines(self.parts / "index.jsonl", Evaluated)

    def write(self, round: int, table: pa.Table) -> None:
        """Write the rows of an evaluation; what `write_server` has to say of it comes first."""
        make_folder(self.parts)
        write_atomically(self.parts / _rows(round), lambda to: pq.write_table(table, to))
        self._index.append(self._line(round))

    def write_server(self, round: int, tensors: State) -> None:
        """Write what the algorithm reports."""
        make_folder(self.server)
        write_tensors(self.server / f"round-{round:06d}.safetensors", tensors)

    def read(self) -> pa.Table | None:
        """All rows of all evaluations; None where there are none."""
        if parts := self._files():
            tables = [read_table(part, check_clients) for part in parts]
            if wrong := [part for part, table in zip(parts, tables, strict=True) if table.schema != tables[0].schema]:
                raise RunError(f"{wrong[0]} is damaged: its columns are not those of {parts[0].name}")
            return pa.concat_tables(tables)
        return read_table(self.merged, check_clients) if self.merged.exists() else None

    # --- the end of a run ------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Make clients.parquet of the parts, which stay."""
        parts = self._files()

        def write(to: Path) -> None:
            with problems(existing(parts[0])), pq.ParquetWriter(to, pq.read_schema(parts[0])) as writer:
                for part in parts:
                    writer.write_table(read_table(part, check_clients))

        if parts:
            write_atomically(self.merged, write)

    def remove_parts(self) -> None:
        """Forget the parts, which are merged."""
        if not self.parts.exists():
            return
        # Renamed first: a crash in the middle of deleting must not leave half of the parts looking like all of them.
        rest = self.parts.with_suffix(".partial")
        shutil.rmtree(rest, ignore_errors=True)
        self.parts.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)
        self._index = JsonLines(self._index.path, Evaluated)

    # --- going on --------------------------------------------------------------------------------------------

    def noted(self) -> int:
        """How many evaluations there are, when their files and the index are safe on the disk."""
        self._index.extent()
        return len(self._index)

    def check(self, round: int, count: int) -> None:
        """Raise a ValueError where there are not so many evaluations up to a round, all of them whole."""
        try:
            found = self._whole(round) if self.parts.exists() else self._merged_count(round)
        except RunError as error:
            raise ValueError(str(error)) from error
        if found != count:
            where = self.merged if self.merged.exists() and not self.parts.exists() else self.parts
            raise ValueError(f"{where} has {found} evaluations up to round {round}, {count} were made")

    def rewind(self, round: int) -> None:
        """Forget what was written after a round."""
        if self.merged.exists() and not self.parts.exists():
            self._split()
        for folder in (self.parts, self.server):
            for path in folder.glob("round-*"):
                if path.is_file() and (path.suffix == ".partial" or (_round(path) or 0) > round):
                    path.unlink()
        if self.parts.exists():
            self._index.keep([self._line(_round(part) or 0) for part in self._files()])

    def _whole(self, round: int) -> int:
        lines = [line for line in self._index.records() if line["round"] <= round]
        for name, known in ((name, known) for line in lines for name, known in line["files"].items()):
            if not (self.path / name).is_file() or checksum(self.path / name) != known:
                raise ValueError(f"{self.path / name} is damaged or missing")
        return len(lines)

    def _merged_count(self, round: int) -> int:
        if not self.merged.exists():
            return 0
        return sum(found <= round for found, _ in self._evaluations())

    def _evaluations(self) -> Iterator[tuple[int, pa.Table]]:
        """The evaluations of clients.parquet, a row group each, and their rounds."""
        with problems(existing(self.merged)):
            for group in range(pq.read_metadata(self.merged).num_row_groups):
                table = read_table(self.merged, check_clients, group)
                yield table.column("round")[0].as_py(), table

    def _split(self) -> None:
        """Undo `merge`: each row group is an evaluation."""
        partial = self.parts.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(0o700)
        lines = []
        for round, table in self._evaluations():
            write_atomically(partial / _rows(round), functools.partial(pq.write_table, table))
            lines.append(self._line(round, partial))
        JsonLines(partial / self._index.path.name, Evaluated).keep(lines)
        partial.rename(self.parts)

    def _line(self, round: int, parts: Path | None = None) -> dict[str, Any]:
        """An evaluation's line of the index; `parts` says where its rows are until they come to their place."""
        files = {f"{self.parts.name}/{_rows(round)}": checksum((parts or self.parts) / _rows(round))}
        server = self.server / f"round-{round:06d}.safetensors"
        if server.exists():
            files[f"{self.server.name}/{server.name}"] = checksum(server)
        return {"round": round, "files": files}

    def _files(self) -> list[Path]:
        return sorted(part for part in self.parts.glob("round-*.parquet") if _round(part) is not None)


def _round(path: Path) -> int | None:
    """The round of a file, by its name; None for what is not one of ours."""
    found = re.fullmatch(r"round-(\d{6,9})", path.name.partition(".")[0])
    return int(found[1]) if found else None


def _rows(round: int) -> str:
    return f"round-{round:06d}.parquet"
