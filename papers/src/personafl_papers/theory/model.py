"""The two-level Gaussian model (1): the clients' weights, and what the others know together."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)
PosteriorName = Literal["paper", "exact"]

SMALLEST_VARIANCE = 1e-30
"""Variances below, 0 among them, count as this much: perfect knowledge, without dividing by zero."""

LARGEST_VARIANCE = 1e30
"""Variances above, infinity among them, count as this much: no knowledge, without 0 · ∞."""


class Prior(NamedTuple):
    """What is known of θ_0 before any data: θ_0 ~ N(mean, 1/precision)."""

    mean: ArrayLike
    precision: float


FLAT = Prior(0.0, 0.0)
"""The paper's: nothing is known."""


def client_weights(sigma2: ArrayLike, sigma0_2: float) -> Floats:
    """The weight of each client in the global model, w_m = 1/(σ0² + σ_m²), as in (2) and (11).

    Parameters
    ----------
    sigma2 : array (M,)
        Variances within clients σ_m²: how uncertain each θ̂_m is.
    sigma0_2
        Variance between clients σ0².

    Examples
    --------
    >>> client_weights([1.0, 3.0], sigma0_2=1.0)
    array([0.5 , 0.25])
    """
    return 1.0 / (inter_variance(sigma0_2) + intra_variances(sigma2))


def others_weight(weights: ArrayLike) -> Floats:
    """S_m = Σ_{k≠m} w_k for each client: the precision with which the others together know θ_0.

    Summed without subtracting w_m from the total, which would lose S_m next to a client of overwhelming weight.

    Examples
    --------
    >>> others_weight([1e30, 1.0, 2.0])
    array([3.e+00, 1.e+30, 1.e+30])
    >>> others_weight([5.0])
    array([0.])
    """
    return _sum_of_others(np.asarray(weights, np.float64))


def others_mean(values: ArrayLike, weights: ArrayLike, prior: Prior = FLAT) -> Floats:
    """Σ_{k≠m} w_k x_k / S_m for each client, as in (7), or with a prior among them; a single client has its own x.

    Parameters
    ----------
    values : array (M,) or (M, d)
        One x_k a client.
    weights : array (M,)
        One w_k a client, as of `client_weights`.

    Examples
    --------
    >>> others_mean([0.0, 1.0, 2.0], [1.0, 1.0, 3.0])
    array([1.75, 1.5 , 0.5 ])
    """
    x, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    S = others_weight(w) + prior.precision
    if len(w) == 1 and not prior.precision:
        return x.copy()
    known = _sum_of_others(per_client(w, x) * x) + prior.precision * np.asarray(prior.mean, np.float64)
    return np.asarray(known / per_client(S, x), np.float64)


def precision_from_others(others: ArrayLike, sigma0_2: float, posterior: PosteriorName = "paper") -> Floats:
    """The precision about θ_m that the other clients bring: S_m (paper), or 1/(σ0² + 1/S_m) (exact).

    The others know θ_0 with precision S_m. The paper's (3) takes θ_m for θ_0; the exact posterior adds the variance σ0²
    between the two, so that it never exceeds 1/σ0², however many clients there are.

    Parameters
    ----------
    others : array (M,)
        S_m, as of `others_weight`; or over whatever clients S_m is meant to count.

    Examples
    --------
    >>> precision_from_others([4.0, 0.0], sigma0_2=1.0, posterior="paper")
    array([4., 0.])
    >>> precision_from_others([4.0, 0.0], sigma0_2=1.0, posterior="exact")
    array([0.8, 0. ])
    """
    S = np.asarray(others, np.float64)
    if posterior not in get_args(PosteriorName):
        raise ValueError(f"there is no posterior {posterior!r}, only paper and exact")
    return S.copy() if posterior == "paper" else np.asarray(S / (1.0 + inter_variance(sigma0_2) * S), np.float64)


def relative_precision(sigma2: ArrayLike, sigma0_2: float, posterior: PosteriorName, prior: Prior = FLAT) -> Floats:
    """σ_m² S, S = `precision_from_others`: what the others know of θ_m, in units of what client m knows itself."""
    others = others_weight(client_weights(sigma2, sigma0_2)) + prior.precision
    return intra_variances(sigma2) * precision_from_others(others, sigma0_2, posterior)


def intra_client_variance(v2: ArrayLike, samples: ArrayLike) -> Floats:
    """General parametric models (preprint section 2.2): σ_m² = v_m²/N_m, to be used as `sigma2` everywhere.

    Client m fits its N_m samples by minimizing L_m(θ) = Σ_i loss(sample_i, θ). Its optimum θ̂_m is asymptotically
    normal, √N_m (θ̂_m − θ_m) → N(0, v_m²), which makes it the "data" of model (1).

    Parameters
    ----------
    v2 : float or array (M,)
        v_m²: for a negative log-likelihood, the inverse Fisher information of one sample.
    samples : array (M,)
        N_m.

    Examples
    --------
    Samples of N(θ_m, 0.1) have v_m² = 0.1:

    >>> intra_client_variance(0.1, [10, 20])
    array([0.01 , 0.005])
    """
    n = np.asarray(samples, np.float64)
    if not np.all(n >= 1):
        raise ValueError("samples must be at least 1 for each client")
    return intra_variances(np.broadcast_to(np.asarray(v2, np.float64) / n, n.shape))


def intra_variances(sigma2: ArrayLike) -> Floats:
    """σ_m² as a checked (M,) array, within the smallest and the largest variance."""
    variances = np.asarray(sigma2, np.float64)
    if variances.ndim != 1 or len(variances) == 0:
        raise ValueError(f"sigma2 has shape {variances.shape}, expected (M,): a variance for each client")
    if not np.all(variances >= 0):
        raise ValueError("sigma2 must be 0 or more for each client: these are variances")
    return np.clip(variances, SMALLEST_VARIANCE, LARGEST_VARIANCE)


def inter_variance(sigma0_2: float) -> float:
    """σ0², checked, at most the largest variance. 0 stays 0: w_m is finite because σ_m² is not 0."""
    if not sigma0_2 >= 0:
        raise ValueError(f"sigma0_2 = {sigma0_2} must be 0 or more: it is a variance")
    return min(float(sigma0_2), LARGEST_VARIANCE)


def local_estimates(theta_hat: ArrayLike, clients: int) -> Floats:
    """θ̂ as a checked (M,) or (M, d) array."""
    estimates = np.asarray(theta_hat, np.float64)
    if estimates.ndim not in (1, 2) or len(estimates) != clients:
        raise ValueError(f"theta_hat has shape {estimates.shape}, expected ({clients},) or ({clients}, d)")
    return estimates


def per_client(values: NDArray[Number], like: Floats) -> NDArray[Number]:
    """(M,) values shaped so that they multiply the rows of `like`, (M,) or (M, d)."""
    return values.reshape(values.shape + (1,) * (like.ndim - 1))


def _sum_of_others(x: Floats) -> Floats:
    """Σ_{k≠m} x_k along the first axis, from what comes before m and what comes after."""
    before, after = np.zeros_like(x), np.zeros_like(x)
    np.cumsum(x[:-1], axis=0, out=before[1:])
    after[:-1] = np.cumsum(x[:0:-1], axis=0)[::-1]
    return before + after
