"""Texts as the numbers of their tokens, made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from personafl.errors import DataError

_LONGEST = 512  # where a tokenizer does not know what its model can read


def tokenized(data: Mapping[Any, Any], backbone: Any, length: int | None = None) -> dict[Any, Any]:
    """The texts of clients as `input_ids` and `attention_mask`, for `Federation.from_clients`.

    Parameters
    ----------
    data
        {id: (texts, y)}, or {id: {"train": (texts, y), …}}.
    backbone
        A `Backbone` with a tokenizer, such as `load` finds beside a model of transformers.
    length
        So many tokens of a text are used at the most; left out, as many as the model can read. Shorter texts are padded
        to the longest of all.

    Returns
    -------
    The same with {"input_ids": int64 (N, tokens), "attention_mask": uint8 (N, tokens)} in place of the texts.
    """
    texts = [text for each, _ in _pairs(data) for text in each]
    arrays = backbone.tokenize(texts, length)
    end = 0

    def rows(brought: Any) -> Any:
        nonlocal end
        start, end = end, end + len(brought[0])
        return {name: value[start:end] for name, value in arrays.items()}, brought[1]

    return {
        client: {split: rows(each) for split, each in brought.items()}
        if isinstance(brought, Mapping)
        else rows(brought)
        for client, brought in data.items()
    }


def token_arrays(texts: Any, tokenizer: Any, length: int | None = None) -> dict[str, Any]:
    """The tokens of some texts, padded to the longest."""
    listed = [str(text) if isinstance(text, np.str_) else text for text in texts]
    if wrong := [text for text in listed if not isinstance(text, str)]:
        raise DataError(f"texts hold a {type(wrong[0]).__name__}, {str(wrong[0])[:40]!r}: give strings")
    if not listed:
        raise DataError("there are no texts to make tokens of")
    made = tokenizer(listed, padding=True, truncation=True, max_length=_most(tokenizer, length), return_tensors="np")
    return {
        "input_ids": made["input_ids"].astype(np.int64),
        "attention_mask": made["attention_mask"].astype(np.uint8),
    }


def token_lists(texts: list[str], tokenizer: Any, length: int | None = None) -> dict[str, list[list[int]]]:
    """The tokens of some texts, each as long as it is."""
    made = tokenizer(texts, padding=False, truncation=True, max_length=_most(tokenizer, length))
    return {name: list(made[name]) for name in ("input_ids", "attention_mask")}


def _most(tokenizer: Any, length: int | None) -> int:
    """How many tokens of a text are used."""
    known = int(tokenizer.model_max_length)
    return min(length or known, known) if known < 1_000_000 else length or _LONGEST


def are_texts(x: Any) -> bool:
    """Whether samples are texts, and not numbers.

    >>> are_texts(["so it is"]), are_texts([[1.0], [2.0]]), are_texts(np.array(["so"]))
    (True, False, True)
    """
    if isinstance(x, np.ndarray):
        return bool(x.dtype.kind == "U")
    return isinstance(x, list | tuple) and bool(x) and all(isinstance(text, str) for text in x)


def _pairs(data: Mapping[Any, Any]) -> Iterator[Any]:
    """(texts, y) of each client, or of each of its splits."""
    for client, brought in data.items():
        for each in brought.values() if isinstance(brought, Mapping) else [brought]:
            if not isinstance(each, tuple | list) or len(each) != 2 or not are_texts(each[0]):
                raise DataError(f"client {client!r} must bring (texts, y), or a mapping of splits to (texts, y)")
            yield each
