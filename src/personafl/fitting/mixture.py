"""A module that mixes the predictions of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from personafl.kernels.outputs import logits
from personafl.tasks import LearningTask


class MixedModel(nn.Module):
    """Several models for one client, whose predictions are mixed: of classes the probabilities, else the values.

    Examples
    --------
    >>> from personafl.tasks import Regression
    >>> one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> both = MixedModel([one, two], [0.25, 0.75], Regression())
    >>> x = torch.ones(3, 1)
    >>> bool(torch.allclose(both(x), 0.25 * one(x) + 0.75 * two(x)))
    True
    """

    weights: Tensor

    def __init__(self, models: list[nn.Module], weights: list[float], kind: LearningTask) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.kind = kind
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs = torch.stack([logits(model(*args, **kwargs)) for model in self.models])
        return self.kind.mixed(outputs, self.weights[:, None])
