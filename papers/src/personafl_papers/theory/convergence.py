"""How fast the noiseless iteration converges, and how far from the FL-optimal parameters it can end: Proposition 3.1.

The proposition: let max σ_m² be bounded, let q < 1 be a constant with

    max_m S_m / (σ_m⁻² + S_m) ≤ q,                                                        (12) [(15)]

and |θ^0 − θ_m^(FL)| ≤ C for all m. Then for every t ≥ 1, max_m |θ_m^t − θ_m^(FL)| and |θ^t − θ^(G)| are at most
C q^t + O_p(M^(−1/2)) as M → ∞, when the θ̂_m are drawn from model (1) with fixed σ0² > 0, the variances are known,
everybody takes part, and local training does (6) with (8) exactly.

Since S_m grows with M, a constant q needs σ_m² = O(1/M): data that grow with the number of clients.

The O_p term is that of the proof (preprint appendix F), here in numbers. Let ζ_m^t = θ_m^t − θ_m^(FL). By (30) to (37),

    ζ_m^t = c_m [ Σ_k A_mk ζ_k^{t−1} + e_m ],    e_m = Σ_k A_mk θ_k^(FL) − mean of the others' θ̂,

with A of `personafl_papers.theory.iteration`, so that with q = max c_m and e = max |c_m e_m|

    max_m |ζ_m^t| ≤ q^t C + e (1 − q^t)/(1 − q),    |θ^t − θ^(G)| ≤ the same + |D|,    D = Σ w_m (θ_m^(FL) − θ̂_m)/Σ w_m.

The preprint's (44) has E = (|D| + 2 v c_θ)/(1 − v) for the second term, with v = max w_m/Σ w_k and c_θ the largest
|θ_m^(FL)| or |θ̂_m|. It drops the geometric series to which (43) leads, E (1 − q^t)/(1 − q), and does not hold for q
near 1 (the tests have clients whose error is nearly ten times E). For a constant q the order M^(−1/2) remains.
In (34) the θ_m^{t−1} within the sum should read θ_k^{t−1}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from personafl_papers.theory.iteration import kept, mixing
from personafl_papers.theory.model import (
    Floats,
    PosteriorName,
    client_weights,
    local_estimates,
    others_mean,
    per_client,
)
from personafl_papers.theory.posterior import personal_posterior
from personafl_papers.theory.training import retention


def contraction_constant(sigma2: ArrayLike, sigma0_2: float, posterior: PosteriorName = "paper") -> float:
    """The smallest q of (12) [(15)]: max_m S/(σ_m⁻² + S), with S = S_m (paper) or 1/(σ0² + 1/S_m) (exact).

    Examples
    --------
    >>> round(contraction_constant([0.1, 0.1, 0.2], sigma0_2=0.1), 4)
    0.6667
    >>> round(contraction_constant([0.1, 0.1, 0.2], sigma0_2=0.1, posterior="exact"), 4)
    0.5
    """
    return float(retention(sigma2, sigma0_2, posterior).max())


@dataclass(frozen=True)
class ConvergenceBound:
    """Bounds after 0, 1, … T rounds; for vectors, of Euclidean distances.

    Attributes
    ----------
    q
        What a round leaves of the error at most.
    C
        The largest distance at the start.
    optimization : array (T+1,)
        C q^t.
    statistical : array (T+1,)
        The term that the proposition calls O_p(M^(−1/2)), here for the given θ̂.
    personal : array (T+1,)
        Bound of max_m |θ_m^t − θ_m^(FL)|: the sum of the two.
    server : array (T+1,)
        Bound of |θ^t − θ^(G)|.
    printed
        E, the statistical term of (44) as printed. Not a bound for q near 1.
    """

    q: float
    C: float
    optimization: Floats
    statistical: Floats
    personal: Floats
    server: Floats
    printed: float


def convergence_bound(
    theta_hat: ArrayLike,
    sigma2: ArrayLike,
    sigma0_2: float,
    start: ArrayLike,
    rounds: int,
    *,
    contraction: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    posterior: PosteriorName = "paper",
    shift_cap: float = 1.0,
) -> ConvergenceBound:
    """The bound of Proposition 3.1 for given clients and the given start θ^0, with the statistical term in numbers.

    It holds for Algorithm 1 with known variances, everybody active, full-batch steps and no smoothing, for both
    posteriors (`"exact"` bounds the distance to `exact_posterior`). Nothing is assumed of M or of the distribution
    of θ̂.

    Parameters
    ----------
    contraction, steps
        As for `fixed_point`. With whole numbers of steps the iteration aims at (1 − c_m) θ̂_m + c_m (mean of the others)
        instead of θ_m^(FL): q is then max |c_m|, C the distance to these, and the distance between the two is added to
        the statistical term.
    theta_hat, sigma2, sigma0_2, start, rounds, posterior, shift_cap
        As for `simulate`.

    Examples
    --------
    >>> bound = convergence_bound([0.0, 1.0, 2.0], [0.1, 0.1, 0.2], 0.1, start=10.0, rounds=3)
    >>> bound.personal.round(2)
    array([9.36, 6.45, 4.51, 3.21])
    """
    w = client_weights(sigma2, sigma0_2)
    z = local_estimates(theta_hat, len(w))
    c = kept(sigma2, sigma0_2, contraction, steps, posterior)
    optimal = personal_posterior(z, sigma2, sigma0_2, posterior).mean
    others = others_mean(z, w)
    aim = per_client(1.0 - c, z) * z + per_client(c, z) * others
    q = float(np.abs(c).max())
    C = float(_norm(np.asarray(start, np.float64) - aim).max())
    e = float((np.abs(c) * _norm(mixing(sigma2, sigma0_2, shift_cap) @ aim - others)).max())
    t = np.arange(rounds + 1)
    powers = np.asarray(q**t, np.float64)
    series = np.concatenate([[0.0], np.cumsum(powers[:-1])])  # (1 − q^t)/(1 − q), also for q = 1
    share = w / w.sum()
    D = float(_norm((share @ (aim - z))[None])[0])
    v, c_theta = share.max(), max(_norm(optimal).max(), _norm(z).max())
    printed = (_norm((share @ (optimal - z))[None])[0] + 2 * v * c_theta) / (1 - v) if v < 1 else np.inf
    away = float(_norm(aim - optimal).max())
    return ConvergenceBound(
        q=q,
        C=C,
        optimization=C * powers,
        statistical=e * series + away,
        personal=C * powers + e * series + away,
        server=C * powers + e * series + D,
        printed=float(printed),
    )


def _norm(rows: Floats) -> Floats:
    """|x_m| of (M,), Euclidean of (M, d)."""
    return np.abs(rows) if rows.ndim == 1 else np.linalg.norm(rows, axis=1)
