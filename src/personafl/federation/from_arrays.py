"""The constructors of a federation from what lies in memory or in files of arrays."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from personafl.checks import path_of
from personafl.errors import ConfigError, DataError
from personafl.federation import datasets
from personafl.federation.arrays import (
    Array,
    Pair,
    Split,
    client_pieces,
    pair,
    stored_features,
    stored_labels,
)
from personafl.federation.labels import LabelType, label_notes, typed_labels
from personafl.federation.missing import Missing, check_missing, filled
from personafl.federation.other_folders import Format, read_as
from personafl.federation.partition import Partition
from personafl.federation.ragged import equal_length, padding_notes
from personafl.federation.splits import (
    DEFAULT_SPLITS,
    Splitting,
    bounds_of,
    dealt_clients,
    groups_of_clients,
    natural_clients,
    sample_ranks,
    split_samples,
)
from personafl.federation.store import SampleStore

ROWS_AT_ONCE = 4_096


class FromArrays(SampleStore):
    """A federation from arrays, `.npz` files or torch Datasets."""

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
    ) -> Self:
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
            What was filled in is in `constants`. `fill-all`: with such a feature for every one, gaps or not.
        length : int, optional
            What samples of unequal length are padded to; left out, the longest.
        classes, name, truth, notes, constants, class_names
            As in the class; `truth` in the order of the ids.

        Examples
        --------
        >>> import personafl as pf
        >>> fed = pf.Federation.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=["bob", "ann", "bob"])
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
            scanned=missing != "error",
        )
        return made if missing == "error" else filled(made, missing=missing)

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
    ) -> Self:
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
        >>> import personafl as pf
        >>> data = {"ann": {"train": ([[0.0], [1.0]], [0, 1]), "test": ([[2.0]], [1])}}
        >>> pf.Federation.from_clients(data).bounds.tolist()
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
            scanned=missing != "error",
        )
        return made if missing == "error" else filled(made, missing=missing)

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
    ) -> Self:
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
            `flbench`: data/NAME of FL-bench, with partition.pkl, data.npy and targets.npy; `flamby`: the folder of
            fed_heart_disease or fed_tcga_brca of FLamby.
        splits, splitting, seed, classes, label_type, missing, length, name
            As in `from_arrays`; the name is the folder's unless given.

        Examples
        --------
        >>> import personafl as pf
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for client in ("phone-10", "phone-2"):
        ...         np.savez(f"{folder}/{client}", x=np.ones((4, 3)), y=np.array([0, 1, 0, 1]))
        ...     pf.Federation.from_folder(folder).ids
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
    ) -> Self:
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
        >>> import personafl as pf
        >>> from torch.utils.data import TensorDataset
        >>> ann = TensorDataset(torch.zeros(10, 3), torch.tensor([0, 1] * 5))
        >>> pf.Federation.from_datasets({"ann": ann}).sizes("train").tolist()
        [7]
        """
        if not isinstance(data, Mapping):
            raise DataError(f"data is a {type(data).__name__}; expected a mapping of client ids to datasets")
        read = {str(client): datasets.read_client(str(client), brought) for client, brought in data.items()}
        return cls.from_clients(
            read, groups=groups, splits=splits, splitting=splitting, seed=seed, classes=classes, label_type=label_type,
            missing=missing, length=length, name=name, class_names=class_names,
        )  # fmt: skip
