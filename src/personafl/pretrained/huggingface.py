"""Models and tokenizers of transformers: from a folder, or through the hub's own cache; safetensors only."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.files import checksum
from personafl.plugins import why

_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # nothing pickled, and no code
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


class NamedInputs(nn.Module):
    """A model of transformers for the inputs of a federation: masks are bytes there, and may be called `mask`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = model.config

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        given = {_NAMES.get(name, name): value for name, value in named.items()}
        if "attention_mask" in given:
            given["attention_mask"] = given["attention_mask"].long()
        return self.model(*args, **given)


_NAMES = {"x": "input_ids", "mask": "attention_mask"}


def hub_folder(name: str, revision: str | None = None) -> Path:
    """The folder of a model of the Hugging Face hub, in the hub's own cache; downloaded where it is not there."""
    hub = package("huggingface_hub", f"the backbone {name!r} is no file or folder, and the hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except Exception as error:  # no network, no such model, a name that cannot be one
        raise ConfigError(
            f"backbone {name!r}: there is no such file or folder here, and the Hugging Face hub does not give it: "
            f"{why(error)[:200]}"
        ) from error


def weights_hash(folder: Path) -> str:
    """The SHA-256 of model.safetensors; of several files, of their names and hashes."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"{folder} has no .safetensors: write them with model.save_pretrained(path); nothing pickled is read"
        )
    if len(files) == 1:
        return checksum(files[0])
    return sha256("".join(f"{file.name} {checksum(file)}\n" for file in files).encode()).hexdigest()


def read_model(folder: Path) -> nn.Module:
    """The model in a folder, without the head of its task."""
    transformers = package("transformers", f"the model in {folder}")
    _check_config(folder / "config.json")
    quiet = transformers.utils.logging
    before = quiet.get_verbosity()
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    try:
        model: nn.Module = transformers.AutoModel.from_pretrained(
            str(folder), use_safetensors=True, trust_remote_code=False, local_files_only=True, dtype="float32"
        )
    except Exception as error:  # whatever a file makes transformers raise
        raise ModelError(f"transformers cannot read the model in {folder}: {_first_line(error)}") from error
    finally:
        quiet.set_verbosity(before)
        quiet.enable_progress_bar()
    return NamedInputs(model)


def _check_config(file: Path) -> None:
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {why(error)}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"{file} has no model_type: it is not the config of a model of transformers")


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder; None where there is none."""
    if not any((folder / name).is_file() for name in _TOKENIZER):
        return None
    transformers = package("transformers", f"the tokenizer in {folder}")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(f"transformers cannot read the tokenizer in {folder}: {_first_line(error)}") from error


def package(name: str, what: str) -> Any:
    """A package that is not needed by everybody, or an error that says for what it is."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{what} needs the package {name}: pip install 'personafl[huggingface]'") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
