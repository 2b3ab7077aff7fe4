"""Models by name: frozen dataclasses of their settings that build an `nn.Module` for a data set.

Models made of `nn.Sequential`, linear layers, LSTM layers and activations take the fastest path of the stacked engine;
any other module works too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from personafl.models.base import Model
from personafl.models.cnn import CNN, FEMNISTCNN
from personafl.models.linear import MCLR, MLP, LinearModel
from personafl.streams import stream_key
from personafl_papers.models.lstm import LSTMModel
from personafl_papers.models.wakeword import WakewordCNN

__all__ = [
    "DEFAULT_MODEL", "MODELS", "CNN", "FEMNISTCNN", "LinearModel", "LSTMModel", "MCLR", "MLP", "Model", "WakewordCNN",
    "initialize",
]  # fmt: skip

MODELS: dict[str, type[Model]] = {
    model.name: model for model in (MCLR, MLP, CNN, FEMNISTCNN, LSTMModel, WakewordCNN, LinearModel)
}

DEFAULT_MODEL = {
    "digits": "mlp",
    "gaussian": "linear",
    "synthetic": "mclr",
    "mnist": "mclr",
    "fmnist": "mlp",
    "emnist": "mclr",
    "letters": "mclr",
    "cifar10": "cnn",
    "cifar100": "cnn",
    "sent140": "lstm",
    "wakeword": "wakeword-cnn",
}
"""What is taken for a data set where the config names no model."""


def initialize(
    model: Model, shape: Sequence[int], outputs: int, seed: int, tables: Mapping[str, Tensor] = {}
) -> nn.Module:
    """Build a model whose initial weights depend on the seed alone.

    Raises
    ------
    ModelError
        The model cannot read samples of this shape, or lacks a table that the data should bring.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream_key(seed, "model")) & 0x7FFFFFFFFFFFFFFF)
        return model.build(shape, outputs, tables)
