"""What the data say of θ_0 and of each θ_m under the two-level Gaussian model, and what a client gains by joining."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from personafl_papers.theory.model import (
    FLAT,
    Floats,
    PosteriorName,
    Prior,
    client_weights,
    intra_variances,
    local_estimates,
    others_mean,
    per_client,
    relative_precision,
)


class Posterior(NamedTuple):
    """A normal distribution of θ_0, or one of each θ_m.

    Attributes
    ----------
    mean : array
        Of θ_0: () or (d,). Of all θ_m: (M,) or (M, d).
    variance : array
        Of θ_0: (). Of all θ_m: (M,). For vectors, of each coordinate.
    """

    mean: Floats
    variance: Floats


def global_posterior(theta_hat: ArrayLike, sigma2: ArrayLike, sigma0_2: float, prior: Prior = FLAT) -> Posterior:
    """The posterior of θ_0 given all data, (2): θ^(G) = Σ w_m θ̂_m / Σ w_m,  v^(G) = 1 / Σ w_m.

    Parameters
    ----------
    theta_hat : array (M,) or (M, d)
        Each client's optimum on its own data.
    sigma2 : array (M,)
        Variances within clients.
    sigma0_2
        Variance between clients.
    prior
        Of θ_0, in the place of the flat one: its mean counts like a client's with the weight `prior.precision`.

    Examples
    --------
    >>> mean, variance = global_posterior([0.0, 3.0], sigma2=[1.0, 3.0], sigma0_2=1.0)
    >>> print(f"{mean:.3f} {variance:.3f}")
    1.000 1.333
    """
    w = client_weights(sigma2, sigma0_2)
    z = local_estimates(theta_hat, len(w))
    total = w.sum() + prior.precision
    mean = (w / total) @ z + prior.precision / total * np.asarray(prior.mean, np.float64)
    return Posterior(np.asarray(mean), np.asarray(1.0 / total))


def local_posterior(theta_hat: ArrayLike, sigma2: ArrayLike) -> Posterior:
    """The posterior of θ_m given client m's data alone: θ_m^(L) = θ̂_m, v_m^(L) = σ_m².

    Examples
    --------
    >>> local_posterior([0.0, 3.0], sigma2=[1.0, 3.0]).variance
    array([1., 3.])
    """
    variances = intra_variances(sigma2)
    return Posterior(local_estimates(theta_hat, len(variances)).copy(), variances)


def fl_posterior(theta_hat: ArrayLike, sigma2: ArrayLike, sigma0_2: float) -> Posterior:
    """The paper's FL-optimal posterior (3), for every client in turn.

        θ_m^(FL) = (σ_m⁻² θ̂_m + Σ_{k≠m} w_k θ̂_k) / (σ_m⁻² + S_m),    v_m^(FL) = 1 / (σ_m⁻² + S_m)

    It is the posterior under the assumption that client m itself sits at the centre, θ_m = θ_0, while the others are
    spread around it. Where σ0² is not small against σ_m² it trusts the others too much, and the more so the more they
    are: it can be worse than θ̂_m (the synthetic study's case 2). `exact_posterior` does without the assumption.

    Examples
    --------
    >>> fl_posterior([0.0, 3.0], sigma2=[1.0, 1.0], sigma0_2=1.0).mean
    array([1., 2.])
    """
    return personal_posterior(theta_hat, sigma2, sigma0_2, "paper")


def exact_posterior(theta_hat: ArrayLike, sigma2: ArrayLike, sigma0_2: float) -> Posterior:
    """The exact Bayes posterior of θ_m given all data under model (1): (3) with 1/(σ0² + 1/S_m) in place of S_m.

    The others give θ_0 ~ N(their weighted mean, 1/S_m), hence θ_m ~ N(the same mean, σ0² + 1/S_m), to be combined with
    θ̂_m ~ N(θ_m, σ_m²). The variance is that of each θ_m alone; different θ_m are correlated through θ_0.

    Examples
    --------
    >>> exact_posterior([0.0, 3.0], sigma2=[1.0, 1.0], sigma0_2=1.0).mean
    array([0.75, 2.25])
    """
    return personal_posterior(theta_hat, sigma2, sigma0_2, "exact")


def personal_posterior(
    theta_hat: ArrayLike,
    sigma2: ArrayLike,
    sigma0_2: float,
    posterior: PosteriorName = "paper",
    prior: Prior = FLAT,
) -> Posterior:
    """`fl_posterior` or `exact_posterior`, by name; with a prior of θ_0 the others' precision is S_m + 1/τ²."""
    w = client_weights(sigma2, sigma0_2)
    z = local_estimates(theta_hat, len(w))
    others = relative_precision(sigma2, sigma0_2, posterior, prior)
    own_share, others_share = per_client(1.0 / (1.0 + others), z), per_client(others / (1.0 + others), z)
    return Posterior(own_share * z + others_share * others_mean(z, w, prior), intra_variances(sigma2) / (1.0 + others))


def gain(sigma2: ArrayLike, sigma0_2: float, posterior: PosteriorName = "paper", prior: Prior = FLAT) -> Floats:
    """GAIN_m = v_m^(L) / v_m^(FL): by what factor the others reduce client m's uncertainty about θ_m.

        paper   GAIN_m = 1 + σ_m² S_m
        exact   GAIN_m = 1 + σ_m² / (σ0² + 1/S_m)

    It is at least 1, and 1 where joining brings nothing. A client with far better data than all the others has
    GAIN_m ≈ 1 and still helps them: its neighbour k has GAIN_k ≥ 1 + σ_k²/(σ0² + σ_m²) (paper), or
    ≥ 1 + σ_k²/(2σ0² + σ_m²) (exact). The third case of Remark 2.1 says GAIN_k ≥ σ_k²/σ_m², which is wrong unless
    σ0² is small against σ_m²: the remark itself assumes the contrary.

    Examples
    --------
    >>> gain([1.0, 1.0, 1.0], sigma0_2=1.0)
    array([2., 2., 2.])
    >>> gain([1.0, 1.0, 1.0], sigma0_2=1.0, posterior="exact")
    array([1.5, 1.5, 1.5])
    """
    return 1.0 + relative_precision(sigma2, sigma0_2, posterior, prior)
