"""A frozen backbone: a module with a name and a hash that makes one array of features of a batch of samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from personafl.errors import ConfigError, ModelError
from personafl.inputs import Inputs, Shape, described, written_shape
from personafl.plugins import why
from personafl.pretrained.texts import token_arrays
from personafl.states import State

Pooling = Literal["mean", "cls", "pooler", "none"]
"""How the vectors of a sequence become one: their mean over what the mask says is real, the first, what the model makes
of them itself (`pooler_output`), or not at all."""

MASKS = ("attention_mask", "mask")


class Backbone(nn.Module):
    """A module that is computed and never trained; features are float32.

    Parameters
    ----------
    module
        Any module. It is put into `eval()`, and no gradient goes through it.
    name
        What runs call it; left out, the module's class.
    sha256
        Of the file that the weights are from; left out, it is that of the module's `state_dict()`.
    pooling
        For a module that gives an object with `last_hidden_state`, see `Pooling`. A tensor stays as it is.
    normalize
        Whether a sample's features are divided by their length, as sentence-transformers do for some models.
    tokenizer
        A tokenizer of transformers, for texts.
    origin
        What else says what this is: the kind and the path, as a table of a config.

    Examples
    --------
    >>> backbone = Backbone(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), name="small")
    >>> backbone(torch.zeros(5, 3)).shape, backbone.training, len(backbone.sha256)
    (torch.Size([5, 2]), False, 64)
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str | None = None,
        sha256: str | None = None,
        pooling: Pooling = "mean",
        normalize: bool = False,
        tokenizer: Any = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ModelError(f"the backbone is a {type(module).__name__}: give a torch module with its weights")
        self.module, self.tokenizer = module.eval(), tokenizer
        self.name = name or type(module).__name__
        self.sha256 = sha256 or state_hash(module)
        self.pooling, self.normalize = pooling, normalize
        self.origin = dict(origin or {})
        nn.Module.train(self, False)

    def train(self, mode: bool = True) -> Backbone:
        """A backbone stays in `eval()`."""
        return super().train(False)

    def forward(self, *args: Any, **named: Any) -> Tensor:
        with torch.no_grad():
            return self.pooled(*args, **named)

    def pooled(self, *args: Any, **named: Any) -> Tensor:
        """The same with gradients, for adapters inside of the module."""
        features = self._pooled(self.module(*args, **named), named).float()
        return F.normalize(features, dim=1) if self.normalize else features

    def features(self, x: Inputs) -> Tensor:
        """The features of some samples, or an error that says what does not fit."""
        try:
            made: Tensor = self(**x) if isinstance(x, dict) else self(x)
        except ModelError:
            raise
        except Exception as error:  # whatever somebody's module raises
            raise ModelError(f"backbone {self.name} fails on samples {described(x)}: {why(error)}") from error
        rows = len(next(iter(x.values())) if isinstance(x, dict) else x)
        if made.ndim < 2 or len(made) != rows:
            raise ModelError(
                f"backbone {self.name} makes {tuple(made.shape)} of {rows} samples: it must give a vector or an array "
                "of features for each"
            )
        return made

    def tokenize(self, texts: Any, length: int | None = None) -> dict[str, Any]:
        """The `input_ids` and the `attention_mask` of some texts, see `tokenized`."""
        if self.tokenizer is None:
            raise ConfigError(f"backbone {self.name} has no tokenizer: put its files beside the weights")
        return token_arrays(texts, self.tokenizer, length)

    def table(self) -> dict[str, Any]:
        """What run.toml and a federation's orders say of it: which features it gives, and not where it lies."""
        return {"name": self.name, "sha256": self.sha256, "pooling": self.pooling, "normalize": self.normalize}

    @property
    def key(self) -> list[Any]:
        """What features follow from besides the data; the structure counts too, such as a number of heads."""
        config: Any = getattr(self.module, "config", None)
        structure = config.to_json_string() if hasattr(config, "to_json_string") else repr(self.module)
        return [self.sha256, self.pooling, self.normalize, sha256(structure.encode()).hexdigest()]

    def _pooled(self, returned: Any, named: Mapping[str, Any]) -> Tensor:
        if isinstance(returned, Tensor):
            return returned
        if self.pooling == "pooler":
            return self._found(returned, ("pooler_output",))
        if isinstance(returned, tuple | list) and returned:
            returned = {"last_hidden_state": returned[0]}
        hidden = self._found(returned, ("last_hidden_state", "out", "logits"))
        if self.pooling == "none" or hidden.ndim < 3:
            return hidden
        if hidden.ndim > 3:  # pictures: channels first
            return hidden.flatten(2).mean(2)
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = next((named[name] for name in MASKS if name in named), None)
        if mask is None or mask.shape != hidden.shape[:2]:
            return hidden.mean(1)
        real: Tensor = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)

    def _found(self, returned: Any, names: tuple[str, ...]) -> Tensor:
        """The first of these that a module's answer has."""
        for name in names:
            value = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
            if isinstance(value, Tensor):
                return value
        raise ModelError(
            f"backbone {self.name} returns a {type(returned).__name__} without {' or '.join(names)}: it must return a "
            "tensor of features, or an object with last_hidden_state"
        )


@dataclass(frozen=True, eq=False)
class Raw:
    """What the samples of a federation were before they went through a backbone.

    Attributes
    ----------
    backbone
        What they went through.
    shape, dtype
        Of a sample, or of each of its inputs by name.
    fingerprint
        Of the federation as it was.
    constants
        How samples became the backbone's input: means, medians, word vectors.
    """

    backbone: Backbone
    shape: Shape
    dtype: str | dict[str, str]
    fingerprint: str
    constants: State = field(default_factory=dict)

    def resolved(self) -> dict[str, Any]:
        """What run.toml says of it."""
        return {
            "input_shape": written_shape(self.shape),
            "input_dtype": self.dtype,
            "fingerprint": self.fingerprint,
            **self.backbone.origin,
        }


class PretrainedModel(nn.Module):
    """A backbone and a head as one module, which takes what the backbone takes.

    Features are standardized in between where those of the training were.
    """

    def __init__(self, backbone: Backbone, head: nn.Module, constants: Mapping[str, Tensor] = {}) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        for name in ("mean", "std"):
            self.register_buffer(name, constants.get(name))
        self.eval()

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Any:
        features = self.backbone(**named) if x is None else self.backbone(x, **named)
        if self.mean is not None and self.std is not None:
            features = (features - self.mean) / self.std
        return self.head(features)


def state_hash(module: nn.Module) -> str:
    """A SHA-256 of all parameters and buffers, by their names.

    >>> state_hash(nn.Linear(2, 1)) == state_hash(nn.Linear(2, 1))
    False
    """
    digest = sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, Tensor):
            continue
        data = value.detach().cpu().contiguous()
        digest.update(json.dumps([name, str(data.dtype), list(data.shape)]).encode())
        digest.update(data.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
