"""Samples on their way through a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from personafl.inputs import Inputs


@dataclass(frozen=True)
class Batch:
    """Samples of one client (or, with a leading axis on every field, of several).

    `weight` is 1 for a sample and 0 for padding; `key` seeds dropout for this client and step. `expected` is the size
    that batches have on average, where samples are drawn independently (`per_sample`).
    """

    x: Inputs
    y: Tensor
    weight: Tensor
    key: Tensor
    expected: Tensor | None = None

    @property
    def count(self) -> Tensor:
        """How many samples there are, or are on average."""
        return self.weight.sum(-1) if self.expected is None else self.expected.to(self.weight).view(self.key.shape)
