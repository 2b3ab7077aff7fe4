"""Backbones from files: transformers, ONNX, state dicts. Nothing pickled is read and no code of a file is run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.files import checksum
from personafl.plugins import why
from personafl.pretrained.backbone import Backbone, Pooling
from personafl.registry import imported
from personafl.settings import check

Kind = Literal["transformers", "onnx", "module"]


@dataclass(frozen=True)
class BackboneSettings:
    """A frozen backbone, as the table [backbone] of a config describes it.

    Parameters
    ----------
    path
        A folder as `save_pretrained` of transformers writes it, with safetensors; a file .onnx; or, with `module`, a
        state dict (.safetensors, .pt, .pth). A relative path starts at the working directory.
    name
        What runs call it; left out, the last part of the path. Without a path: its name on the Hugging Face hub.
    kind
        `transformers`, `onnx` or `module`; left out, by the path.
    module
        Of a state dict: "package.module:Name", a class or a function without arguments that makes the module.
    sha256
        What the file of the weights must have; left out, it is not compared.
    pooling, normalize
        How the vectors of a sequence become one, see `Backbone`.
    batch_size, device
        Of the pass that computes the features.
    """

    path: str | None = None
    name: str | None = None
    kind: Kind | None = None
    module: str | None = None
    sha256: str | None = None
    pooling: Pooling = "mean"
    normalize: bool = False
    batch_size: int = 64
    device: str = "cpu"

    def __post_init__(self) -> None:
        given = self.path is not None or self.name is not None
        check("backbone.path", self.path, given, "a folder or a file of weights; or give name, as on the hub")
        check("backbone.batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        hexadecimal = self.sha256 is None or (len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef"))
        check("backbone.sha256", self.sha256, hexadecimal, "64 of the characters 0 to 9 and a to f")
        check("backbone.module", self.module, self.kind in (None, "module") or self.module is None, "of kind 'module'")

    def load(self) -> Backbone:
        """The backbone, its weights compared with the hash. A path that is not there is never asked of the hub."""
        if self.path is not None and not Path(self.path).expanduser().exists():
            raise ConfigError(
                f"backbone.path = {self.path!r}: there is no such file or folder; a relative path starts at the "
                "working directory; for the Hugging Face hub give name alone"
            )
        return load(
            self.path or str(self.name),
            kind=self.kind,
            module=None if self.module is None else made_module(self.module),
            name=self.name,
            sha256=self.sha256,
            pooling=self.pooling,
            normalize=self.normalize,
        )


def load(
    path: str | Path,
    *,
    module: nn.Module | None = None,
    kind: Kind | None = None,
    name: str | None = None,
    sha256: str | None = None,
    pooling: Pooling = "mean",
    normalize: bool = False,
    revision: str | None = None,
) -> Backbone:
    """A frozen backbone from a file or a folder.

    Parameters
    ----------
    path
        A folder with a model of transformers (config.json and safetensors, and where it reads texts its tokenizer); a
        file .onnx; with `module`, a state dict (.safetensors, .pt, .pth, read with `weights_only`). What is neither a
        file nor a folder is a name on the Hugging Face hub, as in "sentence-transformers/all-MiniLM-L6-v2".
    module
        What a state dict belongs to; it is given these weights.
    kind, name, sha256, pooling, normalize
        As in `BackboneSettings`.
    revision
        Of the hub: a branch, tag or commit.
    """
    file = Path(path).expanduser()
    kind = kind or _kind_of(file, module)
    if kind == "transformers":
        from personafl.pretrained.huggingface import hub_folder, read_model, read_tokenizer, weights_hash

        folder = file if file.is_dir() else hub_folder(str(path), revision)
        found = weights_hash(folder)
        _check_hash(found, sha256, folder)
        module, tokenizer = read_model(folder), read_tokenizer(folder)
        name = name or (file.resolve().name if file.is_dir() else str(path))
    else:
        if not file.is_file():
            raise ConfigError(f"backbone {name or file.name}: there is no file {file}; give the path of its weights")
        found, tokenizer, folder = checksum(file), None, file
        _check_hash(found, sha256, file)
        module = _read_onnx(file) if kind == "onnx" else _with_state(module, file)
        name = name or file.stem
    origin = {"kind": kind, "path": str(folder.resolve())}
    return Backbone(
        module, name=name, sha256=found, pooling=pooling, normalize=normalize, tokenizer=tokenizer, origin=origin
    )


def _kind_of(file: Path, module: nn.Module | None) -> Kind:
    if module is not None:
        return "module"
    if file.suffix == ".onnx":
        return "onnx"
    return "module" if file.is_file() else "transformers"


def _check_hash(found: str, wanted: str | None, where: Path) -> None:
    if wanted is not None and found != wanted:
        raise ConfigError(f"{where} has the SHA-256 {found}, and {wanted} is wanted: these are other weights")


def _read_onnx(file: Path) -> nn.Module:
    from personafl.pretrained.onnx import OnnxModule

    return OnnxModule(file)


def _with_state(module: nn.Module | None, file: Path) -> nn.Module:
    """A module with the weights of a file."""
    if module is None:
        raise ConfigError(f"{file} holds weights and no model: give what they belong to, load({str(file)!r}, module=…)")
    try:
        state: Any = load_file(file) if file.suffix == ".safetensors" else _read_state(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} cannot be read: {why(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{file} is not a state dict: save module.state_dict(), and nothing around it")
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        kind = type(module).__name__
        raise ModelError(f"{file} does not belong to {kind}: {' '.join(str(error).split())[:300]}") from error
    return module


def _read_state(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file makes torch raise: it is a stranger's
        raise ConfigError(
            f"{file} is not a state dict that can be read with weights_only: {why(error)[:200]}"
        ) from error


def made_module(path: str) -> nn.Module:
    """The module that a config names as "package.module:Name"."""
    found = imported(path, "backbone.module")
    try:
        made = found if isinstance(found, nn.Module) else found()
    except Exception as error:  # whatever somebody's class raises
        raise ModelError(f"backbone.module = {path!r} cannot be made without arguments: {why(error)}") from error
    if not isinstance(made, nn.Module) or inspect.isclass(made):
        raise ModelError(f"backbone.module = {path!r} gives a {type(made).__name__}, not a torch module")
    return made
