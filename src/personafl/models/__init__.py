"""Models by name: frozen dataclasses of their settings that build an `nn.Module` for a data set.

Models made of `nn.Sequential`, linear layers, LSTM layers and activations take the fastest path of the stacked engine;
any other module works too. A package of yours adds more by the entry points `personafl.models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.inputs import Shape, shape_text
from personafl.models.base import Model
from personafl.models.cnn import CNN, FemnistCNN
from personafl.models.linear import MCLR, MLP, LinearModel
from personafl.models.lora import LoRA
from personafl.models.lstm import LSTMModel
from personafl.plugins import why
from personafl.registry import Registry, old_spellings
from personafl.streams import stream_key

__all__ = [
    "CNN",
    "MCLR",
    "MLP",
    "MODELS",
    "FemnistCNN",
    "LSTMModel",
    "LinearModel",
    "LoRA",
    "Model",
    "default_model",
    "initial_weights",
    "initialize",
]

_OWN = [MCLR, MLP, CNN, FemnistCNN, LSTMModel, LinearModel, LoRA]
MODELS = Registry("model", "personafl.models", _OWN, needs=("build",))

__getattr__ = old_spellings(
    __name__, {"Cnn": "CNN", "FemnistCnn": "FemnistCNN", "LstmModel": "LSTMModel", "Mclr": "MCLR", "Mlp": "MLP"}
)


def initialize(model: Model, shape: Shape, outputs: int, seed: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
    """Build a model whose initial weights depend on the seed alone.

    For several inputs, `shape` is the shape of each by its name.

    Raises
    ------
    ModelError
        The model cannot read samples of this shape, or lacks a constant that the data should bring.
    """
    with initial_weights(seed):
        if not isinstance(shape, dict) or getattr(model, "named_inputs", False):
            return model.build(shape, outputs, constants)  # type: ignore[arg-type]
        try:
            return model.build(shape, outputs, constants)  # type: ignore[arg-type]
        except Exception as error:  # of a model that was written for one tensor, whatever it stumbles over
            raise ModelError(
                f"model {model.name} takes one tensor, and this data has the inputs {shape_text(shape)}: name a model "
                f"of yours, [model] name = 'package.module:Name', whose build takes their shapes ({why(error)})"
            ) from error


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Modules that are built inside get weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream_key(seed, "model")) & 0x7FFFFFFFFFFFFFFF)
        yield


def default_model(shape: Shape) -> Model:
    """What is taken for data of one's own where the config names no model: `cnn` for images, else `mlp`.

    >>> default_model((3, 32, 32)).name, default_model((30,)).name
    ('cnn', 'mlp')
    """
    if isinstance(shape, dict):
        raise ConfigError(
            f"this data has the inputs {shape_text(shape)}, and no model is known for these: name one of yours, "
            "[model] name = 'package.module:Name' (docs/your-package.md)"
        )
    is_image = len(shape) == 3 and min(shape[1:]) >= 16  # the least that cnn can read
    return CNN() if is_image else MLP()
