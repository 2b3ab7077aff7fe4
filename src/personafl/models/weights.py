"""Warm start: weights from a file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from personafl.errors import ConfigError
from personafl.storage.folder import RunFolder


def load_weights(module: nn.Module, path: Path) -> None:
    """Warm start: give a module the weights of a safetensors file, such as models/global.safetensors of a run."""
    run = RunFolder(path.parent.parent)
    if run.exists and path.exists():  # of a run: it knows what its files must be
        run.check_intact(f"{path.parent.name}/{path.name}")
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model.weights = {str(path)!r} cannot be read: {error}") from None
    wanted = {name: tuple(value.shape) for name, value in module.named_parameters()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    if found != wanted:
        name = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
        raise ConfigError(
            f"model.weights = {str(path)!r} belongs to another model: {name} is {found.get(name, 'missing')} there, "
            f"{wanted.get(name, 'missing')} here"
        )
    module.load_state_dict(state, strict=False)
