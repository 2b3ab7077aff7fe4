"""A parameter vector in two parts: what is shared, and what stays with the client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pieces:
    """Sizes of the pieces of a vector, in order, and whether each stays with the client.

    >>> pieces = Pieces(((2, False), (1, True), (1, False)))
    >>> shared, own = pieces.split(torch.arange(4))
    >>> shared, own, pieces.join(shared, own)
    (tensor([0, 1, 3]), tensor([2]), tensor([0, 1, 2, 3]))
    """

    sizes: tuple[tuple[int, bool], ...]

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts of a vector."""
        parts: tuple[list[Tensor], list[Tensor]] = ([theta[:0]], [theta[:0]])
        pieces = torch.split(theta, [size for size, _ in self.sizes])
        for piece, (_, own) in zip(pieces, self.sizes, strict=True):
            parts[own].append(piece)
        return torch.cat(parts[0]), torch.cat(parts[1])

    def join(self, shared: Tensor, own: Tensor) -> Tensor:
        """The vector of both parts."""
        queues = [
            list(torch.split(part, [size for size, mine in self.sizes if mine is kept])) if len(part) else []
            for part, kept in ((shared, False), (own, True))
        ]
        return torch.cat([queues[mine].pop(0) for _, mine in self.sizes])
