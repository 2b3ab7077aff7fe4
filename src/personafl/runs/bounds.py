"""Bounds on what a run folder may ask for: a model no larger than its files, settings that end in finite time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from personafl.errors import PersonaflError, RunError
from personafl.storage.folder import RunFolder
from personafl.storage.reading import checked
from personafl.storage.schemas import Described

MOST = 10**6
"""A setting that is a whole number: steps, layers, units. A stranger's run must not train for years."""
_ANY = ("batch_size", "seed")


def check_settings(path: Path, kind: str, table: Any) -> None:
    """Refuse a table of run.toml with absurdly large numbers."""
    for key, value in _numbers(kind, table):
        if isinstance(value, int) and not -MOST <= value <= MOST and key.rpartition(".")[2] not in _ANY:
            raise RunError(f"{path / 'run.toml'}: {key} = {value}: more than {MOST:,} is not taken from a run folder")


def described(file: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What run.toml says of the model, if it says all that it takes to make it again."""
    return dict(checked(manifest["resolved"], Described, file, "resolved"))


def check_size(folder: RunFolder, build: Callable[[], nn.Module]) -> None:
    """Refuse a model that has more parameters than the largest of the folder's files holds, before it takes memory."""
    files = [*folder.models.glob("*.safetensors"), *folder.checkpoints.glob("*.safetensors")]
    held = max((file.stat().st_size for file in files if file.is_file()), default=0) // 2  # two bytes, if not four
    try:
        with torch.device("meta"):
            made = build()
    except PersonaflError:
        raise
    except Exception:  # a model that looks at its own values while it is built cannot be measured first
        return
    count = sum(p.numel() for p in made.parameters() if p.requires_grad)
    if count > held:
        raise RunError(
            f"{folder.path / 'run.toml'}: model and resolved describe {count:,} parameters, more than the files of the "
            "run hold: it is damaged"
        )


def _numbers(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    inner: Iterable[tuple[str, Any]] = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        inner = [("", each) for each in value[:MOST]]
    if not isinstance(value, Mapping | list):
        yield key, value
    for name, each in inner:
        yield from _numbers(f"{key}.{name}".rstrip("."), each)
