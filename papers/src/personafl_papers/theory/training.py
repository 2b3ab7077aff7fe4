"""How local training reaches the posterior mean: where it starts (7), (10), and how many steps it takes (8).

Client m starts from the others' mean and descends towards its own optimum θ̂_m. If each step leaves the factor b_m of
the distance, then ℓ steps leave b_m^ℓ, and the result is the posterior mean when b_m^ℓ = S/(σ_m⁻² + S), with S = S_m
(paper) or 1/(σ0² + 1/S_m) (exact). So stopping early is the prior.

**What b_m is.** A gradient step of size η on a quadratic loss of curvature h, (h/2)(θ − θ̂_m)², leaves b = 1 − ηh. With
N_m samples of negative log-likelihood (θ − x)²/(2v_m²), and σ_m² = v_m²/N_m:

- the sum over all samples, the paper's local objective (4), has h = N_m/v_m² = 1/σ_m²: b = 1 − η/σ_m², as in (8);
- the mean over all samples has h = 1/v_m² = 1/(N_m σ_m²): b = 1 − η/(B σ_m²) with B = N_m, as in Algorithm 1 [(19)].

So the B of Algorithm 1 belongs to *mean* gradients over a full batch, although the algorithm prints a sum over the
batch, whose b would be 1 − ηB/v_m². With mean gradients over B < N_m samples b is still 1 − η/v_m², and [(19)] holds if
σ_m² is the variance of an estimate from B samples, v_m²/B, rather than from all N_m.

For any other loss, `rate` = 1 − b = ηh. The mean squared error (θ − x)² has h = 2, and b = 1 − 2η whatever the data:
its learning rate η does what η′ = 2v_m² η does with the mean negative log-likelihood.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from personafl_papers.theory.model import (
    Floats,
    PosteriorName,
    client_weights,
    intra_variances,
    local_estimates,
    others_weight,
    per_client,
    relative_precision,
)


def shift_ratio(sigma2: ArrayLike, sigma0_2: float, shift_cap: float = 1.0) -> Floats:
    """w_m/S_m, by which (10) moves the start of client m away from its own parameter; capped, and 0 where S_m = 0.

    Parameters
    ----------
    shift_cap
        Largest ratio. It binds only for a client that outweighs all the others together; `inf` is the paper's rule.

    Examples
    --------
    >>> shift_ratio([1.0, 1.0, 1.0], sigma0_2=0.0), shift_ratio([0.1, 1.0], sigma0_2=0.0)
    (array([0.5, 0.5, 0.5]), array([1. , 0.1]))
    """
    if not shift_cap >= 0:
        raise ValueError(f"shift_cap = {shift_cap} must be 0 or more")
    w = client_weights(sigma2, sigma0_2)
    if len(w) == 1:
        return np.zeros(1)
    return np.minimum(w / others_weight(w), shift_cap)


def initial_point(
    theta: ArrayLike, theta_m: ArrayLike, sigma2: ArrayLike, sigma0_2: float, shift_cap: float = 1.0
) -> Floats:
    """Where each client starts (9), (10) [(12), (13), (18)]: θ_m^INIT = θ − (w_m/S_m)(θ_m − θ).

    If θ is the weighted mean of all θ_m, this is the weighted mean of the others' (7): the client's own part is taken
    out of θ, since its own data come in through training.

    Parameters
    ----------
    theta : float or array (d,)
        The server's model.
    theta_m : array (M,) or (M, d)
        The clients' latest personal models (Algorithm 1) or local optima (Algorithm 2).

    Examples
    --------
    >>> initial_point(1.0, [0.0, 1.0, 2.0], sigma2=[1.0, 1.0, 1.0], sigma0_2=1.0)
    array([1.5, 1. , 0.5])
    """
    ratio = shift_ratio(sigma2, sigma0_2, shift_cap)
    own = local_estimates(theta_m, len(ratio))
    server = np.asarray(theta, np.float64)
    return np.asarray(server - per_client(ratio, own) * (own - server), np.float64)


def retention(sigma2: ArrayLike, sigma0_2: float, posterior: PosteriorName = "paper") -> Floats:
    """The share of its starting point that a client is to keep, the right side of (8): S/(σ_m⁻² + S) = 1 − 1/GAIN_m.

    The posterior mean is (1 − retention) θ̂_m + retention · (mean of the others).

    Examples
    --------
    >>> retention([1.0, 1.0, 1.0], sigma0_2=1.0)
    array([0.5, 0.5, 0.5])
    """
    others = relative_precision(sigma2, sigma0_2, posterior)
    return others / (1.0 + others)


def step_rate(sigma2: ArrayLike, lr: ArrayLike, batch_size: ArrayLike = 1) -> Floats:
    """How much of the way to its optimum a client goes in one step, by the paper: 1 − b_m = η/(B σ_m²).

    See the top of this module for the loss to which this belongs; for a loss of curvature h the rate is ηh.

    Examples
    --------
    >>> step_rate([0.01, 0.005], lr=1e-4)
    array([0.01, 0.02])
    """
    variances = intra_variances(sigma2)
    return np.asarray(np.asarray(lr, np.float64) / (np.asarray(batch_size, np.float64) * variances), np.float64)


def ideal_steps(sigma2: ArrayLike, sigma0_2: float, rate: ArrayLike, posterior: PosteriorName = "paper") -> Floats:
    """The real number ℓ that solves (8) [(19)], (1 − rate_m)^ℓ = S/(σ_m⁻² + S).

        ℓ = ln(1 + 1/(σ_m² S)) / −ln(1 − rate_m)

    ℓ grows with σ0² always. How it depends on a client's own σ_m² is a matter of the loss. At a given rate (mean loss,
    any N_m) better data mean more steps, as the paper says. With rate = η/(B σ_m²) at a fixed η they mean *fewer*:
    less is to be kept of the start, but each step goes farther, and the latter wins. What always grows with the quality
    of a client's data is its local share, 1 − `retention`.

    Parameters
    ----------
    rate : float or array (M,)
        1 − b_m, what one step removes of the distance to the optimum: `step_rate` or ηh.

    Returns
    -------
    array (M,)
        Infinite for a single client (S_m = 0, nothing to keep) and where rate is 0; 0 where rate ≥ 1, since one step
        reaches the optimum or goes beyond.

    Examples
    --------
    >>> ideal_steps([1.0, 1.0, 1.0], sigma0_2=1.0, rate=0.5)
    array([1., 1., 1.])
    """
    others = relative_precision(sigma2, sigma0_2, posterior)
    rates = np.broadcast_to(np.asarray(rate, np.float64), others.shape)
    if not np.all(rates >= 0):
        raise ValueError("rate must be 0 or more for each client")
    below_one = np.where(rates < 1, rates, 0.0)
    with np.errstate(divide="ignore"):  # the infinities are meant, and never 0/0: `wanted` is above 0
        wanted = np.log1p(1.0 / others)
        return np.where(rates < 1, wanted / np.abs(np.log1p(-below_one)), 0.0)


def local_steps(
    sigma2: ArrayLike, sigma0_2: float, rate: ArrayLike, *, l_max: int, posterior: PosteriorName = "paper"
) -> NDArray[np.int64]:
    """The number of local steps, min(max(1, ⌈ℓ⌉), ℓ_max) with ℓ of (8) [(19)].

    Rules where (8) has no answer: rate ≥ 1 (b_m ≤ 0) takes 1 step; S_m = 0 and rate = 0 take ℓ_max. ℓ is not rounded up
    for a rounding error (1e-9, relative).

    Parameters
    ----------
    rate : float or array (M,)
        1 − b_m: `step_rate` or ηh.
    l_max
        Most steps.

    Examples
    --------
    Case 1 of the synthetic study, and the same clients under the exact posterior:

    >>> sigma2 = 0.1 / np.linspace(10, 20, 20)
    >>> local_steps(sigma2, 0.001, step_rate(sigma2, lr=1e-4), l_max=100)[[0, -1]]
    array([4, 4])
    >>> local_steps(sigma2, 0.001, step_rate(sigma2, lr=1e-4), l_max=100, posterior="exact")[[0, -1]]
    array([14, 13])
    """
    if l_max < 1:
        raise ValueError(f"l_max = {l_max} must be at least 1")
    ideal = ideal_steps(sigma2, sigma0_2, rate, posterior)
    bounded = np.clip(np.ceil(np.minimum(ideal, l_max) * (1 - 1e-9)), 1, l_max)
    return cast("NDArray[np.int64]", bounded.astype(np.int64))
