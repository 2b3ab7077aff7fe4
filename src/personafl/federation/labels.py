"""What labels are: classes, numbers to predict, or several yes-or-no labels a sample; and what looks like another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from personafl.errors import ConfigError, DataError
from personafl.federation.arrays import Array
from personafl.federation.checks import listing

LabelType = Literal["auto", "classes", "numbers", "multilabel"]
"""auto: integers are classes, or, as 0 and 1 in several columns, several labels; floats are numbers."""

_FEW = 20  # different whole numbers that floats may be and still be taken for classes


def check_label_type(label_type: str) -> None:
    """Refuse what is no type of labels."""
    if label_type not in get_args(LabelType):
        raise ConfigError(f"label_type = {label_type!r}: must be {', '.join(get_args(LabelType)[:-1])} or multilabel")


def typed_labels(pieces: Sequence[Array], label_type: LabelType, classes: int | None = None) -> list[Array]:
    """All clients' labels as the type that is declared; where none is, what may be meant otherwise is refused."""
    check_label_type(label_type)
    if label_type == "numbers":
        return [piece.astype(np.float64) if piece.dtype.kind != "f" else piece for piece in pieces]
    if label_type == "auto":
        if classes is None:
            _refuse_doubtful(pieces)
        return list(pieces)
    if not all(_is_whole(piece) for piece in pieces):
        raise DataError(f"label_type = {label_type!r}, and y holds {_not_whole(pieces):g}; expected whole numbers")
    if label_type == "multilabel" and not (pieces[0].ndim == 2 and all(_is_binary(piece) for piece in pieces)):
        raise DataError(
            f"label_type = 'multilabel', and y has shape {('N', *pieces[0].shape[1:])} with values from "
            f"{_least(pieces)} to {_most(pieces)}; expected (N, labels) of 0 and 1"
        )
    return [piece.astype(np.int64) for piece in pieces]


def label_notes(pieces: Sequence[Array], classes: int | None) -> list[str]:
    """Classes that nobody has, where the number of classes was not given but taken from the labels."""
    if classes is not None or any(piece.dtype.kind == "f" for piece in pieces) or not sum(map(len, pieces)):
        return []
    found = np.unique(np.concatenate([np.unique(piece) for piece in pieces]))
    found = found[found >= 0]
    top = int(found.max(initial=0)) + 1
    if len(found) in (0, top) or (pieces[0].ndim == 2 and top <= 2):
        return []
    empty = top - len(found)
    if found[0] == 1 and empty == 1:
        return [
            f"labels count from 1, so class 0 of the {top} classes is empty: give y - 1, or classes = {top} if that "
            "is meant"
        ]
    first = [str(k) for k in np.setdiff1d(np.arange(min(top, 10_000)), found)[:5]]
    return [
        f"{empty} of the {top} classes {'has' if empty == 1 else 'have'} no sample "
        f"({', '.join(first)}{', …' if empty > len(first) else ''}): number the classes 0, 1, 2, … without gaps, or "
        f"give classes = {top} if that is meant"
    ]


def _refuse_doubtful(pieces: Sequence[Array]) -> None:
    """Floats that are classes, and one-hot labels: trained as they are, they would make a model of something else."""
    shape = ("N", *pieces[0].shape[1:])
    floats = any(piece.dtype.kind == "f" for piece in pieces)
    both = all(_is_binary(piece) for piece in pieces) and all(any((p == k).any() for p in pieces) for k in (0, 1))
    if pieces[0].ndim == 2 and pieces[0].shape[1] > 1 and both:
        if all((piece.sum(axis=1) == 1).all() for piece in pieces):
            raise DataError(
                f"y has shape ({shape[0]}, {shape[1]}) with one 1 in each row, so it is one-hot: give "
                "y.argmax(axis=1), or label_type = 'multilabel' if a sample may have several labels"
            )
        if floats:
            raise DataError(
                f"y holds only 0.0 and 1.0 in {shape[1]} columns: give label_type = 'multilabel' if these are labels "
                "that a sample has or not, 'numbers' if they are targets of a regression"
            )
    if floats and all(piece.ndim == 1 or piece.shape[1:] == (1,) for piece in pieces) and _may_be_classes(pieces):
        values = np.unique(np.concatenate([np.unique(piece) for piece in pieces]))
        raise DataError(
            f"y is floats and holds only the whole numbers {listing([f'{value:g}' for value in values])}: give "
            "label_type = 'classes' (or y as integers) for classes, label_type = 'numbers' for a regression"
        )


def _may_be_classes(pieces: Sequence[Array]) -> bool:
    """Whether floats are few different whole numbers, each of them several times."""
    if not all(_is_whole(piece[:1_000]) for piece in pieces) or not all(_is_whole(piece) for piece in pieces):
        return False
    samples, found = sum(map(len, pieces)), np.unique(np.concatenate([np.unique(piece) for piece in pieces]))
    return 1 < len(found) <= _FEW and samples >= 2 * len(found)


def _is_whole(piece: Array) -> bool:
    return piece.dtype.kind != "f" or bool((np.isfinite(piece) & (piece == np.rint(piece))).all())


def _is_binary(piece: Array) -> bool:
    return bool(((piece == 0) | (piece == 1)).all())


def _not_whole(pieces: Sequence[Array]) -> float:
    wrong = next(piece for piece in pieces if not _is_whole(piece)).ravel()
    return float(wrong[~(wrong == np.rint(wrong)) | ~np.isfinite(wrong)][0])


def _least(pieces: Sequence[Array]) -> str:
    return f"{min(piece.min() for piece in pieces if piece.size):g}"


def _most(pieces: Sequence[Array]) -> str:
    return f"{max(piece.max() for piece in pieces if piece.size):g}"
