"""Generic Self-FL without noise: variances known, everybody active, full-batch steps. One round is a linear map.

    θ_m ← (1 − c_m) θ̂_m + c_m [θ − r_m (θ_m − θ)],    θ ← Σ w_m θ_m / Σ w_m        (6), (10), (11)

with r_m = w_m/S_m and c_m = b_m^ℓ_m, what a client keeps of its start: the right side of (8) if ℓ_m may be any real
number.

**The fixed point is neither θ^(FL) nor θ^(G).** (10) has the personal models θ_m where (9) has the optima θ̂_m. By hand,

    θ* = Σ u_m θ̂_m / Σ u_m,    u_m = w_m (1 − c_m)/(1 + c_m r_m)
    θ_m* = [(1 − c_m) θ̂_m + c_m (1 + r_m) θ*] / (1 + c_m r_m)

and with the paper's c_m and r_m, u_m = w_m/(1 + σ_m² Σ_k w_k) instead of w_m: a client that trains little says little
in the aggregate, on top of its small weight. For σ0² = 0 and precisions p_m that sum to 1, the server reaches the
weights p_m²/(1 + p_m) instead of p_m, and the personal models differ by O(p_m), where the θ_m^(FL) are all equal. Under
the assumptions of Proposition 3.1 the gap to θ^(FL) vanishes like M^(−1/2). It is 0 for Algorithm 2, which keeps the
optima: with exact optima it reaches θ^(FL) and θ^(G) in two rounds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl_papers.theory.model import (
    Floats,
    PosteriorName,
    client_weights,
    local_estimates,
    others_weight,
    per_client,
)
from personafl_papers.theory.training import initial_point, retention, shift_ratio


class FixedPoint(NamedTuple):
    """Personal models (M,) or (M, d) and server model () or (d,) that a round leaves as they are."""

    personal: Floats
    server: Floats


class Trajectory(NamedTuple):
    """Personal models (T+1, M[, d]) and server models (T+1[, d]) after 0, 1, … T rounds."""

    personal: Floats
    server: Floats


def fixed_point(
    theta_hat: ArrayLike,
    sigma2: ArrayLike,
    sigma0_2: float,
    *,
    contraction: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    posterior: PosteriorName = "paper",
    algorithm: Literal[1, 2] = 1,
    shift_cap: float = 1.0,
) -> FixedPoint:
    """Where the noiseless iteration ends, by a linear solve: (I − diag(c) A) θ* = diag(1 − c) θ̂.

    A is the matrix of (10), which takes all personal models to all starting points. Its rows are convex combinations,
    so the iteration converges to θ* from anywhere, by the factor max |c_m| a round or faster. A smoothing average of
    the server's model leaves θ* where it is.

    Parameters
    ----------
    theta_hat : array (M,) or (M, d)
        Each client's optimum on its own data.
    sigma2, sigma0_2 : array (M,) and float
        The known variances.
    contraction, steps : float or array (M,), optional
        The factor b_m that one step leaves of the distance to θ̂_m, and the number of steps ℓ_m; c_m = b_m^ℓ_m. For
        full-batch gradient steps on a loss of curvature h, b_m = 1 − ηh (see `theory.training`). With both left out,
        c_m is the right side of (8), as if ℓ_m could be any real number.
    posterior : "paper" or "exact"
        Of which posterior (8) is the rule. It plays no part where `contraction` and `steps` are given.
    algorithm : 1 or 2
        2 starts from, and aggregates, the local optima θ̂_m in place of the personal models.
    shift_cap
        Largest w_m/S_m in (10); `inf` is the paper's rule.

    Examples
    --------
    >>> theta_hat, sigma2 = np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 4.0])
    >>> fixed_point(theta_hat, sigma2, 0.5, contraction=0.9, steps=[3, 3, 2]).personal.round(6)
    array([0.922246, 1.097452, 1.767977])
    >>> simulate(theta_hat, sigma2, 0.5, 0.0, 100, contraction=0.9, steps=[3, 3, 2]).personal[-1].round(6)
    array([0.922246, 1.097452, 1.767977])
    """
    w = client_weights(sigma2, sigma0_2)
    z = local_estimates(theta_hat, len(w))
    c = kept(sigma2, sigma0_2, contraction, steps, posterior)
    own = per_client(1.0 - c, z) * z
    A = mixing(sigma2, sigma0_2, shift_cap)
    if algorithm == 2:
        return FixedPoint(own + per_client(c, z) * (A @ z), (w / w.sum()) @ z)
    if not (np.all((c > -1) & (c <= 1)) and np.any(c < 1)):
        raise ValueError(
            "no client may move away from its optimum and one must come closer: |contraction ** steps| < 1"
        )
    personal = np.asarray(np.linalg.solve(np.eye(len(w)) - c[:, None] * A, own), np.float64)
    return FixedPoint(personal, (w / w.sum()) @ personal)


def simulate(
    theta_hat: ArrayLike,
    sigma2: ArrayLike,
    sigma0_2: float,
    start: ArrayLike,
    rounds: int,
    *,
    contraction: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    posterior: PosteriorName = "paper",
    algorithm: Literal[1, 2] = 1,
    shift_cap: float = 1.0,
    smoothing: float = 1.0,
) -> Trajectory:
    """The iteration itself, round by round and step by step, from `start` for everybody (θ_m^0 = θ^0).

    Parameters
    ----------
    start : float or array (d,)
        θ^0.
    smoothing
        Share of the new aggregate in the server's model: θ^t = (1 − smoothing) θ^{t−1} + smoothing · aggregate.
    theta_hat, sigma2, sigma0_2, contraction, steps, posterior, algorithm, shift_cap
        As for `fixed_point`. Without `contraction` and `steps`, each client takes one step with b_m = c_m.

    Examples
    --------
    >>> simulate([0.0, 2.0], [1.0, 1.0], 0.0, start=0.0, rounds=2).server
    array([0.  , 0.5 , 0.75])
    """
    w = client_weights(sigma2, sigma0_2)
    z = local_estimates(theta_hat, len(w))
    if contraction is None or steps is None:
        factor, count = kept(sigma2, sigma0_2, contraction, steps, posterior), np.ones(len(w))
    else:
        factor = np.broadcast_to(np.asarray(contraction, np.float64), w.shape)
        count = np.broadcast_to(np.asarray(steps), w.shape)
    server = np.broadcast_to(np.asarray(start, np.float64), z.shape[1:])
    personal = np.broadcast_to(server, z.shape)
    remembered = personal
    path = [(personal, server)]
    for _ in range(rounds):
        personal = initial_point(server, remembered, sigma2, sigma0_2, shift_cap)
        for step in range(int(count.max())):
            active = per_client(step < count, z)
            personal = np.where(active, z + per_client(factor, z) * (personal - z), personal)
        remembered = personal if algorithm == 1 else z
        server = (1.0 - smoothing) * server + smoothing * ((w / w.sum()) @ remembered)
        path.append((personal, server))
    return Trajectory(np.stack([p for p, _ in path]), np.stack([s for _, s in path]))


def kept(
    sigma2: ArrayLike,
    sigma0_2: float,
    contraction: ArrayLike | None,
    steps: ArrayLike | None,
    posterior: PosteriorName,
) -> Floats:
    """c_m, what each client keeps of its starting point in a round."""
    ideal = retention(sigma2, sigma0_2, posterior)
    if contraction is None and steps is None:
        return ideal
    if contraction is None or steps is None:
        raise ValueError("contraction and steps go together: give both, or neither for the steps of (8)")
    count = np.asarray(steps)
    if not np.all((count >= 0) & (count == np.floor(count))):
        raise ValueError("steps must be whole numbers, 0 or more")
    kept_now = np.asarray(contraction, np.float64) ** count.astype(np.float64)
    return np.asarray(np.broadcast_to(kept_now, ideal.shape), np.float64)


def mixing(sigma2: ArrayLike, sigma0_2: float, shift_cap: float) -> Floats:
    """A of (10) with (11), (M, M): the clients' starting points are A @ (their models)."""
    w = client_weights(sigma2, sigma0_2)
    r = shift_ratio(sigma2, sigma0_2, shift_cap)
    A = np.outer(1.0 + r, w / w.sum())
    np.fill_diagonal(A, (w - r * others_weight(w)) / w.sum())  # (1 + r) w/Σw − r, for any size of r
    return A
