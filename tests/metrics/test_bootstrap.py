"""Bootstrap intervals against scipy, closed forms and their promise to cover."""

import numpy as np
import pytest
from scipy import stats

from personafl import metrics
from personafl.errors import DataError

NORMAL = 2 * stats.norm.ppf(0.975)


def test_of_a_mean_it_is_the_standard_error():
    values = np.random.default_rng(0).beta(5, 2, 3000)
    found = metrics.bootstrap_over_clients(np.mean, values, resamples=4000)
    assert found.estimate == values.mean()
    assert (found.high - found.low) / NORMAL == pytest.approx(values.std() / np.sqrt(3000), rel=0.05)
    assert (found.low + found.high) / 2 == pytest.approx(values.mean(), abs=2e-4)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_of_a_ratio_it_is_scipys(method):
    draw = np.random.default_rng(1)
    n = draw.integers(1, 60, 80)
    correct = draw.binomial(n, draw.beta(6, 2, 80))
    found = metrics.bootstrap_over_clients(metrics.weighted_accuracy, correct, n, resamples=4000, method=method)
    reference = stats.bootstrap(
        (correct, n),
        lambda hits, all: hits.sum() / all.sum(),
        paired=True,
        vectorized=False,
        n_resamples=4000,
        method={"percentile": "percentile", "bca": "BCa"}[method],
        random_state=np.random.default_rng(2),
    ).confidence_interval
    assert found.estimate == correct.sum() / n.sum()
    assert [found.low, found.high] == pytest.approx([reference.low, reference.high], abs=0.004)


def test_it_covers():
    """Of 200 federations whose clients come from the same population, about 95% of the intervals hold its mean."""
    draw = np.random.default_rng(3)
    held = 0
    for k in range(200):
        found = metrics.bootstrap_over_clients(np.mean, draw.beta(5, 2, 50), resamples=200, seed=k)
        held += found.low <= 5 / 7 <= found.high
    assert 0.90 <= held / 200 <= 0.98


def test_the_seed_decides():
    values = np.random.default_rng(0).random(30)
    one, again, other = (metrics.bootstrap_over_clients(np.mean, values, resamples=100, seed=s) for s in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_client_stays_together_and_who_has_no_data_is_left_out():
    values = np.array([0.2, np.nan, 0.9, 0.4])
    found = metrics.bootstrap_over_clients(lambda a, b: float(np.abs(a - b).sum()), values, values, resamples=50)
    assert found == (0, 0, 0)
    alone = metrics.bootstrap_over_clients(np.mean, values[[0, 2, 3]], resamples=50)
    assert metrics.bootstrap_over_clients(np.mean, values, resamples=50) == alone


def test_degenerate():
    assert np.isnan(metrics.bootstrap_over_clients(np.mean, [np.nan], resamples=10)).all()
    for method in ("percentile", "bca"):
        assert metrics.bootstrap_over_clients(np.mean, [0.5], resamples=10, method=method) == (0.5, 0.5, 0.5)
    with pytest.warns(stats.DegenerateDataWarning):
        assert metrics.bootstrap_over_clients(np.mean, [0.5] * 4, resamples=10, method="bca") == (0.5, 0.5, 0.5)


def spread_of_means(values, same_clients):
    """Standard deviation of the resampled mean over (S, M) values, in closed form."""
    S, M = values.shape
    between_seeds, within = values.mean(1).var(), values.var(1).mean()
    if not same_clients:
        return np.sqrt((between_seeds + within / M) / S)
    between_clients = values.mean(0).var()
    return np.sqrt(between_clients / M + (between_seeds + (within - between_clients) / M) / S)


@pytest.mark.parametrize("same_clients", [True, False])
def test_over_seeds_it_has_the_variance_of_seeds_and_clients(same_clients):
    draw = np.random.default_rng(4)
    values = draw.normal(0, 0.1, (25, 1)) + draw.normal(0, 0.4, 40) + draw.normal(0, 0.2, (25, 40))
    found = metrics.bootstrap_over_seeds(values, same_clients=same_clients, resamples=1500)
    assert found.estimate == pytest.approx(values.mean())
    expected = spread_of_means(values, same_clients)
    assert spread_of_means(values, True) > 1.5 * spread_of_means(values, False)
    assert (found.high - found.low) / NORMAL == pytest.approx(expected, rel=0.1)


def test_seeds_may_have_different_numbers_of_clients():
    found = metrics.bootstrap_over_seeds([[0.5, 0.5, np.nan], [0.7] * 5], same_clients=False, resamples=200)
    assert found.estimate == pytest.approx(0.6)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.7))
    with pytest.raises(DataError, match="values of seed 1 has 5 entries"):
        metrics.bootstrap_over_seeds([[0.5, 0.5], [0.7] * 5])
    assert np.isnan(metrics.bootstrap_over_seeds([[np.nan], [0.5]], resamples=5)).all()


def test_mean_over_seeds_is_students():
    values = [0.81, 0.84, 0.80, 0.83]
    found = metrics.mean_over_seeds([*values, np.nan])
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.standard_error == pytest.approx(stats.sem(values))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.seeds == 4
    one = metrics.mean_over_seeds([0.5])
    assert (one.mean, one.seeds) == (0.5, 1)
    assert np.isnan([one.standard_error, one.low, one.high]).all()
    assert np.isnan(metrics.mean_over_seeds([]).mean)


def test_what_is_wrong_is_named():
    values = np.ones(10_001)
    for call, says in [
        (lambda: metrics.bootstrap_over_clients(np.mean), "nothing to resample"),
        (lambda: metrics.bootstrap_over_clients(np.mean, values, level=95), "level = 95"),
        (lambda: metrics.bootstrap_over_clients(np.mean, values, resamples=0), "resamples = 0"),
        (lambda: metrics.bootstrap_over_clients(np.mean, values, method="bca"), "at most 10000 clients"),
        (lambda: metrics.bootstrap_over_clients(np.mean, values, method="basic"), "no method 'basic'"),
        (lambda: metrics.bootstrap_over_clients(np.mean, [1, 2], [1]), "array 2 has 1 entries"),
        (lambda: metrics.bootstrap_over_seeds([]), "no seeds"),
    ]:
        with pytest.raises(DataError, match=says):
            call()
