"""Several models to start from, where a job gives one: for algorithms whose models would otherwise stay alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from personafl.streams import array_key

LEAST = 0.01
"""The standard deviation where the model has none: all of its parameters are the same."""


def several_starts(theta0: Tensor, count: int, sizes: Sequence[int]) -> Tensor:
    """θ0 and `count` − 1 vectors that are drawn: normal numbers, by θ0 and so by the run's seed.

    They have the mean and the standard deviation of each of θ0's pieces (a layer's weights, its biases): what is 0 or 1
    throughout stays so. Where all of θ0 is one number, the standard deviation is 0.01.

    >>> several_starts(torch.tensor([1.0, 1.0, 0.0, 2.0]), 2, (2, 2))[1, :2]
    tensor([1., 1.])
    """
    first = theta0.cpu()
    draw = torch.Generator().manual_seed(array_key(first.numpy()))
    others = [_drawn_like(first, sizes, draw) for _ in range(count - 1)]
    return torch.stack([first, *others]).to(theta0.device)


def _drawn_like(theta0: Tensor, sizes: Sequence[int], draw: torch.Generator) -> Tensor:
    """A vector whose pieces have the means and standard deviations of θ0's."""
    same = bool((theta0 == theta0[0]).all())
    pieces = torch.split(theta0, list(sizes) or len(theta0))
    spreads = [piece.new_tensor(LEAST) if same else piece.std(unbiased=False) for piece in pieces]
    drawn = [
        piece.mean() + std * torch.randn(len(piece), generator=draw) for piece, std in zip(pieces, spreads, strict=True)
    ]
    return torch.cat(drawn)
