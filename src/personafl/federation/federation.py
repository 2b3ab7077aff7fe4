"""The clients' data as one ragged store: one array for each field, and where each client's samples lie in it.

A batch for many clients is then a single gather, a saved federation is a few `.npy` files, and features
larger than memory are memory-mapped.
"""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.checks import path_of
from personafl.errors import ConfigError, DataError
from personafl.federation import backbones, datasets, folders, tabular
from personafl.federation.arrays import (
    SPLITS,
    Array,
    Indices,
    Pair,
    Split,
    client_pieces,
    pair,
    split_index,
    stored_features,
    stored_labels,
)
from personafl.federation.checks import (
    check_class_names,
    check_constants,
    check_features,
    check_labels,
    check_structure,
)
from personafl.federation.description import federation_lines
from personafl.federation.labels import LabelType, label_notes, typed_labels
from personafl.federation.missing import Missing, check_missing, filled
from personafl.federation.other_folders import Format, read_as
from personafl.federation.partition import Partition
from personafl.federation.ragged import equal_length, padding_notes
from personafl.federation.scaling import standardized
from personafl.federation.splits import (
    Splitting,
    bounds_of,
    dealt_clients,
    groups_of_clients,
    natural_clients,
    sample_ranks,
    split_samples,
)
from personafl.federation.tabular_files import open_table
from personafl.federation.tabular_inputs import Choice
from personafl.federation.tabular_roles import Columns
from personafl.federation.text_columns import text_features, tokenizer_of, with_tokens
from personafl.inputs import Inputs, as_state, some
from personafl.pretrained.backbone import Backbone, Raw
from personafl.streams import name_key

DEFAULT_SPLITS = (0.7, 0.1, 0.2)
ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
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

    x: Inputs
    y: torch.Tensor
    bounds: Indices
    ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    classes: int | None = None
    name: str = "federation"
    truth: dict[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    raw: Raw | None = None
    # A saved federation was scanned for NaN before it was written; scanning again would read all of x.
    scanned: InitVar[bool] = False

    def __post_init__(self, scanned: bool) -> None:
        object.__setattr__(self, "bounds", np.array(self.bounds, np.int64))
        self.bounds.setflags(write=False)
        check_structure(self)
        if self.classes is None and not self.y.is_floating_point():
            object.__setattr__(
                self, "classes", int(self.y.max()) + 1 if self.class_names is None else len(self.class_names)
            )
        check_labels(self)
        check_class_names(self)
        if not scanned:
            check_features(self)
            check_constants(self)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return "\n".join(federation_lines(self))

    def starts(self, split: Split) -> Indices:
        """Where each client's samples of a split start, (M,)."""
        return self.bounds[:, split_index(split)]

    def sizes(self, split: Split) -> Indices:
        """How many samples of a split each client has, (M,)."""
        sizes: Indices = self._sizes[split_index(split)]
        return sizes

    @cached_property
    def _sizes(self) -> Indices:
        """(3, M): made once, because rounds ask for it and must not take time that grows with the clients."""
        sizes: Indices = np.ascontiguousarray(np.diff(self.bounds, axis=1).T)
        sizes.setflags(write=False)
        return sizes

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: one a class, or the size of a target."""
        return self.y.shape[1] if self.multi_label else self.classes or int(np.prod(self.y.shape[1:]))

    @cached_property
    def multi_label(self) -> bool:
        """Whether a sample has several labels of 0 and 1, (N, d)."""
        two = self.y.ndim == 2 and self.classes is not None and self.classes <= 2
        return two and int(self.y.min()) >= 0

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The random-number key of each client, (M,): it depends on the client's name only."""
        return np.array([name_key(client) for client in self.ids], np.uint64)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client: m for m, client in enumerate(self.ids)}

    def index(self, client_id: str | int) -> int:
        """The position of a client among the ids; an integer stands for the id that is written like it."""
        client_id = str(client_id)
        if client_id not in self._positions:
            near = difflib.get_close_matches(client_id, self.ids, n=1, cutoff=0.0)
            raise DataError(f"no client {client_id!r} among the {len(self)} clients; did you mean {near[0]!r}?")
        return self._positions[client_id]

    def client(self, client_id: str | int) -> dict[Split, tuple[Inputs, torch.Tensor]]:
        """One client's (x, y) for each split, as views of the store.

        >>> fed = Federation.from_clients({"ann": {"train": ([[0.0]], [0]), "test": ([[5.0]], [1])}})
        >>> fed.client("ann")["test"]
        (tensor([[5.]]), tensor([1]))
        """
        edges = self.bounds[self.index(client_id)].tolist()
        return {
            split: (some(self.x, slice(edges[s], edges[s + 1])), self.y[edges[s] : edges[s + 1]])
            for s, split in enumerate(SPLITS)
        }

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that training can see; equal for equal data on every machine.

        Features that a backbone made count by what they were made of: their last bits depend on the machine.
        """
        if self.raw is not None:
            return folders.digest(
                folders.constants_of(self), [self.raw.fingerprint, *self.raw.backbone.key, sorted(self.constants)]
            )
        inputs = sorted(as_state(self.x).items())
        arrays = [*(value.numpy() for _, value in inputs), self.y.numpy(), self.bounds, *folders.constants_of(self)]
        labels = [self.ids, self.groups, self.classes, *([sorted(self.constants)] if self.constants else [])]
        # One tensor has no name, so that its federation has the fingerprint that it always had.
        return folders.digest(arrays, labels + ([[name for name, _ in inputs]] if isinstance(self.x, dict) else []))

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        partition: Partition | None = None,
        clients: Any = None,
        groups: Any = None,
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        time: Any = None,
        seed: int = 0,
        classes: int | None = None,
        label_type: LabelType = "auto",
        missing: Missing = "error",
        length: int | None = None,
        name: str = "arrays",
        truth: dict[str, Array] | None = None,
        notes: Sequence[str] = (),
        constants: dict[str, torch.Tensor] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "Federation":
        """A federation of one pool of samples.

        Parameters
        ----------
        x, y : array-like
            Features (N, ...) and labels (N,) or (N, d). Integer labels are classes, float labels regression
            targets. `x` may be several inputs by name, {"ids": (N, ...), "image": (N, ...)}, which the module gets as
            keywords. Lists of samples of unequal length are padded: integers with 0, floats with 0.0, labels with
            -100, and there is another input `mask`, 1 for what is real and 0 for padding; one tensor is then the
            input `x`.
        partition : Partition, optional
            Deals the samples to clients named client-0, client-1, …
        clients : array-like, optional
            Instead of a partition: the client of each sample. Clients are put in natural order (2 before 10).
        groups : mapping or array-like, optional
            With `clients`: the group of each client {id: group}, or of each sample.
        splits : three floats
            A client's shares of train, validation and test. At least one sample is for training; where there
            is too little, a test sample comes before a validation sample.
        splitting
            `random`; or `end`: of a client's samples in their order, the last are for test and those before them for
            validation, for windows that overlap and for whatever changes with time.
        time : array-like, optional
            Numbers or dates, one a sample: as `end`, and they say what the order is.
        seed
            The partition follows from it, and, for each client apart, the split.
        label_type
            What y is: `classes`, `numbers` (targets of a regression) or `multilabel` (several labels of 0 and 1 a
            sample). `auto` goes by the type of the numbers, and refuses floats that look like classes and one-hot
            labels.
        missing
            `error`; or `fill`: NaN in features (N, d) becomes the median of the training samples of all clients, and
            each feature that has gaps there gets another, after all others, that is 1 where it was missing and else 0.
            What was filled in is in `constants`.
        length : int, optional
            What samples of unequal length are padded to; left out, the longest.
        classes, name, truth, notes, constants, class_names
            As in the class; `truth` in the order of the ids.

        Examples
        --------
        >>> fed = Federation.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=["bob", "ann", "bob"])
        >>> fed.ids, fed.sizes("test").tolist()
        (('ann', 'bob'), [0, 1])
        """
        check_missing(missing)
        brought = [pair(x, y, "the data")]
        [(features, targets)] = equal_length(brought, length)
        notes = [*notes, *padding_notes(brought, [(features, targets)])]
        if len(targets) == 0:
            raise DataError("the federation is empty: x and y hold no sample")
        if (partition is None) == (clients is None):
            raise ConfigError("from_arrays needs exactly one of partition (deals samples) and clients (a key a sample)")
        [targets] = typed_labels([targets], label_type, classes)
        rank = sample_ranks(splitting, time, len(targets))
        if class_names is None:
            notes = [*notes, *label_notes([targets], classes)]
        if partition is not None:
            if groups is not None:
                raise ConfigError("groups can be given with clients only: a partition makes its own")
            ids, samples, owner, named_groups, dealt_notes = dealt_clients(partition, targets, seed)
            notes = [*notes, *dealt_notes]
        else:
            ids, owner = natural_clients(clients, len(targets))
            samples = np.arange(len(targets))
            named_groups = groups_of_clients(groups, ids, owner)
        order, bounds = split_samples(ids, owner, splits, seed, None if rank is None else rank[samples])
        chunks = np.array_split(samples[order], max(1, -(-len(order) // ROWS_AT_ONCE)))
        made = cls(
            x=stored_features([features] * len(chunks), chunks),
            y=stored_labels([targets] * len(chunks), chunks),
            bounds=bounds,
            ids=tuple(ids),
            groups=None if named_groups is None else tuple(named_groups),
            classes=classes,
            name=name,
            truth=truth or {},
            notes=tuple(notes),
            constants=constants or {},
            class_names=None if class_names is None else tuple(class_names),
            scanned=missing == "fill",
        )
        return filled(made) if missing == "fill" else made

    @classmethod
    def from_clients(
        cls,
        data: Mapping[Any, Pair | Mapping[Split, Pair]],
        *,
        groups: Mapping[str, str] | None = None,
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        seed: int = 0,
        classes: int | None = None,
        label_type: LabelType = "auto",
        missing: Missing = "error",
        length: int | None = None,
        name: str = "clients",
        constants: dict[str, torch.Tensor] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "Federation":
        """A federation of clients that each bring their arrays.

        Parameters
        ----------
        data
            {id: (x, y)}, each then split by `splits`; or {id: {"train": (x, y), "val": (x, y), "test": (x,
            y)}}, used as it is, where val and test may be left out. The order of the mapping is kept.
        groups : mapping, optional
            {id: group}.
        splits, splitting, seed, classes, label_type, missing, length, name, constants, class_names
            As in `from_arrays`, as are several inputs by name and samples of unequal length.

        Examples
        --------
        >>> data = {"ann": {"train": ([[0.0], [1.0]], [0, 1]), "test": ([[2.0]], [1])}}
        >>> Federation.from_clients(data).bounds.tolist()
        [[0, 2, 2, 3]]
        """
        check_missing(missing)
        if not isinstance(data, Mapping):
            raise DataError(f"data is a {type(data).__name__}; expected a mapping of client ids to (x, y)")
        if not data:
            raise DataError("the federation is empty: no client was given")
        ids = [str(client) for client in data]
        brought, counts, divided = client_pieces(ids, list(data.values()))
        pieces = equal_length(brought, length)
        labels = typed_labels([y for _, y in pieces], label_type, classes)
        rank = sample_ranks(splitting, None, int(counts.sum()))
        if divided:
            order, bounds = np.arange(counts.sum()), bounds_of(counts)
        else:
            order, bounds = split_samples(ids, np.repeat(np.arange(len(ids)), counts.sum(axis=1)), splits, seed, rank)
        ends = np.cumsum([len(y) for _, y in pieces])
        # Samples change places inside a piece only, so each piece is copied once, straight to its place.
        rows = [order[end - len(y) : end] - (end - len(y)) for (_, y), end in zip(pieces, ends, strict=True)]
        made = cls(
            x=stored_features([x for x, _ in pieces], rows),
            y=stored_labels(labels, rows),
            bounds=bounds,
            ids=tuple(ids),
            groups=None if groups is None else tuple(groups_of_clients(groups, ids, None) or ()),
            classes=classes,
            name=name,
            notes=(*padding_notes(brought, pieces), *(label_notes(labels, classes) if class_names is None else ())),
            constants=constants or {},
            class_names=None if class_names is None else tuple(class_names),
            scanned=missing == "fill",
        )
        return filled(made) if missing == "fill" else made

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike[str],
        *,
        format: Format = "npz",
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        seed: int = 0,
        classes: int | None = None,
        label_type: LabelType = "auto",
        length: int | None = None,
        missing: Missing = "error",
        name: str | None = None,
    ) -> "Federation":
        """A federation of a folder with one `.npz` file a client; the file's stem is the client's id.

        A file holds the arrays `x` and `y`, or `x_train`, `y_train` and where there are any `x_val`, `y_val`,
        `x_test`, `y_test`; optionally the string `group`. Several inputs are `x.NAME`, `x_train.NAME`, …; samples of
        unequal length lie end to end, with their lengths beside them in `x.lengths`, `x.NAME.lengths`, `y.lengths`.
        Nothing in a file is executed: pickled objects are refused. Other files of the folder are left alone.

        Or a folder that another library wrote, used as it is divided there (docs/coming-from.md).

        Parameters
        ----------
        path
            The folder.
        format
            `npz`, as above; `pfllib`: dataset/NAME of PFLlib, with train/0.npz, test/0.npz, …, whose pickles are
            read without being executed; `leaf`: data/NAME/data of LEAF, with train/*.json and test/*.json;
            `flbench`: data/NAME of FL-bench, with partition.pkl, data.npy and targets.npy.
        splits, splitting, seed, classes, label_type, missing, length, name
            As in `from_arrays`; the name is the folder's unless given.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for client in ("phone-10", "phone-2"):
        ...         np.savez(Path(folder, client), x=np.ones((4, 3)), y=np.array([0, 1, 0, 1]))
        ...     Federation.from_folder(folder).ids
        ('phone-2', 'phone-10')
        """
        folder = path_of(path)
        brought = read_as(folder, format)
        return cls.from_clients(
            brought.data,
            groups=brought.groups,
            splits=splits,
            splitting=splitting,
            seed=seed,
            length=length,
            classes=brought.classes if classes is None else classes,
            class_names=brought.class_names,
            label_type=label_type,
            missing=missing,
            name=name or folder.resolve().name,
        )

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
    ) -> "Federation":
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
            0 or 1 for each column that has gaps. Labels, clients, groups, splits and times must be there.
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
        made: Federation = rows.federation(cls, partition, splits, seed, classes, name, normalize, splitting)
        return made

    @classmethod
    def from_datasets(
        cls,
        data: Mapping[Any, Any],
        *,
        groups: Mapping[str, str] | None = None,
        splits: Sequence[float] = DEFAULT_SPLITS,
        splitting: Splitting = "random",
        seed: int = 0,
        classes: int | None = None,
        label_type: LabelType = "auto",
        length: int | None = None,
        missing: Missing = "error",
        name: str = "datasets",
        class_names: Sequence[str] | None = None,
    ) -> "Federation":
        """A federation of torch Datasets, one a client.

        Each item is read once, so what a transform does at random is done once. Pictures (PIL) become float32
        tensors (channels, height, width) in 0 to 1.

        Parameters
        ----------
        data
            {id: dataset}, each then split by `splits`; or {id: {"train": dataset, "val": …, "test": …}}, used as
            it is. A dataset is map-style (it has a length) and its items are pairs (x, y), where x may be several
            inputs by name and of unequal length.
        groups, splits, splitting, seed, classes, label_type, missing, length, name, class_names
            As in `from_clients`.

        Examples
        --------
        >>> from torch.utils.data import TensorDataset
        >>> ann = TensorDataset(torch.zeros(10, 3), torch.tensor([0, 1] * 5))
        >>> Federation.from_datasets({"ann": ann}).sizes("train").tolist()
        [7]
        """
        if not isinstance(data, Mapping):
            raise DataError(f"data is a {type(data).__name__}; expected a mapping of client ids to datasets")
        read = {str(client): datasets.read_client(str(client), brought) for client, brought in data.items()}
        return cls.from_clients(
            read, groups=groups, splits=splits, splitting=splitting, seed=seed, classes=classes, label_type=label_type,
            missing=missing, length=length, name=name, class_names=class_names,
        )  # fmt: skip

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
    ) -> "Federation":
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
        made: Federation = rows.federation(cls, partition, splits, seed, classes, name, normalize, splitting)
        return made

    def standardized(self) -> "Federation":
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
    ) -> "Federation":
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
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False) -> "Federation":
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
        loaded: Federation = folders.load(cls, path_of(path), verify)
        return loaded
