"""`Federation`: the data of M clients, and the constructors that make it of what people bring."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from personafl.checks import path_of
from personafl.federation import backbones, datasets, folders, tabular
from personafl.federation.from_arrays import FromArrays
from personafl.federation.labels import LabelType
from personafl.federation.missing import Missing
from personafl.federation.partition import Partition
from personafl.federation.scaling import standardized
from personafl.federation.splits import DEFAULT_SPLITS, Splitting
from personafl.federation.tabular_files import open_table
from personafl.federation.tabular_inputs import Choice
from personafl.federation.tabular_roles import Columns
from personafl.federation.text_columns import text_features, tokenizer_of, with_tokens
from personafl.pretrained.backbone import Backbone


class Federation(FromArrays):
    """The data of M clients, N samples in all. Usually made by one of the `from_...` constructors.

    Attributes
    ----------
    x : Tensor, or dict of str to Tensor
        (N, ...) features, client after client, inside a client [train | validation | test]; float32, int64
        or uint8. Several inputs have names, and the module gets them as keywords.
    y : Tensor
        int64 (N,) classes, float32 (N,) or (N, d) regression targets, int64 (N, d) of 0 and 1 for several labels a
        sample, or int64 (N, length) or (N, height, width) classes of words or pixels, -100 for what does not count.
    bounds : array
        (M, 4): where a client's training, validation and test samples start, and where they end.
    ids : tuple of str
        The clients' names.
    groups : tuple of str, optional
        The group of each client (a device type, a cluster).
    classes : int, optional
        Number of classes; None for regression. Not given for integer labels, it is the largest label + 1.
    name
        What this federation is called in runs and reports.
    truth : dict of arrays
        What is known to be true of each client of synthetic data; first dimension M.
    notes : tuple of str
        What had to be bent to make this federation, for people to read.
    constants : dict of tensors
        Constants that all clients share and that a model may use, such as word vectors; where one is called
        `embedding`, x are numbers of its rows.
    class_names : tuple of str, optional
        The names of the classes.
    raw : Raw, optional
        What the samples were before they went `through` a backbone, whose features x are then.

    Examples
    --------
    >>> fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])})
    >>> len(fed), fed.sizes("train").tolist(), fed.classes
    (2, [1, 1], 2)
    """

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        label: str | Sequence[str],
        client: str | None = None,
        partition: Partition | None = None,
        features: str | Sequence[str] | Choice | None = None,
        text: str | None = None,
        tokenizer: Backbone | None = None,
        categorical: Sequence[str] = (),
        group: str | None = None,
        split: str | None = None,
        time: str | None = None,
        normalize: tabular.Normalization = "none",
        missing: Missing = "error",
        length: int | None = None,
        label_type: LabelType = "auto",
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        seed: int = 0,
        classes: int | None = None,
        name: str | None = None,
    ) -> Self:
        """A federation of a table with a row a sample.

        Every value must be there, unless `missing` is `fill`: an error names the column and the row of one that is
        missing. Rows are counted from 1, without the header.

        Parameters
        ----------
        table : path or table
            A file (.csv, .csv.gz, .parquet), a pyarrow table, a pandas or other dataframe, or a mapping of names
            to columns.
        label
            The column of labels. Text is classes in natural order, whose names become `class_names`; integers are
            classes that count from 0; other numbers are regression targets. Several columns make y (N, d).
        client : str, optional
            The column of client ids: text or integers.
        partition : Partition, optional
            Deals the rows to clients, whatever a client column says; `Natural` keeps that column's clients, or
            those of them who have enough rows.
        features : str, sequence of str, or mapping, optional
            The columns of numbers that make x, in this order; all others that hold numbers, if left out. One
            name alone may be a column of arrays (an embedding, a picture), whose shape is kept. A mapping makes several
            inputs, {"numbers": ["age", "dose"], "categories": ["ward"], "ids": "tokens"}: numbers are float32
            (N, d), categories int64 (N, d), the place of a value among all values of its column, and a name alone is
            a column as it is, where lists of unequal length are padded as in `from_arrays`.
        text, tokenizer : optional
            A column of texts, and a backbone that has a tokenizer (`pf.pretrained.load`): the texts become the inputs
            `input_ids` and `attention_mask`, of `length` tokens at the most; other features are then a mapping.
        categorical : sequence of str
            Columns of text that come after them: a feature for each value, 1 where the row has it and else 0. With a
            mapping: columns that are categories though they hold whole numbers; text is a category anyway.
        group, split : str, optional
            With `client`: the column with the client's group; the column that says train, val (or validation)
            or test. Without `split`, each client's rows are split by `splits`.
        time : str, optional
            A column of numbers or dates: a client's last rows by it are for test, those before them for validation.
        normalize
            `standard` is `standardized()`; `none` leaves the numbers as they are.
        missing
            `error`; or `fill`: numbers by the median and categories by the mode of the training rows, with a feature
            0 or 1 for each column that has gaps; or `fill-all`: with such a feature for every column. Labels, clients,
            groups, splits and times must be there.
        label_type
            `classes`, `numbers` (63 exam scores are numbers, not 63 classes), `multilabel`, or by what is in the
            column: `auto`.
        length, splits, splitting, seed, classes, name
            As in `from_arrays`; the name is the file's unless given.

        Examples
        --------
        >>> table = {"hospital": ["b", "a", "b"], "age": [51, 43, 60], "outcome": ["well", "ill", "ill"]}
        >>> fed = Federation.from_table(table, client="hospital", label="outcome")
        >>> fed.ids, fed.class_names, fed.x.shape
        (('a', 'b'), ('ill', 'well'), torch.Size([3, 1]))
        """
        opened = open_table(table)
        if text is not None:
            opened, features = with_tokens(opened, text, tokenizer_of(tokenizer), length), text_features(features)
        columns = Columns(label, client, features, categorical, group, split, time, label_type, missing, length)
        rows = tabular.read_rows([opened], columns)
        name = name or (Path(table).name.partition(".")[0] if isinstance(table, str | os.PathLike) else "table")
        made: Self = rows.federation(cls, partition, splits, seed, classes, name, normalize, splitting)
        return made

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        label: str | Sequence[str] = "label",
        client: str | None = None,
        partition: Partition | None = None,
        features: str | Sequence[str] | Choice | None = None,
        categorical: Sequence[str] = (),
        group: str | None = None,
        time: str | None = None,
        normalize: tabular.Normalization = "none",
        missing: Missing = "error",
        length: int | None = None,
        label_type: LabelType = "auto",
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        seed: int = 0,
        classes: int | None = None,
        name: str | None = None,
    ) -> Self:
        """A federation of a Hugging Face dataset: `pip install "personafl[huggingface]"`.

        Parameters
        ----------
        dataset : datasets.Dataset or datasets.DatasetDict
            A Dataset's rows are split by `splits`. The splits train, validation and test of a DatasetDict are
            used as they are, and every client must have rows in train.
        label, client, partition, features, categorical, group, time, normalize, missing, label_type, splits
            As in `from_table`. A column of pictures, as in features="image", becomes float32 (channels, height,
            width) in 0 to 1. A `ClassLabel`'s names become `class_names`.
        length, splitting, seed, classes, name
            As in `from_arrays`.
        """
        columns = Columns(label, client, features, categorical, group, None, time, label_type, missing, length)
        rows = tabular.read_rows(datasets.huggingface_tables(dataset, label), columns)
        name = name or "huggingface"
        made: Self = rows.federation(cls, partition, splits, seed, classes, name, normalize, splitting)
        return made

    def standardized(self) -> Self:
        """This federation with each feature's training samples, all clients' together, at mean 0 and variance 1.

        In a real federation each client would send the number, the sum and the sum of squares of its training
        samples for this. Validation and test samples have no part in it. What was subtracted and what was divided
        by is in `constants`: new samples for the trained models need the same,
        (x - constants["mean"]) / constants["std"].

        Examples
        --------
        >>> fed = Federation.from_clients({"ann": {"train": ([[1.0], [3.0]], [0, 1]), "test": ([[4.0]], [1])}})
        >>> fed.standardized().x.flatten(), fed.standardized().constants["mean"]
        (tensor([-1., 1., 2.]), tensor([2.]))
        """
        return standardized(self)

    @property
    def backbone(self) -> Backbone | None:
        """What the samples went `through`, where they did."""
        return None if self.raw is None else self.raw.backbone

    def through(
        self,
        backbone: torch.nn.Module,
        *,
        batch_size: int = 64,
        device: str = "cpu",
        progress: bool = True,
        cache: bool = True,
    ) -> Self:
        """This federation with the features that a frozen backbone makes of its samples.

        Each sample is computed once, in one pass with a progress bar. The features are kept in the cache under the hash
        of data and weights, memory-mapped, and found there the next time. What is trained on them is a head; models
        that a run hands out are backbone and head in one, see docs/pretrained.md.

        Parameters
        ----------
        backbone
            A `pf.pretrained.Backbone`, as `pf.pretrained.load` gives it; or any module, which is put into `eval()`.
        batch_size, device
            Of the pass.
        progress
            Show a progress bar on a terminal.
        cache
            Whether to keep the features on the disk; else they are in memory.

        Examples
        --------
        >>> fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1])})
        >>> features = fed.through(torch.nn.Linear(1, 5), cache=False)
        >>> features.x.shape, features.backbone.name
        (torch.Size([2, 5]), 'Linear')
        """
        return backbones.through(self, backbone, batch_size, device, progress, cache)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the federation to a new folder, whole or not at all; `load` reads it back.

        Of features that a backbone made, the features are written, with a note that says so.
        """
        folders.save(self if self.raw is None else backbones.features_alone(self), path_of(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Self:
        """Read a saved federation; the features stay on disk until they are used.

        Parameters
        ----------
        path
            A folder that `save` wrote.
        verify
            Read all features too and compare them with the stored fingerprint. Everything else is always
            compared.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1])})
        >>> with TemporaryDirectory() as folder:
        ...     fed.save(Path(folder, "mine"))
        ...     Federation.load(Path(folder, "mine"), verify=True).fingerprint == fed.fingerprint
        True
        """
        loaded: Self = folders.load(cls, path_of(path), verify)
        return loaded
