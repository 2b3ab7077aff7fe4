"""How alike models are: distances and cosines between them, and the attention-inducing functions A of FedAMP.

Definition 1 of the paper: A grows, is concave and A(0) = 0. With x = t/σ for a squared distance t:

    exp    A = 1 − e^{−x}                                              A′ = e^{−x}/σ
    mcp    A = x − x²/(2a) up to x = a, then a/2                       A′ = (1 − x/a)₊/σ
    scad   A = x up to x = 1, 1 + ((a−1)² − (a−x)²)/(2(a−1)) up to     A′ = min(1, (a − x)₊/(a − 1))/σ
           x = a, then (a+1)/2

`mcp` is the minimax concave penalty (Zhang: Nearly unbiased variable selection under minimax concave penalty. Annals of
Statistics 2010), `scad` the smoothly clipped absolute deviation (Fan, Li: Variable selection via nonconcave penalized
likelihood. JASA 2001), both with their λ = 1, of the distance in units of σ. So A′(0) = 1/σ for all three, and one
bound on α_k holds for all. Beyond x = a the last two are constant: such models do not attend to each other at all.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Attention = Literal["exp", "scad", "mcp"]

COLUMNS = 1024
"""Parameters of all models that are compared at once; anything from 256 to 4,096 takes the same time."""


def attention(kind: Attention, x: Tensor, a: float) -> Tensor:
    """A, of squared distances in units of σ.

    >>> attention("mcp", torch.tensor([0.0, 1.0, 9.0]), 2.0).tolist()
    [0.0, 0.75, 1.0]
    """
    if kind == "exp":
        return -torch.expm1(-x)
    far = x.clamp(max=a)
    if kind == "mcp":
        return far - far.square() / (2 * a)
    return torch.where(far <= 1, far, 1 + ((a - 1) ** 2 - (a - far).square()) / (2 * (a - 1)))


def slope_(kind: Attention, x: Tensor, a: float) -> Tensor:
    """σ A′, in place of the distances: with many clients there is room for few matrices of their size.

    >>> slope_("scad", torch.tensor([0.5, 2.0, 9.0]), 3.0).tolist()
    [1.0, 0.5, 0.0]
    """
    if kind == "exp":
        return x.neg_().exp_()
    if kind == "mcp":
        return x.div_(-a).add_(1).clamp_(min=0)
    return x.neg_().add_(a).div_(a - 1).clamp_(0, 1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² by the matrix product of a and b, a block of columns at a time, so that no copy is larger than that.

    Each block is centred first: models are close to each other and far from 0.
    """
    products, of_a, of_b = a.new_zeros(len(a), len(b)), a.new_zeros(len(a), 1), a.new_zeros(len(b))
    for columns in zip(a.split(COLUMNS, 1), b.split(COLUMNS, 1), strict=True):
        centre = columns[0].mean(0)
        x, y = (block - centre for block in columns)
        products.addmm_(x, y.T)
        of_a += torch.linalg.vecdot(x, x)[:, None]
        of_b += torch.linalg.vecdot(y, y)
    return products.mul_(-2).add_(of_a).add_(of_b).clamp_(min=0.0)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the angle between a_i and b_j."""
    of_a, of_b = (torch.linalg.vector_norm(vectors, dim=1).clamp(min=1e-12) for vectors in (a, b))
    found: Tensor = (a @ b.T).div_(of_a[:, None]).div_(of_b)
    return found
