"""What evaluations leave in a run folder.

While a run goes on, the clients' rows of each evaluation are a file of their own in clients.parts, beside an index with
the checksums of an evaluation's files; at the end they become clients.parquet, a row group each. What the algorithm
reports about the federation is in evaluations/.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from personafl.files import checksum, make_folder, write_atomically, write_tensors
from personafl.storage.json_lines import JsonLines

if TYPE_CHECKING:
    from personafl.states import State


class EvaluationFiles:
    """The files of the evaluations of one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts, self.merged, self.server = path / "clients.parts", path / "clients.parquet", path / "evaluations"
        self._index = JsonLines(self.parts / "index.jsonl")

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
            return pa.concat_tables([pq.read_table(part) for part in parts])
        return pq.read_table(self.merged) if self.merged.exists() else None

    # --- the end of a run ------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Make clients.parquet of the parts, which stay."""
        parts = self._files()

        def write(to: Path) -> None:
            with pq.ParquetWriter(to, pq.read_schema(parts[0])) as writer:
                for part in parts:
                    file = pq.ParquetFile(part)
                    for group in range(file.num_row_groups):
                        writer.write_table(file.read_row_group(group))

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
        self._index = JsonLines(self._index.path)

    # --- going on --------------------------------------------------------------------------------------------

    def noted(self) -> int:
        """How many evaluations there are, when their files and the index are safe on the disk."""
        self._index.extent()
        return len(self._index)

    def check(self, round: int, count: int) -> None:
        """Raise a ValueError where there are not so many evaluations up to a round, all of them whole."""
        try:
            found = self._whole(round) if self.parts.exists() else self._merged_count(round)
        except pa.ArrowException as error:
            raise ValueError(f"{self.merged} cannot be read: {error}") from error
        if found != count:
            where = self.merged if self.merged.exists() and not self.parts.exists() else self.parts
            raise ValueError(f"{where} has {found} evaluations up to round {round}, {count} were made")

    def rewind(self, round: int) -> None:
        """Forget what was written after a round."""
        if self.merged.exists() and not self.parts.exists():
            self._split()
        for folder in (self.parts, self.server):
            for path in folder.glob("round-*"):
                if int(path.name[6:12]) > round or path.suffix == ".partial":
                    path.unlink()
        if self.parts.exists():
            self._index.keep([self._line(int(part.name[6:12])) for part in self._files()])

    def _whole(self, round: int) -> int:
        lines = [line for line in self._index.records() if line["round"] <= round]
        for name, known in ((name, known) for line in lines for name, known in line["files"].items()):
            if not (self.path / name).is_file() or checksum(self.path / name) != known:
                raise ValueError(f"{self.path / name} is damaged or missing")
        return len(lines)

    def _merged_count(self, round: int) -> int:
        if not self.merged.exists():
            return 0
        file = pq.ParquetFile(self.merged)
        groups = (file.read_row_group(group, ["round"]) for group in range(file.num_row_groups))
        return sum(table.column("round")[0].as_py() <= round for table in groups)

    def _split(self) -> None:
        """Undo `merge`: each row group is an evaluation."""
        file = pq.ParquetFile(self.merged)
        partial = self.parts.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(0o700)
        lines = []
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            round = table.column("round")[0].as_py()
            write_atomically(partial / _rows(round), functools.partial(pq.write_table, table))
            lines.append(self._line(round, partial))
        JsonLines(partial / self._index.path.name).keep(lines)
        partial.rename(self.parts)

    def _line(self, round: int, parts: Path | None = None) -> dict[str, Any]:
        """An evaluation's line of the index; `parts` says where its rows are until they come to their place."""
        files = {f"{self.parts.name}/{_rows(round)}": checksum((parts or self.parts) / _rows(round))}
        server = self.server / f"round-{round:06d}.safetensors"
        if server.exists():
            files[f"{self.server.name}/{server.name}"] = checksum(server)
        return {"round": round, "files": files}

    def _files(self) -> list[Path]:
        return sorted(self.parts.glob("round-*.parquet"))


def _rows(round: int) -> str:
    return f"round-{round:06d}.parquet"
