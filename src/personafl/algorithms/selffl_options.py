"""What the Self-FL papers describe beside the usual: gradients of sums, η_m, Fisher information, a prior on θ_0.

- `gradient = "sum"`: a step descends the sum of the losses over its batch, as Algorithm 1 prints it, a smaller last
  batch by as much less. (8) keeps η/(Bσ_m²), as [19] prints it. The same steps with the mean need η B, and then (8)
  has η B in the place of η, so that it asks for fewer.
- `rate = "solved"`: η_m is what (8) asks for with the number of steps that the client takes,

        η_m = B σ_m² (1 − (S / (σ_m⁻² + S))^(1/ℓ)),

  and at most `rate_max` times `local.lr`. Of η_m the papers say that σ0² and σ_m² affect it (3.2), and (8) is all that
  relates them. With it ℓ may be a whole number, within `l_max` or given by the settings, and (8) still holds.
- `sigma = "fisher"`: σ_m² = v_m²/N_m with v_m² the inverse Fisher information of a sample (D [2.2]), in the place of
  the variance over rounds. As that is a sum over the parameters, so is this: Σ_j 1/(N_m F_j + `damping`), F_j the mean
  square of the samples' gradients in parameter j, at the model that the client sends. Parameters of which the data say
  nothing have F_j = 0; `damping`, a precision, keeps their variance finite. Known from the first activation on.
- `prior` = 1/τ²: θ_0 ~ N(θ^0, τ²) in the place of the flat prior, which "can be replaced with any other" (2.1). It is
  one more that knows of θ_0: S_m + 1/τ² takes the place of S_m everywhere, and θ^0 counts in (11) with the weight 1/τ²,
  once some σ_m² is known. θ^0 is the initial model, or that after `warm_rounds`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from personafl.algorithms.base import Context, Gradient, JobInfo
from personafl.settings import check
from personafl.states import State

NO_BOUND = "σ_m² by Fisher information has no bound, and clipping would change what it says"


class Options:
    """What Self-FL does otherwise with these settings."""

    name: str
    gradient: str
    rate: str
    rate_max: float
    sigma: str
    damping: float
    prior: float
    use_weights: bool

    def _check_options(self) -> None:
        check("algorithm.rate_max", self.rate_max, 0 < self.rate_max < 1e38, "above 0, and no more than float32 holds")
        check(
            "algorithm.damping", self.damping, 0 < self.damping < 1e38, "above 0: some parameters have no information"
        )
        check("algorithm.prior", self.prior, 0 <= self.prior < 1e38, "at least 0, and no more than float32 holds")
        weighed = self.use_weights or not self.prior
        check("algorithm.prior", self.prior, weighed, "0 with use_weights = false: nothing is weighed against it")

    def _check_fisher(self, job: JobInfo) -> None:
        """Only a log-likelihood has Fisher information."""
        likelihood = self.sigma != "fisher" or job.classification
        only = '"rounds" but for classification, whose loss is a log-likelihood: others have no Fisher information'
        check("algorithm.sigma", self.sigma, likelihood, only)

    @property
    def _first_known(self) -> int:
        """From which activation on a client knows its σ_m²: a single model has no variance."""
        return 1 if self.sigma == "fisher" else 2

    def _slope(self, grad: Gradient, theta: Tensor) -> Tensor:
        """The gradient of a batch's mean or sum."""
        return grad(theta) if self.gradient == "mean" else grad(theta) * grad.count()

    def _by_fisher(self, new: State, theta: Tensor, counts: Tensor, ctx: Context) -> State:
        """A client's new state, with v²/N for its σ_m² where that is asked for."""
        if self.sigma != "fisher":
            return new
        assert ctx.training is not None
        sigma2 = fisher_variance(ctx.training.squares(theta), ctx.samples, self.damping)
        return new | {"sigma2": torch.where(counts, sigma2, new["sigma2"])}

    def _shrunk(self, estimate: Tensor, mass: Tensor, known: Tensor, server: State) -> Tensor:
        """θ̂, drawn to θ^0 as the prior has it. `mass` is Σ w_m, and has no scale before some σ_m² is `known`."""
        if not self.prior:
            return estimate
        share = torch.where(known, self.prior / (mass + self.prior), 0.0)
        return torch.lerp(estimate, server["prior"], share.float())

    def _prior_at(self, theta: Tensor) -> State:
        """What the server keeps of the prior."""
        return {"prior": theta.clone()} if self.prior else {}


def steps_asked(sigma2: Tensor, others: Tensor, rate: Tensor) -> Tensor:
    """The real number ℓ that solves (8) [19], with `rate` = η/(Bσ²): 0 where a step reaches the optimum or goes beyond.

    ℓ = log(S/(σ⁻² + S)) / log(1 − η/(Bσ²)), by log1p: both arguments may be as close to 1 as float32 goes.

    >>> steps_asked(torch.tensor(1.0), torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.5, 1.5, 0.5])).tolist()
    [1.0, 0.0, inf]
    """
    asked = torch.log1p(1 / (sigma2 * others).clamp(min=1e-30)) / -torch.log1p(-rate.clamp(1e-30, 1 - 1e-6))
    return torch.where(others > 0, torch.where(rate < 1, asked, 0.0), torch.inf)


def rate_asked(sigma2: Tensor, others: Tensor, batch_size: Tensor, steps: Tensor) -> Tensor:
    """The η that solves (8) [19] for a number of steps.

    >>> rate_asked(torch.tensor(2.0), torch.tensor(0.5), torch.tensor(10), torch.tensor([1, 2])).tolist()
    [10.0, 5.857864...]
    """
    kept = -torch.log1p(1 / (sigma2 * others).clamp(min=1e-30)) / steps.clamp(min=1)
    return -batch_size * sigma2 * torch.expm1(kept)


def fisher_variance(squares: Tensor, samples: Tensor, damping: float) -> Tensor:
    """Σ_j 1/(N F_j + damping), with the mean squares F (P,) of the gradients of N samples.

    >>> fisher_variance(torch.tensor([0.5, 0.25]), torch.tensor(8), 1e-9).item()
    0.75
    """
    total: Tensor = (1 / (samples * squares.double() + damping)).sum()
    return total.to(squares)
