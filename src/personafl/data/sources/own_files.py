"""Data of your own: a folder with a file a client, a table, or a federation that was saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from personafl.data.base import Structure
from personafl.data.partitions import Partition
from personafl.errors import ConfigError, DataError
from personafl.federation import DEFAULT_SPLITS, Federation
from personafl.federation.folders import FILE, read_folder
from personafl.federation.tabular import Columns, check_normalization, read_rows
from personafl.federation.tabular_files import is_table, open_table

_OF_TABLES = ("label", "client", "features", "categorical", "group", "split")


@dataclass(frozen=True)
class Files:
    """Your own data: a folder with one .npz a client, a table (.csv, .csv.gz, .parquet), or a saved federation.

    See docs/your-data.md. A federation is the same as `Federation.from_folder`, `from_table` and `load` make.

    Parameters
    ----------
    path
        The folder or file; a relative path starts at the working directory.
    label : str, optional
        Of a table: the column of labels. It must be given.
    client : str, optional
        Of a table: the column of client ids. Left out, a partition deals the rows.
    features : str or list of str, optional
        Of a table: the columns of features; left out, all others that hold numbers.
    categorical : list of str
        Of a table: columns of text, each of whose values becomes a feature that is 0 or 1.
    group, split : str, optional
        Of a table: the column of the clients' groups, and the one that says train, val or test.
    normalize
        `standard`: (x − mean)/std, by the mean and standard deviation of all clients' training samples; or `none`.
    """

    name: ClassVar[str] = "files"

    path: str = ""
    label: str | None = None
    client: str | None = None
    features: str | tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    normalize: Literal["none", "standard"] = "none"

    def __post_init__(self) -> None:
        check_normalization(self.normalize)
        if not self.path:
            raise ConfigError("data files: path is missing: name a folder with one .npz a client, or a table")
        if is_table(self.path):
            if self.label is None:
                raise ConfigError(f"data files: label is missing: name the column of {self.path} that holds the labels")
            self._columns()
        elif given := [setting for setting in _OF_TABLES if getattr(self, setting)]:
            raise ConfigError(
                f"data files: {given[0]} = {getattr(self, given[0])!r} is for tables (.csv, .csv.gz, .parquet), and "
                f"path = {self.path!r} is named like a folder"
            )

    @property
    def structure(self) -> Structure:
        """A table's clients may be replaced by a partition, unless the table says what is for training and testing."""
        if not is_table(self.path) or self.split is not None:
            return "own"
        return "pool" if self.client is None else "natural"

    @property
    def splits(self) -> tuple[float, float, float] | None:
        """None where a column decides."""
        return DEFAULT_SPLITS if self.split is None else None

    def federation(self, partition: Partition | None, splits: Sequence[float] | None, seed: int) -> Federation:
        """Read the data, and deal and split what does not come dealt and split."""
        path = Path(self.path).expanduser()
        if is_table(path):
            rows = read_rows([open_table(path)], self._columns())
            shares = splits or getattr(partition, "splits", None) or DEFAULT_SPLITS
            made: Federation = rows.federation(Federation, partition, shares, seed, None, self.name, self.normalize)
            return made
        if not path.is_dir():
            raise DataError(f"data files: there is no folder {path}; a relative path starts at the working directory")
        if (path / FILE).exists():
            divided, federation = True, Federation.load(path)
        else:
            data, groups = read_folder(path)
            divided = isinstance(next(iter(data.values())), Mapping)
            federation = Federation.from_clients(
                data, groups=groups or None, splits=splits or DEFAULT_SPLITS, seed=seed, name=self.name
            )
        if divided and splits is not None:
            raise ConfigError(f"{path} says what is for training and testing: leave out the splits")
        return federation.standardized() if self.normalize == "standard" else federation

    def _columns(self) -> Columns:
        return Columns(self.label or "", self.client, self.features, self.categorical, self.group, self.split)
