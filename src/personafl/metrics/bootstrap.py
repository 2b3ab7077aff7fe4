"""How sure a number is: bootstrap intervals over clients and over seeds, mean and standard error over seeds.

A bootstrap draws as many clients as there are, with replacement, computes the metric again, and repeats that. The
spread of the answers shows how much the metric depends on which clients happened to be there. Clients are drawn whole,
and a client's arrays stay together. One resample is in memory at a time: a million clients take 10 to 20 ms for each.
`scipy.stats.bootstrap` takes three times as long there, and is used for the BCa interval of smaller federations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from personafl.errors import DataError
from personafl.metrics.inputs import Floats, aligned, known, numbers
from personafl.metrics.performance import mean_accuracy

Statistic = Callable[..., float]
Method = Literal["percentile", "bca"]

LARGEST_BCA = 10_000
"""BCa computes the metric once without each client, which is quadratic in their number."""


class Interval(NamedTuple):
    """A metric, and the bounds between which it lies with the level of confidence asked for."""

    estimate: float
    low: float
    high: float


class SeedMean(NamedTuple):
    """Mean of a metric over seeds, its standard error, Student's 95% interval, and how many seeds there were."""

    mean: float
    standard_error: float
    low: float
    high: float
    seeds: int


def bootstrap_over_clients(
    statistic: Statistic,
    *arrays: ArrayLike,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    method: Method = "percentile",
) -> Interval:
    """Confidence interval of a metric, from resampling clients.

    Parameters
    ----------
    statistic
        The metric: takes the arrays, gives a number. For example `weighted_accuracy`.
    *arrays : arrays (M,)
        What it takes, an entry for each client. Clients with a NaN in any of them are left out.
    level : float
        Confidence.
    resamples : int
        How many times to draw.
    seed : int
        The same seed gives the same interval.
    method : {"percentile", "bca"}
        The quantiles of the resampled metric; or those corrected for bias and skewness (Efron 1987), which are better
        for few clients and are offered for up to 10,000.

    Examples
    --------
    >>> found = bootstrap_over_clients(np.mean, [0.9, 0.8, 0.7, 0.9, 0.6, 0.8])
    >>> print(f"{found.estimate:.2f} {found.low:.2f} … {found.high:.2f}")
    0.78 0.70 … 0.87
    """
    _check(level, resamples)
    if method not in get_args(Method):
        raise DataError(f"there is no method {method!r}, only percentile and bca")
    if not arrays:
        raise DataError("there is nothing to resample: give the arrays that the statistic takes")
    columns = aligned(**{f"array {k}": values for k, values in enumerate(arrays, 1)})
    there = ~np.isnan(np.sum(columns, axis=0))
    columns = [column[there] for column in columns]
    clients = len(columns[0])
    if not clients:
        return Interval(np.nan, np.nan, np.nan)
    estimate = float(statistic(*columns))
    generator = np.random.default_rng(seed)
    if method == "bca" and clients > 1:
        return _bca(statistic, columns, estimate, level, resamples, generator)
    drawn = np.empty(resamples)
    for k in range(resamples):
        chosen = _draw(generator, clients)
        drawn[k] = statistic(*(column.take(chosen) for column in columns))
    return _percentiles(estimate, drawn, level)


def bootstrap_over_seeds(
    values: Sequence[ArrayLike],
    statistic: Statistic = mean_accuracy,
    *,
    same_clients: bool = True,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Confidence interval of a metric averaged over seeds, from resampling seeds and, within them, clients.

    Few seeds are few: a bootstrap of S seeds has only (S−1)/S of the variance between them, so with three of them the
    interval is too narrow where seeds matter more than clients. `mean_over_seeds` does not have that fault.

    Parameters
    ----------
    values : S arrays (M_s,)
        Each client's result, for each seed; NaN without test data.
    statistic
        The metric of one seed, from its clients' results.
    same_clients : bool
        Whether entry i is the same client, with the same data, for every seed. Then the clients drawn are the same for
        all seeds too. False where each seed divides the data anew: clients are drawn for each seed apart.
    level, resamples, seed
        As for `bootstrap_over_clients`.

    Examples
    --------
    >>> found = bootstrap_over_seeds([[0.9, 0.8, 0.7], [0.9, 0.6, 0.8]])
    >>> print(f"{found.estimate:.2f} {found.low:.2f} … {found.high:.2f}")
    0.78 0.67 … 0.90
    """
    _check(level, resamples)
    of_seed = [numbers(each, f"values of seed {k}") for k, each in enumerate(values)]
    if not of_seed:
        raise DataError("there are no seeds: give an array for each")
    if same_clients:
        of_seed = aligned(**{f"values of seed {k}": each for k, each in enumerate(of_seed)})
        there = ~np.isnan(np.sum(of_seed, axis=0))
        of_seed = [each[there] for each in of_seed]
    else:
        of_seed = [known(each) for each in of_seed]
    if not all(map(len, of_seed)):
        return Interval(np.nan, np.nan, np.nan)
    estimate = float(np.mean([statistic(each) for each in of_seed]))
    generator = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for k in range(resamples):
        common = _draw(generator, len(of_seed[0])) if same_clients else None
        seeds = _draw(generator, len(of_seed))
        drawn[k] = np.mean(
            [statistic(of_seed[s].take(_draw(generator, len(of_seed[s])) if common is None else common)) for s in seeds]
        )
    return _percentiles(estimate, drawn, level)


def mean_over_seeds(values: ArrayLike) -> SeedMean:
    """Mean of a metric over seeds, with its standard error s/√S, s with S − 1, and Student's 95% interval.

    NaN are left out. With one seed, the error is not known: NaN.

    Examples
    --------
    >>> found = mean_over_seeds([0.80, 0.82, 0.84])
    >>> print(f"{found.mean:.3f} ± {found.standard_error:.4f}, {found.low:.3f} … {found.high:.3f}")
    0.820 ± 0.0115, 0.770 … 0.870
    """
    measured = known(numbers(values, "values"))
    seeds = len(measured)
    if seeds < 2:
        return SeedMean(float(measured[0]) if seeds else np.nan, np.nan, np.nan, np.nan, seeds)
    mean, error = float(measured.mean()), float(measured.std(ddof=1) / np.sqrt(seeds))
    reach = float(stats.t.ppf(0.975, seeds - 1)) * error
    return SeedMean(mean, error, mean - reach, mean + reach, seeds)


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise DataError(f"level = {level} must be between 0 and 1")
    if resamples < 1:
        raise DataError(f"resamples = {resamples} must be at least 1")


def _draw(generator: np.random.Generator, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return generator.integers(count, size=count, dtype=np.uint32)


def _percentiles(estimate: float, drawn: Floats, level: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high))


def _bca(
    statistic: Statistic,
    columns: list[Floats],
    estimate: float,
    level: float,
    resamples: int,
    generator: np.random.Generator,
) -> Interval:
    clients = len(columns[0])
    if clients > LARGEST_BCA:
        raise DataError(
            f"bca is for at most {LARGEST_BCA} clients, there are {clients}; use percentile, which agrees then"
        )
    with np.errstate(invalid="ignore"):
        found = stats.bootstrap(
            columns,
            statistic,
            n_resamples=resamples,
            batch=max(1, 2**20 // clients),
            vectorized=False,
            paired=True,
            confidence_level=level,
            method="BCa",
            random_state=generator,
        )
    if np.isnan(found.confidence_interval.low):  # hardly anything differs between resamples: there is no skewness
        return _percentiles(estimate, found.bootstrap_distribution, level)
    return Interval(estimate, float(found.confidence_interval.low), float(found.confidence_interval.high))
