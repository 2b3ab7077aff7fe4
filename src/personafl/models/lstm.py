"""A recurrent model for short texts and other sequences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from personafl.errors import ModelError
from personafl.kernels.recurrent import LastStep, Lstm, WordVectors
from personafl.models.base import misfit
from personafl.settings import check


@dataclass(frozen=True)
class LSTMModel:
    """LSTM layers and a linear layer on the last step's output, over word vectors that are not trained (Self-FL).

    Samples are token ids (steps,) with a table of word vectors (words, features) that the data brings along, or
    vectors (steps, features). Token 0 is padding or an unknown word, and has the vector 0. As in LEAF and FedProx,
    texts are padded at their end to one length, and the output is that of the last step, after the padding.

    Each layer has two bias vectors, as torch's: that is how 2 layers of 256 on 300 features with 2 outputs come to
    1,098,242 parameters.

    >>> sum(p.numel() for p in LSTMModel().build((25, 300), 2).parameters())
    1098242
    """

    hidden: int = 256
    layers: int = 2

    name: ClassVar[str] = "lstm"

    def __post_init__(self) -> None:
        check("model.hidden", self.hidden, self.hidden >= 1, "at least 1")
        check("model.layers", self.layers, self.layers >= 1, "at least 1")

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        """The network for samples of this shape, with so many outputs."""
        if len(shape) not in (1, 2) or 0 in shape:
            raise misfit(self.name, "token ids (steps,) or vectors (steps, features)", shape)
        net: OrderedDict[str, nn.Module] = OrderedDict()
        features = shape[-1]
        if len(shape) == 1:
            table = _table(constants)
            features = table.shape[1]
            net["words"] = WordVectors(table)
        for layer in range(1, self.layers + 1):
            net[f"lstm{layer}"] = Lstm(features, self.hidden)
            features = self.hidden
        net["last"] = LastStep()
        net["output"] = nn.Linear(self.hidden, outputs)
        return nn.Sequential(net)


def _table(constants: Mapping[str, Tensor]) -> Tensor:
    table = constants.get("embedding")
    if table is None:
        raise ModelError("model lstm needs word vectors; data sent140 brings them")
    if table.dim() != 2 or 0 in table.shape:
        raise ModelError(f"model lstm takes word vectors (words, features); these have shape {tuple(table.shape)}")
    if table[0].any():
        raise ModelError("model lstm takes token 0 for padding and unknown words: the first word vector must be 0")
    return table.float()
