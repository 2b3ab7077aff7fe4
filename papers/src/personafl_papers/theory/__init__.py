"""The theory of Self-FL: the two-level Gaussian model in closed form.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-aware personalized federated learning. NeurIPS 2022. Equation
numbers are those of the NeurIPS text; the preprint's follow in brackets where they differ.

    θ_m | θ_0 ~ N(θ_0, σ0²),    θ̂_m | θ_m ~ N(θ_m, σ_m²),    m = 1 … M,    flat prior on θ_0        (1)

θ̂_m (the papers' z_m and θ_m^(L)) is the best fit to client m's own data. Everywhere `theta_hat` is (M,) or (M, d),
`sigma2` is (M,), `sigma0_2` is a number, and w_m = 1/(σ0² + σ_m²), S_m = Σ_{k≠m} w_k. For vectors the coordinates are
independent with the same variances. Everything is float64 numpy. A `Prior` of θ_0 may
take the place of the flat one in the posteriors.

    model.py        the weights, what the others know together, σ_m² = v_m²/N_m
    posterior.py    what is known of θ_0 and θ_m, and each client's GAIN
    training.py     where local training starts, and how many steps it takes
    iteration.py    Algorithm 1 without noise: its fixed point, and the iteration itself
    convergence.py  the constant q and the bound of Proposition 3.1

Two posteriors of θ_m are offered throughout. `"paper"` is the paper's (3), derived for θ_m = θ_0. `"exact"` is the
Bayes posterior under (1): the others tell of θ_0 with precision S_m, hence of θ_m only with precision 1/(σ0² + 1/S_m).
"""

from personafl_papers.theory.convergence import ConvergenceBound, contraction_constant, convergence_bound
from personafl_papers.theory.iteration import FixedPoint, Trajectory, fixed_point, simulate
from personafl_papers.theory.model import (
    FLAT,
    LARGEST_VARIANCE,
    SMALLEST_VARIANCE,
    PosteriorName,
    Prior,
    client_weights,
    intra_client_variance,
    others_mean,
    others_weight,
    precision_from_others,
)
from personafl_papers.theory.posterior import (
    Posterior,
    exact_posterior,
    fl_posterior,
    gain,
    global_posterior,
    local_posterior,
    personal_posterior,
)
from personafl_papers.theory.training import ideal_steps, initial_point, local_steps, retention, shift_ratio, step_rate

__all__ = [
    "FLAT",
    "LARGEST_VARIANCE",
    "SMALLEST_VARIANCE",
    "ConvergenceBound",
    "FixedPoint",
    "Posterior",
    "PosteriorName",
    "Prior",
    "Trajectory",
    "client_weights",
    "contraction_constant",
    "convergence_bound",
    "exact_posterior",
    "fixed_point",
    "fl_posterior",
    "gain",
    "global_posterior",
    "ideal_steps",
    "initial_point",
    "intra_client_variance",
    "local_posterior",
    "local_steps",
    "others_mean",
    "others_weight",
    "personal_posterior",
    "precision_from_others",
    "retention",
    "shift_ratio",
    "simulate",
    "step_rate",
]
