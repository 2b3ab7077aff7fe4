"""A module that mixes the predictions of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from personafl.fitting.choice import Floats
from personafl.kernels.outputs import logits
from personafl.kernels.task import Task
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


def stacked_mixtures(tasks: Sequence[Task], thetas: Sequence[Tensor], weights: Floats) -> dict[str, Tensor]:
    """The tensors of K clients' mixtures, as `MixedModel` names them, with an axis for the clients in front.

    Parameters
    ----------
    tasks, thetas
        Of the F models: what their parameters mean, and the parameters (K, P), or of one model for everybody (P,).
    weights
        Of each model for each client (K, F).
    """
    tensors: dict[str, Tensor] = {}
    for place, (task, theta) in enumerate(zip(tasks, thetas, strict=True)):
        theta = theta.expand(len(weights), -1) if theta.dim() == 1 else theta
        prefix = f"models.{place}." if len(tasks) > 1 else ""
        tensors |= {f"{prefix}{name}": value for name, value in task.state_dict(theta).items()}
    if len(tasks) > 1:
        tensors["weights"] = torch.from_numpy(weights.astype(np.float32))
    return tensors


def mixed_outputs(kind: LearningTask, outputs: Tensor, weights: Floats) -> Tensor:
    """Predictions of F models (F, N, …), mixed with the weights of each sample (N, F).

    A model alone stays as it is, to the bit.
    """
    shares = torch.from_numpy(weights.T.astype(np.float32))
    if len(outputs) == 1:
        return outputs[0]
    if bool((shares.max(0).values == 1).all()):
        return outputs[shares.argmax(0), torch.arange(outputs.shape[1])]
    return kind.mixed(outputs, shares)
