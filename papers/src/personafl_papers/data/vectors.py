"""Word vectors that were trained elsewhere: GloVe's files (Pennington et al. 2014), of which a few words are kept."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.data.fetch import Remote, fetch
from personafl.data.readers import data_dirs, missing
from personafl.errors import DataError
from personafl.federation.npz import read_npz
from personafl_papers.data.text import lines, opened

GLOVE = Remote(
    "glove.6B.zip",
    "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
    "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    862.2,
)
SIZES = (300, 200, 100, 50)
"""How long GloVe's vectors come, the longest first."""

Table = NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """A file of word vectors: GloVe's text, plain or gzip or a member of a zip, or an .npz with `words` and `vec`."""

    file: Path
    member: str | None = None

    def read(self, words: Sequence[str]) -> tuple[list[int], Table]:
        """The positions of the words that have a vector, ascending, and their vectors (K, d) in that order."""
        wanted = {word.encode(): position for position, word in enumerate(words)}
        pairs = self._npz(wanted) if self.file.suffix == ".npz" else self._text(wanted)
        found: dict[int, Table] = {}
        for position, vector in pairs:
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused below
                found.setdefault(position, vector.astype(np.float32))
        if not found:
            raise DataError(f"{self.file} has no vector for any of the {len(words)} words of the data")
        positions = sorted(found)
        table = np.stack([found[position] for position in positions])
        if (wrong := np.flatnonzero(~np.isfinite(table).all(axis=1))).size:
            word = words[positions[wrong[0]]]
            raise DataError(f"{self.file}: the vector of {word!r} has values that are not finite; get the file again")
        return positions, table

    def _text(self, wanted: dict[bytes, int]) -> Iterator[tuple[int, NDArray[Any]]]:
        where = f"{self.file}: {self.member}" if self.member else str(self.file)
        named = re.search(r"\.(\d+)d\.txt", self.member or self.file.name)
        size = int(named[1]) if named else None
        with opened(self.file, self.member) as stream:
            for number, line in enumerate(lines(stream, where), start=1):
                # Counting is much faster than splitting, and most lines are not wanted.
                values = line.rstrip(b"\n").count(b" ")
                size = values if size is None else size
                if values != size or size == 0:
                    raise DataError(f"{where}: line {number} has {values} values, expected {size or 'a word and some'}")
                word, _, rest = line.partition(b" ")
                if (position := wanted.get(word)) is not None:
                    try:
                        vector = np.array([float(value) for value in rest.split(b" ")])
                    except ValueError as error:
                        raise DataError(f"{where}: line {number}: {error}") from error
                    yield position, vector

    def _npz(self, wanted: dict[bytes, int]) -> Iterator[tuple[int, NDArray[Any]]]:
        joined = read_npz(self.file, {"words": ()}, kinds="S")["words"]
        vectors = read_npz(self.file, {"vec": (None, None)}, kinds="f")["vec"]
        held = joined.item().split(b"\n")
        if len(held) != len(vectors):
            raise DataError(f"{self.file} has {len(held)} words and {len(vectors)} vectors; they must be as many")
        for row, word in enumerate(held):
            if (position := wanted.get(word)) is not None:
                yield position, vectors[row]


def find_vectors(name: str, source: str) -> Vectors:
    """Word vectors by the name of their file, or "auto": the longest of GloVe that are there, or else downloaded.

    Parameters
    ----------
    name
        "auto", or a file of a data directory. "glove.6B.300d.txt" is also found as glove.6B.300d.txt.gz, inside
        glove.6B.zip, and as glove6B_300d.npz.
    source
        The data source that wants them, for messages.
    """
    names = [f"glove.6B.{size}d.txt" for size in SIZES] if name == "auto" else [name]
    for wanted in names:
        for folder in data_dirs():
            for candidate in _candidates(folder, wanted):
                if candidate.file.is_file() and _holds(candidate):
                    return candidate
    asked = f"glove, the word vectors of {source},"
    if not re.fullmatch(r"glove\.6B\.(50|100|200|300)d\.txt", names[0]):
        raise missing(f"{source}: vectors = {name!r}", f"{name}, or leave vectors out for GloVe's,")
    [file] = fetch(asked, [GLOVE], f"{names[0]}, with or without .gz, or {GLOVE.file}")
    return Vectors(file, names[0])


def _candidates(folder: Path, name: str) -> Iterator[Vectors]:
    yield Vectors(folder / name)
    yield Vectors(folder / f"{name}.gz")
    if glove := re.fullmatch(r"glove\.6B\.(\d+)d\.txt", name):
        yield Vectors(folder / f"glove6B_{glove[1]}d.npz")
        yield Vectors(folder / GLOVE.file, name)


def _holds(vectors: Vectors) -> bool:
    if vectors.member is None:
        return True
    try:
        with zipfile.ZipFile(vectors.file) as archive:
            return vectors.member in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read {vectors.file}: {error}; get the file again") from error
