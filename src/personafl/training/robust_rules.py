"""Robust rules as functions of K answers and their weights: what can stand in the place of a mean, or before it.

A rule has rows (K, …), one for each client, and weights (K,) above 0. All of it is in double precision, by blocks of
columns where a whole copy would be large. `training/robust.py` says where in a round each is used.

- `shrinking`       min(1, c · median ‖Δ‖ / ‖Δ_i‖), what an update is multiplied by;
- `weighted_median` of each coordinate;
- `trimmed_mean`    of each coordinate, without a share of the weight at both ends (Yin et al., ICML 2018);
- `geometric_median` argmin_z Σ w_i ‖x_i − z‖, by Weiszfeld's iteration with Vardi and Zhang's step at data points
  (PNAS 2000), on the matrix of inner products (Pillutla et al., IEEE TSP 2022, propose it for federated learning);
- `krum`            who is nearest to its n − f − 2 nearest others (Blanchard et al., NeurIPS 2017).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COLUMNS = 2**14
"""Coordinates that are looked at at once."""
TIE = 1e-12
"""Shares of the weight that differ by less than this are the same."""
SAME = 1e-7
"""Points that are closer than this share of their distance from the middle are one: rounding tells no more."""
ITERATIONS = 10_000


def shrinking(norms: Tensor, factor: float) -> Tensor:
    """Factors that make no update longer than `factor` times the median length.

    Of an even number of answers the median is the lower of the two in the middle: half of them cannot raise it.

    >>> shrinking(torch.tensor([1.0, 2.0, 8.0, 3.0]), 2.0).tolist()
    [1.0, 1.0, 0.5, 1.0]
    """
    most = factor * norms.double().median()
    return torch.where(norms > most, most / norms.double(), 1.0)


def weighted_median(rows: Tensor, weights: Tensor) -> Tensor:
    """Of each coordinate the value with half of the weight on either side; of two such values the middle.

    >>> weighted_median(torch.tensor([[1.0], [2.0], [9.0], [100.0]]), torch.ones(4)).tolist()
    [5.5]
    >>> weighted_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 3.0])).tolist()
    [9.0]
    """

    def middle(values: Tensor, upto: Tensor, each: Tensor) -> Tensor:
        lower = (upto < 0.5 - TIE).sum(-1, keepdim=True)
        upper = (upto <= 0.5 + TIE).sum(-1, keepdim=True)
        return (values.gather(-1, lower) + values.gather(-1, upper.clamp(max=values.shape[-1] - 1))).squeeze(-1) / 2

    return _by_coordinate(rows, weights, middle)


def trimmed_mean(rows: Tensor, weights: Tensor, trim: float) -> Tensor:
    """Of each coordinate the mean without the lowest and the highest values, a share `trim` of the weight at each end.

    Whose weight is only partly within counts with that part.

    >>> trimmed_mean(torch.tensor([[-50.0], [1.0], [2.0], [3.0], [100.0]]), torch.ones(5), 0.2).tolist()
    [2.0]
    """

    def inner(values: Tensor, upto: Tensor, each: Tensor) -> Tensor:
        share = (upto.clamp(max=1 - trim) - (upto - each).clamp(min=trim)).clamp(min=0)
        return (share * values).sum(-1) / share.sum(-1)

    return _by_coordinate(rows, weights, inner)


def geometric_median(rows: Tensor, weights: Tensor) -> Tensor:
    """The point whose weighted sum of distances to all rows is least.

    Where several are, as between the two middle ones of points on a line, the mean of those rows.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [0.0, 0.0], [7.0, 9.0]]), torch.ones(3)).tolist()
    [0.0, 0.0]
    """
    flat, weights = rows.reshape(len(rows), -1), (weights / weights.sum()).double()
    share = _geometric_share(_products(flat), weights)
    made = torch.cat([torch.tensordot(share, block.double(), dims=1) for block in flat.split(COLUMNS, 1)])
    return made.to(rows.dtype).reshape(rows.shape[1:])


def krum(rows: Tensor, attackers: int, many: int) -> Tensor:
    """Who is chosen of n: the `many` with the least sum of squared distances to their n − f − 2 nearest others.

    In the order of the rows; of equal ones the first.

    >>> krum(torch.tensor([[0.0], [0.1], [0.3], [50.0], [0.2]]), attackers=1, many=4).tolist()
    [0, 1, 2, 4]
    """
    products, count = _products(rows.reshape(len(rows), -1)), len(rows)
    squares = products.diagonal()
    apart = (squares[:, None] + squares - 2 * products).clamp(min=0)
    apart.fill_diagonal_(torch.inf)  # nobody is its own neighbour
    nearest = apart.sort(1).values[:, : max(count - attackers - 2, 1)]
    return nearest.sum(1).argsort(stable=True)[:many].sort().values


def _by_coordinate(rows: Tensor, weights: Tensor, reduce: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce the K values of each coordinate, in order, with the shares of weight up to each, and of each."""
    flat, shares = rows.reshape(len(rows), -1), weights.double() / weights.double().sum()
    made = []
    for block in flat.split(COLUMNS, 1):
        values, order = block.T.double().sort(-1)
        each = shares[order]
        made.append(reduce(values, each.cumsum(-1), each))
    return torch.cat(made).to(rows.dtype).reshape(rows.shape[1:])


def _products(flat: Tensor) -> Tensor:
    """⟨x_i − m, x_j − m⟩ (K, K), m the median of each coordinate: models are close to each other and far from 0."""
    products = flat.new_zeros(len(flat), len(flat), dtype=torch.float64)
    for block in flat.split(COLUMNS, 1):
        centred = block.double() - block.double().median(0).values
        products.addmm_(centred, centred.T)
    return products


def _geometric_share(products: Tensor, weights: Tensor) -> Tensor:
    """The weights a, which add up to 1, with which Σ a_i x_i is the geometric median."""
    squares = products.diagonal()
    apart = (squares[:, None] + squares - 2 * products).clamp(min=0).sqrt()
    other = apart > SAME * torch.maximum(squares[:, None], squares).sqrt()
    pulls = torch.where(other, weights / apart, 0.0)  # row k: of all on a point at x_k
    towards = pulls - torch.diag(pulls.sum(1))  # Σ_i w_i (x_i − x_k)/d_ik as weights of the rows
    force = torch.linalg.vecdot(towards @ products, towards).clamp(min=0).sqrt()
    own = torch.where(other, 0.0, weights).sum(1)
    best: Tensor = force <= own * (1 + 1e-9)
    if best.any():  # no more than their own weight pulls at them
        return best.double().div(best.sum())
    share = weights
    for _ in range(ITERATIONS):
        before, place = share, share @ products @ share
        distance = (squares - 2 * products @ share + place).clamp(min=0).sqrt()
        there = distance > SAME * torch.maximum(squares, place).sqrt()
        pull = torch.where(there, weights / distance, 0.0)
        share = pull / pull.sum()
        if not there.all():  # at a row that is not the best: away from it, as far as its own weight lets
            row = int((~there).nonzero()[0, 0])
            hold = own[row] / force[row]
            share = (1 - hold) * share
            share[row] += hold
        if (share - before).abs().max() <= 1e-14:
            break
    return share
