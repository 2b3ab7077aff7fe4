"""What a model is: settings that build an `nn.Module` for a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from torch import Tensor, nn

from personafl.errors import ModelError


class Model(Protocol):
    """Settings of a model: a frozen dataclass."""

    name: ClassVar[str]

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """A module for samples of this shape with this many outputs.

        `constants` are constants that the data set brings along for all clients, such as word vectors.
        """
        ...


def misfit(model: str, expected: str, shape: Sequence[int]) -> ModelError:
    """The error for samples that a model cannot read."""
    return ModelError(f"model {model} takes {expected}; this data has samples of shape {tuple(shape)}")
