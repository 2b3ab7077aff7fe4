"""A model for each client, from several: which of them, or how much of each.

Every client has validation samples i, and for each of F models the logarithm of the probability ℓ_if that the model
gave to what came. Clients have few samples, so none chooses by itself alone:

    weights of all     π  maximizes  Σ_i log Σ_f π_f exp ℓ_if       over the samples of all clients
    weights of client  w  maximizes  Σ_i log Σ_f w_f exp ℓ_if + α Σ_f π_f log w_f      over its own samples

The second term is the logarithm of a Dirichlet density around π: a client's samples count against α that are like
everybody's. With none of its own it has w = π; with α = ∞ everybody has. Both are solved by EM, whose fixed point is
w_f = (α π_f + Σ_i r_if) / (α + n), r_if ∝ w_f exp ℓ_if. A model alone for each client (`one_each`) is chosen by
the probability that it is this client's: prior_f · Π_i exp ℓ_if, with a prior that is learned by EM from all clients.

Which of these ways is taken, and α, is decided by cross-validation on the validation samples: for each fifth of every
client's samples the weights come from the other four. Losses that are no log-likelihoods are divided by a scale first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from personafl.report.reasons import LEAST
from personafl.states import Ints
from personafl.streams import generator

Floats = NDArray[np.float64]

ALPHAS = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0)
"""How many samples of everybody's kind a client's own are weighed against."""
FOLDS = 5
STEPS = 300
CLOSE = 1e-5
"""EM ends when no weight moves by more."""
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Way:
    """How clients get their weights: everybody the model `single`, one model each, or a mixture with this α."""

    kind: str
    single: int = -1
    alpha: float = np.inf

    def title(self, names: Sequence[str]) -> str:
        """In a few words, for a table."""
        if self.kind == "single":
            return f"{names[self.single]} for everybody"
        if self.kind == "one each":
            return "a finalist for each"
        return "one mixture for everybody" if np.isinf(self.alpha) else f"a mixture for each, α = {self.alpha:g}"

    def sentence(self, names: Sequence[str]) -> str:
        """In words."""
        if self.kind == "single":
            return f"everybody gets {names[self.single]}"
        if self.kind == "one each":
            return "each client gets one of the finalists"
        if np.isinf(self.alpha):
            return "everybody gets the same mixture of the finalists' predictions"
        return (
            f"each client gets its own mixture of the finalists' predictions, its samples weighed against "
            f"{self.alpha:g} of everybody's kind"
        )


@dataclass(frozen=True)
class Considered:
    """A way that was considered: its score on samples that it had not seen, and on all validation samples."""

    way: Way
    unseen: float
    seen: float
    log_likelihood: float
    """The mean over samples that it had not seen."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    way
        How clients got their weights.
    weights
        Of each model for each client (K, F); rows sum to 1.
    considered
        All ways.
    """

    way: Way
    weights: Floats
    considered: tuple[Considered, ...]


Points = Callable[[Floats, NDArray[np.bool_]], Floats]
"""What each client's predictions are worth (K,), where models are mixed with weights of each sample (N, F) and these
samples (N,) count. Points are added up over clients, and more is better; see `Measure.points`."""


def choose(
    log_likelihood: Floats, owner: Ints, clients: int, points: Points, seed: int, mixtures: bool = True
) -> Choice:
    """Weights of models for clients, from validation samples alone.

    On these samples the result is never worse than the best single model. Among the ways of which that is true and that
    cross-validation does not tell from the best of them (one standard error, over clients), the one under which unseen
    samples were most probable is taken: the measure itself, say a share of right answers, is coarse on few samples.

    Parameters
    ----------
    log_likelihood
        Of each sample under each model (N, F).
    owner
        The client of each sample (N,).
    points
        The measure that ranks, for weights of each sample.
    mixtures
        Whether clients may get mixtures of predictions.

    Examples
    --------
    >>> likelihood = np.log([[0.9, 0.2], [0.8, 0.3], [0.2, 0.9], [0.3, 0.8]])
    >>> owner = np.array([0, 0, 1, 1])
    >>> shares = mixture_weights(likelihood, owner, 3, alpha=1.0)
    >>> shares.round(2).tolist()  # the third client has no samples, and what everybody has
    [[0.78, 0.22], [0.22, 0.78], [0.5, 0.5]]
    """
    models = log_likelihood.shape[1]
    everything = np.ones(len(owner), np.bool_)
    singles = _singles(points, models, everything)
    best = int(np.argmax(singles))
    ways = [Way("single", best)]
    if len(owner) and models > 1:
        ways += [Way("one each"), *(Way("mixture", alpha=alpha) for alpha in ALPHAS if mixtures)]
    made = [pruned(weights) for weights in _of_ways(ways, log_likelihood, owner, clients)]
    unseen, considered = [], []
    for way, weights, apart in zip(
        ways, made, _cross_fitted(ways, log_likelihood, owner, clients, _folds(owner, seed), points), strict=True
    ):
        unseen.append(points(apart, everything))
        seen = singles[best] if way.kind == "single" else _sum(points(weights[owner], everything))
        considered.append(Considered(way, _sum(unseen[-1]), seen, _mean_log(log_likelihood, apart)))
    allowed = [k for k, each in enumerate(considered) if each.seen >= singles[best]]
    ahead = max(allowed, key=lambda k: (considered[k].unseen, -k))
    near = [k for k in allowed if _within_error(unseen[ahead] - unseen[k])]
    taken = max(near, key=lambda k: (considered[k].log_likelihood, -k))
    return Choice(ways[taken], made[taken], tuple(considered))


def _singles(points: Points, models: int, which: NDArray[np.bool_]) -> list[float]:
    """What each model is worth alone, on these samples."""
    return [_sum(points(_everywhere(len(which), models, f), which)) for f in range(models)]


def _sum(points: Floats) -> float:
    return float(np.nansum(points)) if len(points) else 0.0


def _within_error(difference: Floats) -> bool:
    """Whether the sum of differences over clients is within its standard error."""
    known = difference[np.isfinite(difference)]
    return float(known.sum()) <= float(np.std(known) * np.sqrt(len(known))) + 1e-12


def _mean_log(log_likelihood: Floats, weights: Floats) -> float:
    if not len(weights):
        return 0.0
    most = log_likelihood.max(1, keepdims=True)
    mixed = (weights * np.exp(log_likelihood - most)).sum(1)
    return float((np.log(np.maximum(mixed, 1e-300)) + most[:, 0]).mean())


def weights_of(way: Way, log_likelihood: Floats, owner: Ints, clients: int) -> Floats:
    """The weights (K, F) that a way gives to clients with these samples."""
    return _of_ways([way], log_likelihood, owner, clients)[0]


def _of_ways(ways: Sequence[Way], log_likelihood: Floats, owner: Ints, clients: int) -> list[Floats]:
    models, everybody, start, made = log_likelihood.shape[1], None, None, []
    for way in ways:
        if way.kind == "single":
            made.append(_everywhere(clients, models, way.single))
        elif way.kind == "one each":
            made.append(one_each(log_likelihood, owner, clients))
        else:
            everybody = _mixture_of_all(log_likelihood) if everybody is None else everybody
            start = _mixtures(log_likelihood, owner, clients, way.alpha, everybody, start)
            made.append(start)
    return made


def mixture_weights(log_likelihood: Floats, owner: Ints, clients: int, alpha: float) -> Floats:
    """Each client's own mixture, drawn towards that of all; see the top of this file."""
    return weights_of(Way("mixture", alpha=alpha), log_likelihood, owner, clients)


def _mixture_of_all(log_likelihood: Floats) -> Floats:
    """π of the top of this file (F,)."""
    weights = np.full(log_likelihood.shape[1], 1 / log_likelihood.shape[1])
    likelihood = _likelihood(log_likelihood)
    for _ in range(STEPS if len(likelihood) else 0):
        # Shares of samples, and their mean, by two products of matrices.
        new = weights * (likelihood.T @ (1 / np.maximum(likelihood @ weights, TINY))) / len(likelihood)
        done = np.abs(new - weights).max() < CLOSE
        weights = new
        if done:
            break
    return np.asarray(weights / weights.sum())


def _mixtures(
    log_likelihood: Floats, owner: Ints, clients: int, alpha: float, everybody: Floats, start: Floats | None
) -> Floats:
    """Weights (K, F) by EM around everybody's, from those of another α where there are some."""
    made = np.tile(everybody, (clients, 1))
    if np.isinf(alpha) or not len(owner):
        return made
    order = np.argsort(owner, kind="stable")
    likelihood = _likelihood(log_likelihood[order])
    present, first, n = np.unique(owner[order], return_index=True, return_counts=True)
    # From inside: where everybody's weight is next to nothing, EM would end before anybody has moved.
    weights = 0.9 * (made if start is None else start)[present] + 0.1 / made.shape[1]
    for _ in range(STEPS):
        shares = np.repeat(weights, n, 0) * likelihood
        shares /= np.maximum(shares.sum(1, keepdims=True), TINY)
        new = (alpha * everybody + np.add.reduceat(shares, first)) / (alpha + n)[:, None]
        done = np.abs(new - weights).max() < CLOSE
        weights = new
        if done:
            break
    made[present] = weights / weights.sum(1, keepdims=True)
    return made


def _likelihood(log_likelihood: Floats) -> Floats:
    """Up to a factor for each sample, which cancels."""
    return np.exp(log_likelihood - log_likelihood.max(1, keepdims=True)) if len(log_likelihood) else log_likelihood


def one_each(log_likelihood: Floats, owner: Ints, clients: int) -> Floats:
    """The most probable model of each client, as weights of 0 and 1."""
    models = log_likelihood.shape[1]
    evidence = np.stack([np.bincount(owner, log_likelihood[:, f], clients) for f in range(models)], 1)
    prior = np.full(models, 1 / models)
    for _ in range(STEPS):
        posterior = evidence + np.log(np.maximum(prior, 1e-12))
        posterior = np.exp(posterior - posterior.max(1, keepdims=True))
        posterior /= posterior.sum(1, keepdims=True)
        new = (posterior.sum(0) + 1 / models) / (clients + 1)
        done = np.abs(new - prior).max() < 1e-7
        prior = new
        if done:
            break
    chosen = np.argmax(evidence + np.log(prior), 1)
    return np.asarray(np.eye(models)[chosen])


def pruned(weights: Floats, least: float = LEAST) -> Floats:
    """Weights without those that are too small to matter.

    >>> pruned(np.array([[0.985, 0.015]])).tolist()
    [[1.0, 0.0]]
    """
    kept = np.where(weights < least, 0.0, weights)
    return np.asarray(kept / kept.sum(1, keepdims=True))


def _everywhere(rows: int, models: int, which: int) -> Floats:
    return np.tile(np.eye(models)[which], (rows, 1))


def _folds(owner: Ints, seed: int) -> Ints:
    """The fold of each sample: every client's samples are dealt out evenly, in an order that follows from the seed."""
    order = np.lexsort((generator(seed, "fit folds").random(len(owner)), owner))
    place = np.empty(len(owner), np.int64)
    counts = np.bincount(owner) if len(owner) else np.zeros(0, np.int64)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Clients begin with different folds: else those with one sample each would all be in the first.
    place[order] = (within + owner[order]) % FOLDS
    return place


def _cross_fitted(
    ways: Sequence[Way], log_likelihood: Floats, owner: Ints, clients: int, fold: Ints, points: Points
) -> list[Floats]:
    """For each way the weights of each sample (N, F), made of the samples of the other folds.

    So is the choice of a single model.
    """
    out = [np.empty_like(log_likelihood) for _ in ways]
    for k in range(FOLDS):
        others, here = fold != k, fold == k
        if not here.any():
            continue
        there = [
            Way("single", int(np.argmax(_singles(points, log_likelihood.shape[1], others))))
            if way.kind == "single" and others.any()
            else way
            for way in ways
        ]
        for each, weights in zip(out, _of_ways(there, log_likelihood[others], owner[others], clients), strict=True):
            each[here] = weights[owner[here]]
    return out
