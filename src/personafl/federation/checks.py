"""What must hold of a federation's arrays; each complaint says which clients it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation.arrays import Stored
from personafl.federation.ragged import IGNORED as IGNORED
from personafl.inputs import check_names, part_name, parts


def check_structure(fed: Stored) -> None:
    """The ids are unique, the types are the store's, the bounds cut the samples into clients that can all train."""
    clients, samples, bounds = len(fed.ids), len(fed.y), fed.bounds
    if clients == 0:
        raise DataError("the federation is empty: no client was given")
    if unusable := [client for client in fed.ids if not isinstance(client, str)]:
        raise DataError(f"client ids must be strings, {unusable[0]!r} is not")
    if blank := [m for m, client in enumerate(fed.ids) if not client.strip()]:
        raise DataError(
            f"the id of client {blank[0] + 1} of {clients} is {fed.ids[blank[0]]!r}; give every client a name that is "
            "not blank"
        )
    if repeated := [client for client, times in Counter(fed.ids).items() if times > 1]:
        raise DataError(f"{many(len(repeated), 'client id')} given twice: {listing(repeated)}; ids must be unique")
    _check_inputs(fed)
    tiles = (
        bounds.shape == (clients, 4)
        and bounds[0, 0] == 0
        and bounds[-1, 3] == samples
        and bool((bounds[1:, 0] == bounds[:-1, 3]).all())
        and bool((np.diff(bounds, axis=1) >= 0).all())
    )
    if not tiles:
        raise DataError(
            f"bounds of shape {bounds.shape} do not divide {samples} samples among {clients} clients: "
            f"expected ({clients}, 4), each row ascending, starting where the row before ends"
        )
    if (idle := np.flatnonzero(fed.sizes("train") == 0)).size:
        raise DataError(
            f"{many(len(idle), 'client')} without training data: {listing([fed.ids[m] for m in idle])}; leave them out"
        )
    if fed.groups is not None and len(fed.groups) != clients:
        raise DataError(f"{len(fed.groups)} groups for {clients} clients; give one a client")
    for what, value in fed.truth.items():
        if not what.isidentifier():  # it becomes a file name
            raise DataError(f"truth {what!r} must be named like a variable")
        if value.ndim == 0 or len(value) != clients or value.dtype.kind not in "biuf":
            raise DataError(f"truth {what!r} must be numbers with first dimension {clients}, one row a client")


def _check_inputs(fed: Stored) -> None:
    """Types are the store's, and all inputs and y have as many samples."""
    if isinstance(fed.x, dict):
        check_names(list(fed.x))
    inputs = parts(fed.x)
    for name, value in inputs.items():
        if value.dtype not in (torch.float32, torch.int64, torch.uint8) or fed.y.dtype not in (
            torch.float32,
            torch.int64,
        ):
            raise DataError(
                f"{part_name(name)} is {value.dtype} and y is {fed.y.dtype}; the store holds x as float32, int64 or "
                f"uint8 and y as int64 or float32 (the from_... constructors convert)"
            )
    first, samples = next((part_name(name), len(value)) for name, value in inputs.items())
    for name, value in inputs.items():
        if len(value) != samples:
            raise DataError(f"{part_name(name)} has {len(value)} samples, {first} {samples}; they must be as many")
    if len(fed.y) != samples:
        raise DataError(f"{first} has {samples} samples and y has {len(fed.y)}; they must be as many")


def check_constants(fed: Stored) -> None:
    """Constants have names and values that can be used; where one is called embedding, x are numbers of its rows."""
    for what, value in fed.constants.items():
        if not what.isidentifier():  # it becomes a file name
            raise DataError(f"constant {what!r} must be named like a variable")
        if not isinstance(value, torch.Tensor):
            raise DataError(f"constant {what!r} must be a tensor, not {type(value).__name__}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DataError(f"constant {what!r} has NaN or infinite values")
    if "embedding" not in fed.constants or isinstance(fed.x, dict):  # of several inputs the model knows which it is
        return
    rows = len(fed.constants["embedding"])
    if fed.x.dtype != torch.int64:
        raise DataError(f"x is {fed.x.dtype}; with a table 'embedding' it must be integers: the numbers of its rows")
    beyond = (fed.x.numpy() < 0) | (fed.x.numpy() >= rows)
    if beyond.any():
        culprits = _culprits(fed, beyond, "value")
        raise DataError(f"x outside 0..{rows - 1}, the rows of the table 'embedding', in {culprits}")


def check_labels(fed: Stored) -> None:
    """Labels are classes 0, 1, … below `classes`, or finite regression targets."""
    if fed.y.is_floating_point():
        if fed.classes is not None:
            raise DataError(
                f"classes = {fed.classes} was given but the labels are floats; convert them to integers, "
                f"or leave classes out for regression"
            )
        if fed.y.ndim > 2:
            raise DataError(f"regression targets have shape {tuple(fed.y.shape)}; expected (N,) or (N, d)")
        return check_finite(fed, fed.y, "targets")
    labels = fed.y.numpy()
    if isinstance(fed.classes, bool) or not isinstance(fed.classes, int | np.integer):
        raise DataError(f"classes = {fed.classes!r}: must be a whole number, or left out")
    if labels.ndim > 1 and labels.shape[1:] == (1,):
        raise DataError(f"class labels have shape {labels.shape}; expected (N,): give y.reshape(-1)")
    if (negative := (labels < 0) & ((labels != IGNORED) | (labels.ndim == 1))).any():
        if labels.ndim == 1 and set(np.unique(labels)) == {-1, 1}:
            raise DataError("labels are -1 and 1; classes count from 0: give (y + 1) // 2")
        beside = "" if labels.ndim == 1 else f", and {IGNORED} marks what is not looked at"
        raise DataError(f"negative labels in {_culprits(fed, negative, 'label')}; classes count from 0{beside}")
    if labels.ndim > 1 and (fed.classes or 0) < 1:
        raise DataError(f"every label is {IGNORED}, which marks what is not looked at; give classes 0, 1, …")
    if (beyond := labels >= (fed.classes or 0)).any():
        raise DataError(
            f"labels outside 0..{(fed.classes or 0) - 1} in {_culprits(fed, beyond, 'label')}; the largest "
            f"is {labels.max()}, so give classes = {labels.max() + 1} or correct them"
        )


def check_class_names(fed: Stored) -> None:
    """Where classes have names, each has one of its own."""
    if fed.class_names is None:
        return
    if not all(isinstance(name, str) for name in fed.class_names) or len(set(fed.class_names)) != len(fed.class_names):
        raise DataError("class_names must be the names of the classes, each another string")
    if fed.classes is None:
        raise DataError("class_names were given, and y are targets of a regression; leave class_names out")
    if len(fed.class_names) != fed.classes:
        raise DataError(
            f"{many(len(fed.class_names), 'class name')} for {fed.classes} classes; give the name of each class"
        )


def check_features(fed: Stored) -> None:
    """No feature is NaN or infinite."""
    for name, value in parts(fed.x).items():
        check_finite(fed, value, f"features {part_name(name)}" if name else "features")


def check_finite(fed: Stored, values: torch.Tensor, what: str) -> None:
    """No value is NaN or infinite."""
    # One NaN or infinity makes the sum NaN or infinite: the usual case costs one pass and no memory.
    if not values.is_floating_point() or np.isfinite(values.numpy().sum(dtype=np.float64)):
        return
    bad = ~np.isfinite(values.numpy()).reshape(len(values), -1)
    if bad.any():
        raise DataError(f"NaN or infinite {what} in {_culprits(fed, bad, 'value')}; clean or leave them out")


def owners(fed: Stored) -> NDArray[np.int64]:
    """The position of each sample's client, (N,)."""
    return np.repeat(np.arange(len(fed)), fed.bounds[:, 3] - fed.bounds[:, 0])


def _culprits(fed: Stored, wrong: NDArray[np.bool_], unit: str) -> str:
    """Which clients have wrong values, and how many."""
    counts = np.bincount(owners(fed), weights=wrong.reshape(len(wrong), -1).sum(axis=1), minlength=len(fed)).astype(int)
    clients = np.flatnonzero(counts)
    named = [f"{fed.ids[m]} ({many(counts[m], unit)})" for m in clients]
    return f"{many(len(clients), 'client')}: {listing(named)}"


def many(count: int, unit: str) -> str:
    """`1 client`, `2 clients`."""
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def listing(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
