"""A column of texts as the tokens of a pretrained model's tokenizer, in two columns of lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from personafl.errors import ConfigError, DataError
from personafl.federation.tabular_files import Table
from personafl.pretrained.texts import token_lists

TOKENS = ("input_ids", "attention_mask")


def with_tokens(table: Table, column: str, tokenizer: Any, length: int | None) -> Table:
    """The same table, with `input_ids` and `attention_mask` in place of the texts; each batch of rows is read once."""
    if column not in table.schema.names:
        raise DataError(f"{table.where} has no column {column!r} (text); its columns: {', '.join(table.schema.names)}")
    others = [field for field in table.schema if field.name != column]
    kinds = (pa.list_(pa.int64()), pa.list_(pa.uint8()))
    schema = pa.schema([*others, *(pa.field(name, kind) for name, kind in zip(TOKENS, kinds, strict=True))])

    def read(columns: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in columns if name not in TOKENS]
        asked = [*wanted, column] if len(wanted) < len(columns) else wanted
        start = 0
        for batch in table.read(asked, [name for name in numbers if name not in TOKENS]):
            found: dict[str, Any] = {name: batch.column(name) for name in wanted}
            if len(wanted) < len(columns):
                texts = _texts(batch.column(column), f"{table.where}: column {column!r}", start)
                lists = token_lists(texts, tokenizer, length)
                found |= {name: pa.array(lists[name], kind) for name, kind in zip(TOKENS, kinds, strict=True)}
            start += batch.num_rows
            yield pa.RecordBatch.from_pydict({name: found[name] for name in columns})

    return replace(table, schema=schema, read=read)


def tokenizer_of(backbone: Any) -> Any:
    """The tokenizer of a backbone, or what is a tokenizer already."""
    found = getattr(backbone, "tokenizer", backbone)
    if not callable(found):
        raise ConfigError("text needs a tokenizer: give a backbone that has one, as pf.pretrained.load finds it")
    return found


def text_features(features: Any) -> dict[str, Any]:
    """The inputs of a table with texts: the tokens, and others where they have names."""
    if features is not None and not isinstance(features, Mapping):
        raise ConfigError("with text, features must be a table of inputs by name, such as {numbers = ['age']}")
    return {**(features or {}), **{name: name for name in TOKENS}}


def _texts(column: pa.Array, where: str, start: int) -> list[str]:
    texts: list[str] = column.to_pylist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            what = "no value" if text is None else f"{text!r}, which is no text"
            raise DataError(f"{where} has {what} in row {start + row + 1}; fill it in, or leave out the row")
    return texts
