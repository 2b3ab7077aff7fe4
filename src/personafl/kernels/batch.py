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
