"""Datasets that people have already: torch's map-style Datasets, and those of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, Subset, TensorDataset

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import SPLITS, Array, Pair, Split
from personafl.federation.tabular_columns import Place
from personafl.federation.tabular_files import ROWS_AT_ONCE, Table
from personafl.inputs import as_state, check_names, from_state

_ITEMS_AT_ONCE = 1_024
_HUGGINGFACE_SPLITS = ("train", "validation", "val", "test")


def read_client(client: str, brought: Any) -> Pair | Mapping[Split, Pair]:
    """The arrays of a client's dataset, or of each of its splits."""
    if not isinstance(brought, Mapping):
        return _read(brought, f"client {client!r}")
    if unknown := [str(split) for split in brought if split not in SPLITS]:
        raise DataError(f"client {client!r} has a split {unknown[0]!r}; there are only train, val and test")
    return {split: _read(dataset, f"client {client!r} ({split})") for split, dataset in brought.items()}


def huggingface_tables(dataset: Any, label: str | Sequence[str]) -> list[Table]:
    """A Hugging Face Dataset as a table, or a DatasetDict as a table for each split."""
    if isinstance(dataset, Mapping) and dataset:
        if unknown := [str(split) for split in dataset if split not in _HUGGINGFACE_SPLITS]:
            raise DataError(f"the DatasetDict has a split {unknown[0]!r}, expected train, validation and test only")
        if len(dataset) > 1:
            return [_huggingface_table(part, label, str(split)) for split, part in dataset.items()]
        return [_huggingface_table(part, label, None) for part in dataset.values()]
    return [_huggingface_table(dataset, label, None)]


def picture(image: Any) -> NDArray[np.float32]:
    """A PIL image as float32 (channels, height, width) in 0 to 1.

    >>> from PIL import Image
    >>> picture(Image.new("RGB", (3, 2), "white")).shape
    (3, 2, 3)
    """
    pixels = np.asarray(image.convert("RGB") if image.mode in ("P", "CMYK", "YCbCr") else image)
    scale = np.float32(np.iinfo(pixels.dtype).max) if pixels.dtype.kind in "iu" else np.float32(1)
    shaped = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return np.ascontiguousarray(shaped, np.float32) / scale


def _read(dataset: Any, where: str) -> Pair:
    """All items of a dataset, as one array of x and one of y."""
    if (ready := _tensors(dataset)) is not None:
        return ready
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(f"{where} is {_a(dataset)}; expected a map-style torch Dataset, whose items are pairs (x, y)")
    if len(dataset) == 0:
        raise DataError(f"{where} has an empty dataset; leave it out")
    read: dict[str, list[Array]] = {}
    for start in range(0, len(dataset), _ITEMS_AT_ONCE):
        numbers = range(start, min(start + _ITEMS_AT_ONCE, len(dataset)))
        for number, item in zip(numbers, _items(dataset, numbers, where), strict=True):
            found = _arrays(item, f"{where}, item {number}")
            if read and read.keys() != found.keys():
                raise DataError(
                    f"{where}, item {number} has {', '.join(found)}, expected {', '.join(read)} as in item 0"
                )
            for what, value in found.items():
                read.setdefault(what, []).append(value)
                _check_item(f"{where}, item {number}: {what}", value, read[what][0])
    joined = {what: _joined(values) for what, values in read.items()}
    y = joined.pop("y")
    return from_state(joined), y


def _check_item(what: str, value: Array, first: Array) -> None:
    """As the first item, but for the length of what will be padded."""
    alike = value.ndim == first.ndim and (value.ndim == 0 or value.shape[1:] == first.shape[1:])
    if not alike or (value.ndim > 2 and value.shape != first.shape):
        raise DataError(f"{what} has shape {value.shape}, expected {first.shape} as in item 0")


def _joined(values: list[Array]) -> Any:
    """One array of equally long items; else the list, to be padded."""
    return np.stack(values) if len({value.shape for value in values}) == 1 else values


def _tensors(dataset: Any) -> Pair | None:
    """The tensors of a TensorDataset, or of a part of one: there is no need to look at each item."""
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2 and len(dataset) > 0:
        return dataset.tensors
    if type(dataset) is Subset and len(dataset) > 0 and (whole := _tensors(dataset.dataset)) is not None:
        rows = torch.as_tensor(list(dataset.indices))
        return whole[0][rows], whole[1][rows]
    return None


def _items(dataset: Any, numbers: Sequence[int], where: str) -> list[Any]:
    number: int | str = f"{numbers[0]} to {numbers[-1]}"
    try:
        if hasattr(dataset, "__getitems__"):  # as torch's DataLoader does: many at once
            items = list(dataset.__getitems__(list(numbers)))
            if len(items) == len(numbers):
                return items
        items = []
        for number in numbers:
            items.append(dataset[number])
        return items
    except Exception as error:  # whatever somebody's code raises
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"{where}, item {number} cannot be read: {type(error).__name__}: {reason}") from error


def _arrays(item: Any, where: str) -> dict[str, Array]:
    """The features of an item, as x or by their names as x.NAME, and y."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} is {_a(item)}; expected a pair (x, y)")
    named = dict(item[0]) if isinstance(item[0], Mapping) else item[0]
    if isinstance(named, dict):
        check_names(list(named))
    read = {name: _array(value, f"{name} of {where}") for name, value in as_state(named).items()}
    return read | {"y": _array(item[1], f"y of {where}")}


def _array(value: Any, where: str) -> Array:
    if hasattr(value, "getbands"):  # a PIL image
        return picture(value)
    try:
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} is {_a(value)} that is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} is {_a(value)}; expected numbers: a tensor, an array or a picture")
    return array


def _a(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"


def _huggingface_table(dataset: Any, label: str | Sequence[str], split: str | None) -> Table:
    if not (hasattr(dataset, "with_format") and hasattr(dataset, "select_columns")):
        if find_spec("datasets") is None:
            raise ConfigError('from_huggingface needs the package datasets: pip install "personafl[huggingface]"')
        raise DataError(f"from_huggingface was given {_a(dataset)}; expected what datasets.load_dataset returns")
    if not hasattr(dataset, "__len__"):
        raise DataError("the dataset is streamed: load it without streaming=True, or take a part of it first")
    features = dataset.features
    names = getattr(features.get(label), "names", None) if isinstance(label, str) else None
    decoders = {name: _decoder(kind) for name, kind in features.items() if type(kind).__name__ == "Image"}

    def read(columns: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = _ITEMS_AT_ONCE if decoders.keys() & set(columns) else ROWS_AT_ONCE  # pictures are large
        for table in dataset.select_columns(list(columns)).with_format("arrow").iter(batch_size=rows):
            yield from table.to_batches()

    return Table(
        where=f"the dataset ({split})" if split else "the dataset",
        schema=features.arrow_schema,
        read=read,
        split=split,
        decoders=decoders,
        class_names=None if names is None else tuple(names),
    )


def _decoder(feature: Any) -> Any:
    def decode(array: pa.Array, place: Place) -> NDArray[np.float32]:
        pictures: list[NDArray[np.float32]] = []
        for position, stored in enumerate(array.to_pylist()):
            if stored is None:
                raise DataError(f"{place.row(position)} has no picture; leave out the row")
            try:
                pictures.append(picture(feature.decode_example(stored)))
            except (OSError, ValueError, SyntaxError) as error:
                raise DataError(f"{place.row(position)} cannot be read as a picture: {error}") from error
            if pictures[-1].shape != pictures[0].shape:
                raise DataError(
                    f"{place.row(position)} is a picture of shape {pictures[-1].shape}, expected {pictures[0].shape} "
                    f"as in row {place.first + 1}; resize them first"
                )
        return np.stack(pictures)

    return decode
