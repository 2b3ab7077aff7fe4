"""LoRA in a pretrained model of transformers: the one model by name whose weights are mostly somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from personafl.errors import ConfigError
from personafl.inputs import Shape
from personafl.settings import check


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters (Hu et al. 2022) in a frozen model of transformers, and a linear head.

    Parameters
    ----------
    path
        The folder of the model: config.json and safetensors. It is read, and never written or sent.
    sha256
        What its weights must have, as in `[backbone]`; left out, it is not compared.
    rank, alpha
        Of the adapters: what is added to a layer is alpha / rank times a product of two matrices.
    targets
        How the names of the layers end that get adapters.
    pooling
        How the vectors of a sequence become one: their mean, the first, or the model's own.
    """

    path: str = ""
    sha256: str | None = None
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")
    pooling: Literal["mean", "cls", "pooler"] = "mean"

    name: ClassVar[str] = "lora"
    named_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check("model.rank", self.rank, 1 <= self.rank <= 1024, "from 1 to 1024")
        check("model.alpha", self.alpha, self.alpha > 0, "above 0")
        check("model.targets", self.targets, len(self.targets) > 0, "names of layers, such as query and value")

    def build(self, shape: Shape, outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        if not self.path:
            raise ConfigError("model.path is missing: model lora needs the folder of a pretrained model")
        from personafl.pretrained.lora import adapted

        return adapted(
            self.path, self.sha256, outputs, rank=self.rank, alpha=self.alpha, targets=self.targets,
            pooling=self.pooling,
        )  # fmt: skip
