"""The frozen backbone of a run: named in run.toml by its hash, and never written into the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from personafl.errors import ModelError, PersonaflError, RunError
from personafl.federation.ragged import MASK
from personafl.inputs import Inputs, parts, read_shape, shape_text, whole
from personafl.pretrained.backbone import Backbone
from personafl.pretrained.loading import load
from personafl.pretrained.texts import are_texts
from personafl.states import State

RAW = "raw."
"""What the names of constants begin with that samples need before they go through the backbone."""


@dataclass(frozen=True)
class RawData:
    """What samples are before they go through a run's backbone: shapes and types as run.toml has them; constants."""

    resolved: dict[str, Any]
    constants: State


def run_backbone(path: Path, manifest: Mapping[str, Any], given: nn.Module | str | Path | None) -> Backbone:
    """The backbone that a run was trained on: as given, or from where it was; an error where it is another."""
    table = manifest.get("backbone")
    if not isinstance(table, dict):
        raise RunError(f"{path} has no backbone: its models take samples as they are")
    backbone = _found(path, manifest, given) if given is None or isinstance(given, str | Path) else given
    if not isinstance(backbone, Backbone):
        backbone = Backbone(backbone, name=table["name"], pooling=table["pooling"], normalize=table["normalize"])
    if backbone.sha256 != table["sha256"]:
        raise ModelError(
            f"{path} was trained on features of {table['name']} with the SHA-256 {table['sha256']}, and this backbone "
            f"has {backbone.sha256}: give the same weights"
        )
    for key in ("pooling", "normalize"):
        if backbone.table()[key] != table[key]:
            here = backbone.table()[key]
            raise ModelError(f"{path} was trained on features with {key} = {table[key]!r}, this backbone has {here!r}")
    if "raw" not in manifest["resolved"]:  # of a real federation, whose samples only its sites know
        return backbone
    shape = tuple(backbone.features(example_of(manifest["resolved"]["raw"])).shape[1:])
    wanted = read_shape(manifest["resolved"]["input_shape"])
    if shape != wanted:
        raise ModelError(
            f"backbone {backbone.name} gives features of shape {shape}, the models of {path} take {shape_text(wanted)}"
        )
    return backbone


def _found(path: Path, manifest: Mapping[str, Any], given: str | Path | None) -> Any:
    """A backbone from its file: where the user says, or where it was. The hub is asked for nothing a folder says."""
    table, raw = manifest["backbone"], manifest["resolved"].get("raw", {})
    give = f"give it, load_run({str(path)!r}, backbone=…) in Python, --backbone PATH on the command line"
    where = given or raw.get("path")
    what = f"{path} was trained on features of {table['name']} (SHA-256 {table['sha256'][:12]}…)"
    if where is None or (given is None and raw.get("kind") == "module"):
        raise RunError(f"{what}: {give}")
    if not Path(where).expanduser().exists():
        raise RunError(f"{what}, and there is no {where}: {give}")
    try:
        return load(where, name=table["name"], pooling=table["pooling"], normalize=table["normalize"])
    except PersonaflError as error:
        raise RunError(f"{what}: {error}") from error


def example_of(resolved: Mapping[str, Any]) -> Inputs:
    """Two samples: a program exported with one would take its batch size for a constant.

    Zeros, but for masks: a sample of which nothing is real would divide by zero.
    """
    shapes, dtypes = parts(read_shape(resolved["input_shape"])), parts(resolved["input_dtype"])
    return whole(
        {
            name: (torch.ones if name.endswith(MASK) else torch.zeros)((2, *shape), dtype=getattr(torch, dtypes[name]))
            for name, shape in shapes.items()
        }
    )


def with_tokens(x: Any, raw: RawData, backbone: Callable[[], Backbone]) -> Any:
    """Texts as the tokens that the run's backbone reads; anything else as it is."""
    if not are_texts(x):
        return x
    shapes = read_shape(raw.resolved.get("input_shape", ()))
    length = shapes["input_ids"][0] if isinstance(shapes, dict) and "input_ids" in shapes else None
    return backbone().tokenize(x, length)


def pairs_with_tokens(brought: Any, raw: RawData, backbone: Callable[[], Backbone]) -> Any:
    """As `with_tokens`, of (x, y) or of such for each split."""
    if isinstance(brought, Mapping):
        return {split: pairs_with_tokens(each, raw, backbone) for split, each in brought.items()}
    if isinstance(brought, tuple | list) and len(brought) == 2:
        return with_tokens(brought[0], raw, backbone), brought[1]
    return brought
