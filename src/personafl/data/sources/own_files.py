"""Data of your own: a folder with a file a client, a table, or a federation that was saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from personafl.data.base import Structure
from personafl.data.partitions import Partition
from personafl.errors import ConfigError, DataError
from personafl.federation import DEFAULT_SPLITS, Federation
from personafl.federation.folders import FILE
from personafl.federation.labels import LabelType, check_label_type
from personafl.federation.missing import Missing, check_missing
from personafl.federation.other_folders import Format, check_format, read_as
from personafl.federation.splits import Splitting
from personafl.federation.tabular import check_normalization, read_rows
from personafl.federation.tabular_files import Table, is_table, open_table
from personafl.federation.tabular_roles import Columns
from personafl.federation.text_columns import text_features, with_tokens
from personafl.pretrained.huggingface import read_tokenizer

_OF_TABLES = ("label", "client", "features", "categorical", "group", "split", "time", "text")


@dataclass(frozen=True)
class Files:
    """Your own data: a folder with one .npz a client, a table (.csv, .csv.gz, .parquet), or a saved federation.

    See docs/your-data.md. A federation is the same as `Federation.from_folder`, `from_table` and `load` make.

    Parameters
    ----------
    path
        The folder or file; a relative path starts at the working directory.
    format : str, optional
        Of a folder: `npz`, as where it is left out; or that of another library: `pfllib`, `leaf`, `flbench`,
        `flamby`.
    label : str or list of str, optional
        Of a table: the column of labels, or several. It must be given.
    client : str, optional
        Of a table: the column of client ids. Left out, a partition deals the rows.
    features : str, list of str or table, optional
        Of a table: the columns of features; left out, all others that hold numbers. Several inputs are a table:
        {numbers = ["age", "dose"], categories = ["ward"]}.
    text : str, optional
        Of a table: a column of texts, which become the inputs `input_ids` and `attention_mask`.
    tokenizer : str, optional
        The folder of the tokenizer for them; left out, that of the config's backbone.
    categorical : list of str
        Of a table: columns of text, each of whose values becomes a feature that is 0 or 1.
    group, split : str, optional
        Of a table: the column of the clients' groups, and the one that says train, val or test.
    time : str, optional
        Of a table: a column of numbers or dates; each client's last rows by it are for testing, those before them for
        validation.
    label_type
        `classes`, `numbers` (targets of a regression), `multilabel` (labels of 0 and 1, several a sample), or by what
        is there: `auto`, as where it is left out.
    missing
        `error`, as where it is left out; or `fill`: missing numbers by the median and categories by the mode of the
        training samples, with a feature 0 or 1 for each column that has gaps; or `fill-all`: for every
        column.
    length : int, optional
        What samples of unequal length are padded to; left out, the longest.
    normalize
        `standard`: (x − mean)/std, by the mean and standard deviation of all clients' training samples; or `none`.
    """

    name: ClassVar[str] = "files"

    path: str = ""
    label: str | tuple[str, ...] | None = None
    client: str | None = None
    features: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None = None
    categorical: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    time: str | None = None
    # None, so that run.toml says nothing of them where a config does not: runs of earlier versions can be resumed.
    label_type: LabelType | None = None
    missing: Missing | None = None
    length: int | None = None
    normalize: Literal["none", "standard"] = "none"
    text: str | None = None
    tokenizer: str | None = None
    format: Format | None = None

    def __post_init__(self) -> None:
        check_normalization(self.normalize)
        check_label_type(self.label_type or "auto")
        check_missing(self.missing or "error")
        check_format(self.format or "npz")
        if not self.path:
            raise ConfigError("data files: path is missing: name a folder with one .npz a client, or a table")
        if is_table(self.path):
            if self.format is not None:
                raise ConfigError(f"data files: format = {self.format!r} is for folders, and {self.path} is a table")
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

    def federation(
        self, partition: Partition | None, splits: Sequence[float] | None, seed: int, splitting: Splitting = "random"
    ) -> Federation:
        """Read the data, and deal and split what does not come dealt and split."""
        path = Path(self.path).expanduser()
        if is_table(path):
            rows = read_rows([self._table(path)], self._columns())
            shares = splits or getattr(partition, "splits", None) or DEFAULT_SPLITS
            made: Federation = rows.federation(
                Federation, partition, shares, seed, None, self.name, self.normalize, splitting
            )
            return made
        if not path.is_dir():
            raise DataError(f"data files: there is no folder {path}; a relative path starts at the working directory")
        if (path / FILE).exists() and self.format is None:
            divided, federation = True, Federation.load(path)
        else:
            brought = read_as(path, self.format or "npz")
            divided = isinstance(next(iter(brought.data.values())), Mapping)
            federation = Federation.from_clients(
                brought.data, groups=brought.groups, classes=brought.classes, class_names=brought.class_names,
                splits=splits or DEFAULT_SPLITS, splitting=splitting, seed=seed,
                label_type=self.label_type or "auto", missing=self.missing or "error", length=self.length,
                name=self.name,
            )  # fmt: skip
        if divided and (splits is not None or splitting != "random"):
            key = "splits" if splits is not None else "splitting"
            raise ConfigError(f"{path} says what is for training and testing: leave out the {key}")
        return federation.standardized() if self.normalize == "standard" else federation

    def _table(self, path: Path) -> Table:
        if self.text is None:
            return open_table(path)
        if self.tokenizer is None:
            raise ConfigError("data files: tokenizer is missing: name its folder, or give [backbone]")
        tokenizer = read_tokenizer(Path(self.tokenizer).expanduser())
        if tokenizer is None:
            raise ConfigError(f"data files: tokenizer = {self.tokenizer!r}: there is no tokenizer in this folder")
        return with_tokens(open_table(path), self.text, tokenizer, self.length)

    def _columns(self) -> Columns:
        features = self.features if self.text is None else text_features(self.features)
        return Columns(
            self.label or "", self.client, features, self.categorical, self.group, self.split, self.time,
            self.label_type or "auto", self.missing or "error", self.length,
        )  # fmt: skip
