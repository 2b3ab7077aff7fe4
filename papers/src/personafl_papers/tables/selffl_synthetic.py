"""The synthetic study of the Self-FL preprint (appendices E.1 and E.2, Figures 3, 4 and 5), all repeats at once.

Each of M = 20 clients estimates the mean θ_m of its N_m samples by gradient steps θ ← θ − η (θ − z_m)/σ_m², z_m their
mean and σ_m² = σ²/N_m. A step is linear, so ℓ steps give z_m + (1 − η/σ_m²)^ℓ (θ − z_m), and a round of any algorithm
is a few operations on float64 arrays of shape (repeats, clients). The algorithms are the package's own classes, with
their options; `stacked` restates what each does on such clients. Errors: |personal model − θ_m|, mean over clients, and
|server's model − θ_0|.

Where the paper is silent, ours:

- Everybody starts from θ^0 = 0. (From 1.6, the answer, whoever moves slowly looks good: Self-FL at C = 0.1.)
- All learning rates are η: pFedMe's η_p, Per-FedAvg's α and β. pFedMe has λ = 15 and 5 inner steps, our defaults.
  Ditto has λ = 1, and beside it 1/σ0², with which it aims at the Bayes estimate (the λ that E.1 prints is our ηλ).
- (8) is taken without B, as these are gradients of sums. `l_max` is 1,000: nothing is said of a limit here.
- Self-FL is run with variances *known* (S_m over all clients); *online*, Algorithm 1 as it is: the variance of a
  client's own models over its rounds; and by *bootstrap*: online, but in each round a client trains on a bootstrap of
  its data, z_m^t ~ N(z_m, σ_m²), which is how section 3.2 explains the online variance. Without it full-batch training
  has no noise, and the online variance measures only how the client came from θ^0, not σ_m².
- Posterior "paper" has sums as variances and S_m over the cohort, "exact" plain means and S_m over all known clients.
- Algorithm 2 trains on for 1,000 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import singledispatch
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from personafl.algorithms import Algorithm, Ditto, FedAvg, PerFedAvg, PFedMe
from personafl.algorithms.selffl import SelfFL
from personafl.algorithms.selffl_aug import SelfFLAug
from personafl.algorithms.selffl_sums import FLOOR
from personafl.settings import Schedule
from personafl.streams import generator
from personafl_papers import theory
from personafl_papers.data.gaussian import Gaussian

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Models = tuple[Floats, Floats]  # personal (R, M) and server's (R, 1), after a round
Variances = Literal["known", "online", "bootstrap"]
Method = tuple[Algorithm, Variances]

LR, STEPS, START = 1e-4, 50, 0.0
ACTIVITIES, CASES = (0.1, 0.2, 0.5, 0.8, 1.0), (1, 2)


@dataclass(frozen=True)
class Problem:
    """Clients of R federations at once, arrays of shape (R, M); `noise` (rounds, R, M) is for the bootstrap."""

    theta0: float
    sigma0_2: float
    theta: Floats
    samples: Floats
    sigma2: Floats
    z: Floats
    variances: Variances = "online"
    noise: Floats | None = None

    @property
    def start(self) -> Floats:
        return np.full((len(self.z), 1), START)


def methods(sigma0_2: float) -> dict[str, Method]:
    """The rows of the table: an algorithm, and what it knows of the variances (which matters to Self-FL only)."""
    paper = SelfFL(posterior="paper", variance="sum", scope="cohort", smoothing="activity", l_max=1000)
    exact = SelfFL(posterior="exact", variance="mean", scope="all", smoothing="activity", l_max=1000)
    second = SelfFLAug(**asdict(paper), extra_steps=1000, tolerance=0.0)
    rows: dict[str, Method] = {
        "FedAvg": (FedAvg(), "online"),
        "Ditto, λ = 1": (Ditto(lam=1.0), "online"),
        "Ditto, λ = 1/σ0²": (Ditto(lam=1 / sigma0_2), "online"),
        "pFedMe": (PFedMe(lam=15.0, personal_lr=LR), "online"),
        "Per-FedAvg": (PerFedAvg(alpha=LR), "online"),
    }
    for name, algorithm in {"Self-FL paper": paper, "Self-FL exact": exact, "Algorithm 2": second}.items():
        rows[f"{name}, known σ²"] = replace(algorithm, scope="all"), "known"
        rows[f"{name}, online"] = algorithm, "online"
        rows[f"{name}, bootstrap"] = algorithm, "bootstrap"
    return rows


def draw(case: int, repeats: int, rounds: int, seed: int) -> Problem:
    """Draw the clients of a case, `repeats` times."""
    source = Gaussian.case(case)
    shape = (repeats, source.clients)
    random = generator(seed, "selffl-synthetic/clients", case)
    theta = source.theta0 + np.sqrt(source.sigma0_2) * random.standard_normal(shape)
    samples = random.integers(source.n_min, source.n_max, size=shape, endpoint=True).astype(np.float64)
    sigma2 = source.sigma2 / samples
    z = theta + np.sqrt(sigma2) * random.standard_normal(shape)
    noise = generator(seed, "selffl-synthetic/bootstrap", case).standard_normal((rounds, *shape))
    return Problem(source.theta0, source.sigma0_2, theta, samples, sigma2, z, noise=noise)


def draw_cohorts(activity: float, shape: tuple[int, int], rounds: int, seed: int) -> Bools:
    """Who is active, (rounds, R, M): as many as `Schedule` says, uniform without replacement, for each repeat anew."""
    size = Schedule(activity=activity).cohort_size(shape[1])
    lots = generator(seed, "selffl-synthetic/cohorts", size).random((rounds, *shape))
    return np.asarray(lots.argsort(-1).argsort(-1) < size)


def oracles(problem: Problem) -> dict[str, Floats]:
    """Mean |error| of the closed forms with known variances, for each repeat: of θ_m, and of θ_0 ("θ_0 by …")."""
    errors: dict[str, list[float]] = {"local": [], "global": [], "paper": [], "exact": [], "θ_0 by global": []}
    for theta, sigma2, z in zip(problem.theta, problem.sigma2, problem.z, strict=True):
        center = theory.global_posterior(z, sigma2, problem.sigma0_2).mean
        personal = {
            "local": theory.local_posterior(z, sigma2).mean,
            "global": np.broadcast_to(center, z.shape),
            "paper": theory.fl_posterior(z, sigma2, problem.sigma0_2).mean,
            "exact": theory.exact_posterior(z, sigma2, problem.sigma0_2).mean,
        }
        for name, estimate in personal.items():
            errors[name].append(float(np.abs(estimate - theta).mean()))
        errors["θ_0 by global"].append(float(np.abs(center - problem.theta0)))
    return {name: np.array(values) for name, values in errors.items()}


def simulate(method: Method, problem: Problem, cohorts: Bools) -> tuple[Floats, Floats]:
    """|error| of the personal and of the server's models after each round, (rounds, R) each."""
    algorithm, variances = method
    personal, server = np.empty(cohorts.shape[:2]), np.empty(cohorts.shape[:2])
    for number, (own, w) in enumerate(stacked(algorithm, replace(problem, variances=variances), cohorts)):
        personal[number] = np.abs(own - problem.theta).mean(1)
        server[number] = np.abs(w - problem.theta0)[:, 0]
    return personal, server


def mean_and_error(values: Floats) -> Floats:
    """Mean and standard error over the last axis, the repeats: shape (2, …)."""
    return np.stack([values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])])


def study(repeats: int, rounds: int, seed: int, tell: Callable[[str], None]) -> dict[int, Any]:
    """Both cases. For each: `oracles` name → (repeats,), `errors` row → activity → personal, global → (2, rounds), mean
    and standard error over repeats, and `last`, the same for the last round → (repeats,).
    """
    found: dict[int, Any] = {}
    for case in CASES:
        problem = draw(case, repeats, rounds, seed)
        rows = methods(problem.sigma0_2)
        errors: dict[str, dict[float, dict[str, Floats]]] = {name: {} for name in rows}
        last: dict[str, dict[float, dict[str, Floats]]] = {name: {} for name in rows}
        for activity in ACTIVITIES:
            tell(f"case {case}, C = {activity:g}")
            cohorts = draw_cohorts(activity, problem.z.shape, rounds, seed)
            for name, method in rows.items():
                personal, server = simulate(method, problem, cohorts)
                errors[name][activity] = {"personal": mean_and_error(personal), "global": mean_and_error(server)}
                last[name][activity] = {"personal": personal[-1], "global": server[-1]}
        settings = {name: {"name": a.name, **asdict(a), "variances": v} for name, (a, v) in rows.items()}
        found[case] = {"oracles": oracles(problem), "errors": errors, "last": last, "methods": settings}
    return found


# --- what the algorithms do on such clients, in closed form -----------------------------------------------------


@singledispatch
def stacked(algorithm: Algorithm, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    """The models after each round. Every class of algorithm registers its own form."""
    raise NotImplementedError(f"{algorithm.name} has no stacked form")


@stacked.register
def _fedavg(algorithm: FedAvg, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    w, own = problem.start, np.full_like(problem.z, np.nan)
    for active in cohorts:
        y = _descend(problem, w, STEPS)
        own = np.where(active, y, own)
        w = _mean(y, active, problem.samples if algorithm.weights == "samples" else 1.0)
        yield np.where(np.isnan(own), w, own), w


@stacked.register
def _ditto(algorithm: Ditto, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    curvature = 1 / problem.sigma2 + algorithm.lam
    w, v = problem.start, np.full_like(problem.z, np.nan)
    for active in cohorts:
        begin = np.where(np.isnan(v), w, v)
        optimum = (problem.z / problem.sigma2 + algorithm.lam * w) / curvature
        v = np.where(active, optimum + (1 - LR * curvature) ** STEPS * (begin - optimum), v)
        w = _mean(_descend(problem, w, STEPS), active, problem.samples if algorithm.weights == "samples" else 1.0)
        yield np.where(np.isnan(v), w, v), w


@stacked.register
def _pfedme(algorithm: PFedMe, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    """A local step is a 2×2 matrix on (θ, w_i), both measured from z; both begin at w."""
    one, zero = np.ones_like(problem.z), np.zeros_like(problem.z)
    pull, move = algorithm.personal_lr * algorithm.lam, LR * algorithm.lam
    inner = [[1 - algorithm.personal_lr / problem.sigma2 - pull, pull * one], [zero, one]]
    outer = np.array([[1.0, 0.0], [move, 1 - move]])
    step = outer @ np.linalg.matrix_power(np.moveaxis(np.array(inner), (0, 1), (-2, -1)), algorithm.inner_steps)
    kept = np.linalg.matrix_power(step, STEPS).sum(-1)
    w, own = problem.start, np.full_like(problem.z, np.nan)
    for active in cohorts:
        own = np.where(active, problem.z + kept[..., 0] * (w - problem.z), own)
        w = w + algorithm.beta * (_mean(problem.z + kept[..., 1] * (w - problem.z), active, 1.0) - w)
        yield np.where(np.isnan(own), w, own), w


@stacked.register
def _perfedavg(algorithm: PerFedAvg, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    """First-order: the gradient after an α-step is the gradient times 1 − α/σ_m²."""
    adapted = 1 - algorithm.alpha / problem.sigma2
    kept = (1 - LR * adapted / problem.sigma2) ** STEPS
    w = problem.start
    for active in cohorts:
        w = _mean(problem.z + kept * (w - problem.z), active, 1.0)
        yield problem.z + adapted**algorithm.adapt_steps * (w - problem.z), w


@stacked.register
def _selffl(algorithm: SelfFL, problem: Problem, cohorts: Bools) -> Iterator[Models]:
    """Algorithm 1, and 2 for the augmented class. `sigma2` is −1 where it is unknown, and so is `sigma0_2`."""
    if algorithm.clusters != "none" or algorithm.warm_rounds:
        raise NotImplementedError("the stacked form of Self-FL has no clusters and no warm start")
    if (algorithm.rate, algorithm.sigma, algorithm.prior) != ("local", "rounds", 0.0):
        raise NotImplementedError("the stacked form of Self-FL has no η_m, Fisher information or prior")
    known, extra = problem.variances == "known", algorithm.extra_steps if isinstance(algorithm, SelfFLAug) else 0
    server, shape = problem.start, problem.z.shape
    own, latest = np.full(shape, START), np.full(shape, START)
    mean, variance, t = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    sigma2 = problem.sigma2 if known else np.full(shape, -1.0)
    sigma0_2 = np.full_like(server, problem.sigma0_2 if known else -1.0)
    for number, active in enumerate(cohorts):
        between, counted = np.maximum(sigma0_2, 0), sigma2 >= 0 if algorithm.scope == "all" else active
        w = np.where(counted, 1 / (between + np.maximum(_filled(sigma2, active), FLOOR)), 0.0)
        S = np.maximum(w.sum(1, keepdims=True) - w, 0)
        aware = (sigma2 >= 0) & (sigma0_2 >= 0)
        within = np.maximum(sigma2, FLOOR)
        ratio = np.where(S > 0, 1 / ((between + within) * np.maximum(S, 1e-30)), 0.0).clip(max=1.0)
        begin = np.where(aware & algorithm.use_init, server - ratio * (latest - server), server)
        steps = np.where(aware & algorithm.use_steps, _steps(algorithm, within, between, S), STEPS)

        resampled = problem
        if problem.variances == "bootstrap" and problem.noise is not None:
            resampled = replace(problem, z=problem.z + np.sqrt(problem.sigma2) * problem.noise[number])
        own = np.where(active, _descend(resampled, begin, steps), own)
        latest = np.where(active, _descend(resampled, begin, steps + extra), latest)

        t = t + active
        if not known:
            count, apart = t.clip(1, algorithm.window or None), latest - mean
            variance = np.where(active, (count - 1) / count * variance + (count - 1) / count**2 * apart**2, variance)
            mean = np.where(active, mean + apart / count, mean)
            sigma2 = np.where(t >= 2, variance, -1.0)
            spread = np.where(active, (latest - _mean(latest, active, 1.0)) ** 2, 0.0).sum(1, keepdims=True)
            sigma0_2 = spread if algorithm.variance == "sum" else spread / active.sum(1, keepdims=True)
        weights = 1 / (sigma0_2 + np.maximum(_filled(sigma2, active), FLOOR)) if algorithm.use_weights else 1.0
        share = active.mean(1, keepdims=True) if algorithm.smoothing == "activity" else float(algorithm.smoothing)
        server = server + share * (_mean(latest, active, weights) - server)
        yield np.where(t > 0, own, server), server


def _steps(algorithm: SelfFL, sigma2: Floats, sigma0_2: Floats, S: Floats) -> Floats:
    """ℓ_m of (8), with the package's rules where it has no answer."""
    others = S if algorithm.posterior == "paper" else S / (1 + sigma0_2 * S)
    rate = LR / sigma2
    wanted = np.log1p(1 / np.maximum(sigma2 * others, 1e-30)) / -np.log1p(-rate.clip(1e-30, 1 - 1e-6))
    wanted = np.where(rate < 1, np.ceil(wanted * (1 - 1e-5)), 1.0)
    return np.where(others > 0, wanted, algorithm.l_max).clip(1, algorithm.l_max)


def _descend(problem: Problem, begin: Floats, steps: Floats | int) -> Floats:
    return np.asarray(problem.z + (1 - LR / problem.sigma2) ** steps * (begin - problem.z), np.float64)


def _mean(values: Floats, active: Bools, weights: Floats | float) -> Floats:
    """Weighted mean over the active clients, (R, 1)."""
    mass = np.where(active, weights, 0.0)
    return np.asarray((mass * values).sum(1, keepdims=True) / mass.sum(1, keepdims=True))


def _filled(sigma2: Floats, active: Bools) -> Floats:
    """Unknown variances as the median of the active clients' known ones, or 1 if there is none."""
    known = active & (sigma2 >= 0)
    ordered = np.sort(np.where(known, sigma2, np.inf), axis=1)
    last = np.maximum(known.sum(1, keepdims=True) - 1, 0)
    median = sum(np.take_along_axis(ordered, at, axis=1) for at in (last // 2, (last + 1) // 2)) / 2
    return np.where(sigma2 >= 0, sigma2, np.where(np.isinf(median), 1.0, median))
