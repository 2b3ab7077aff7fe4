"""Low-rank adapters by peft in a frozen model of transformers, with a head: what `[model] name = "lora"` builds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from personafl.errors import ConfigError, ModelError
from personafl.plugins import why
from personafl.pretrained.backbone import Backbone, Pooling
from personafl.pretrained.huggingface import package
from personafl.pretrained.loading import load


class AdaptedModel(nn.Module):
    """A backbone with trained adapters inside of it, and a head. The backbone's own dropout stays off."""

    def __init__(self, backbone: Backbone, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
        made: Tensor = self.head(self.backbone.pooled(*args, **named))
        return made


def adapted(
    path: str, sha256: str | None, outputs: int, *, rank: int, alpha: float, targets: Sequence[str], pooling: Pooling
) -> AdaptedModel:
    """The model in a folder with adapters of a rank in the layers whose names end with `targets`.

    Initial weights of adapters and head follow from the state of torch's generator, whatever reading the folder draws.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"model.path = {path!r}: there is no such folder; give one with config.json and safetensors, as "
            "save_pretrained of transformers writes it; a relative path starts at the working directory"
        )
    peft = package("peft", "model lora")
    before = torch.random.get_rng_state()
    backbone = load(folder, kind="transformers", sha256=sha256, pooling=pooling)
    torch.random.set_rng_state(before)
    model: Any = backbone.module
    width = getattr(model.config, "hidden_size", None)
    if not isinstance(width, int):
        raise ModelError(f"{folder}: config.json has no hidden_size, which says how many inputs the head has")
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0)
    try:
        peft.inject_adapter_in_model(settings, model.model)
    except ValueError as error:
        layers = sorted({name.rpartition(".")[2] for name, each in model.model.named_modules() if _linear(each)})
        raise ModelError(
            f"model.targets = {list(targets)}: peft finds no such layers in {folder}, which has the linear layers "
            f"{', '.join(layers)} ({why(error)[:120]})"
        ) from error
    return AdaptedModel(backbone.train(False), nn.Linear(width, outputs))  # peft's layers come in train()


def _linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)
