"""Accuracies over clients: against hand-computed answers and plain Python, and what must hold for any clients."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl import metrics
from personafl.errors import DataError

CLIENTS = st.lists(
    st.integers(0, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, 8))), min_size=1
)


def columns(clients):
    return np.array(clients).T


def test_by_hand():
    found = metrics.performance_of(
        correct=[9, 1, 0, 4], n_test=[10, 2, 0, 8], n_train=[40, 8, 100, 20], loss=[0.5, 1.0, np.nan, 2.0]
    )
    assert (found.clients, found.left_out) == (3, 1)
    assert found.weighted_accuracy == 14 / 20
    assert found.mean_accuracy == pytest.approx((0.9 + 0.5 + 0.5) / 3)
    assert found.standard_deviation == pytest.approx(math.sqrt(0.16 / 3))
    assert found.median == 0.5
    assert found.worst_10 == 0.5
    assert found.top_10 == 0.9  # the client with 100 training samples has no test data
    assert found.mean_loss == pytest.approx((10 * 0.5 + 2 * 1.0 + 8 * 2.0) / 20)


def test_nobody_with_test_data_is_not_a_number():
    for found in (metrics.performance_of([0, 0], [0, 0], [1, 2], [np.nan] * 2), metrics.performance_of([], [], [], [])):
        assert found.clients == 0
        assert np.isnan([value for name, value in vars(found).items() if name not in ("clients", "left_out")]).all()


def test_who_was_not_measured_is_left_out_too():
    """There is test data and no result, as for the global model of a method that has none."""
    found = metrics.performance_of([np.nan, 1, 2], [3, 1, 4], [9, 1, 1], [np.nan, 1.0, 2.0])
    assert (found.clients, found.left_out) == (2, 1)
    assert found.weighted_accuracy == found.top_10 == 3 / 5
    assert found.mean_loss == pytest.approx(9 / 5)


def test_without_training_sizes_and_losses_these_are_not_numbers():
    found = metrics.performance_of([1], [2])
    assert np.isnan([found.top_10, found.mean_loss, found.standard_deviation]).all()


@settings(deadline=None)
@given(CLIENTS)
def test_weighted_accuracy_is_between_the_worst_and_the_best_client(clients):
    correct, n, _ = columns(clients)
    accuracy = metrics.accuracies(correct, n)
    if not (n > 0).any():
        assert math.isnan(metrics.weighted_accuracy(correct, n))
        return
    assert np.nanmin(accuracy) - 1e-12 <= metrics.weighted_accuracy(correct, n) <= np.nanmax(accuracy) + 1e-12
    assert metrics.worst_accuracy(accuracy) <= metrics.mean_accuracy(accuracy) + 1e-12
    assert metrics.worst_accuracy(accuracy, 1.0) == pytest.approx(metrics.mean_accuracy(accuracy))


@settings(deadline=None)
@given(CLIENTS, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(clients, random):
    shuffled = random.sample(clients, len(clients))
    one, other = (vars(metrics.performance_of(*columns(each))) for each in (clients, shuffled))
    assert list(one.values()) == pytest.approx(list(other.values()), nan_ok=True)


@settings(deadline=None)
@given(CLIENTS, st.sampled_from([0.1, 0.25, 0.5, 1.0]))
def test_top_accuracy_is_the_mean_over_all_ways_to_break_ties(clients, share):
    correct, n, size = columns([c for c in clients if c[1]] or [(1, 2, 1)])
    places = math.ceil(share * len(n))
    order = sorted(size, reverse=True)
    # Each client's chance of a place, when ties are broken at random.
    above, tied = [sum(s > order[places - 1] for s in size), sum(s == order[places - 1] for s in size)]
    chance = np.array(
        [1.0 if s > order[places - 1] else (places - above) / tied * (s == order[places - 1]) for s in size]
    )
    assert chance.sum() == pytest.approx(places)
    expected = (chance * correct).sum() / (chance * n).sum()
    assert metrics.top_accuracy(correct, n, size, share) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clients", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7), (71, 8), (1000, 100)]
)
def test_a_tenth_is_rounded_up(clients, tenth):
    accuracy = np.arange(clients) / clients
    assert metrics.worst_accuracy(accuracy[::-1]) == pytest.approx(accuracy[:tenth].mean())
    n = np.full(clients, 100.0)
    top = metrics.top_accuracy(100 * accuracy, n, n_train=np.arange(clients) + 1)
    assert top == pytest.approx(accuracy[-tenth:].mean())


def test_seven_percent_of_a_hundred_clients_are_seven():
    accuracy = np.arange(100.0)
    assert 0.07 * 100 > 7
    assert metrics.worst_accuracy(accuracy, 0.07) == accuracy[:7].mean()


def test_best_and_last_round():
    rounds = np.array([[0.5, np.nan, 0.7], [0.9, 0.9, 0.9], [1.0, 0.8, 0.9], [0.2, np.nan, 0.4]])
    found = metrics.best_mean_accuracy(rounds)
    assert found == (pytest.approx(0.9), 1, pytest.approx(0.3))  # the first of two equal ones
    assert metrics.best_mean_accuracy([0.6, 0.9, 0.9, 0.3]) == (0.9, 1, 0.3)
    assert np.isnan(metrics.best_mean_accuracy([[np.nan]]).best)
    assert metrics.best_mean_accuracy([np.nan, 0.5]) == (0.5, 1, 0.5)


def test_the_best_round_is_optimistic():
    """Accuracies that are pure chance: the best round is above the true .5, the last is not."""
    draw = np.random.default_rng(0)
    found = [metrics.best_mean_accuracy(draw.binomial(20, 0.5, (100, 30)) / 20) for _ in range(200)]
    assert np.mean([f.best for f in found]) > 0.54
    assert np.mean([f.last for f in found]) == pytest.approx(0.5, abs=0.005)


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1), st.floats(0, 1))
def test_quantiles_are_numpys_without_the_missing(values, q):
    assert metrics.quantile([*values, np.nan], q) == np.quantile(values, q)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: metrics.weighted_accuracy([1, 2], [1]), "n_test has 1 entries and correct has 2"),
        (lambda: metrics.weighted_accuracy([3], [2]), "client 0 has 3 correct of 2"),
        (lambda: metrics.weighted_accuracy([0], [-1]), "n_test must be 0 or more"),
        (lambda: metrics.mean_accuracy([[0.5]]), r"accuracy has shape \(1, 1\)"),
        (lambda: metrics.mean_accuracy(["good"]), "accuracy is not an array of numbers"),
        (lambda: metrics.worst_accuracy([0.5], share=0), "share = 0"),
        (lambda: metrics.quantile([0.5], 1.5), "q = 1.5"),
        (lambda: metrics.top_accuracy([1], [2], [np.nan]), "n_train is not known"),
        (lambda: metrics.best_mean_accuracy([]), "accuracy is empty"),
        (lambda: metrics.best_mean_accuracy(0.5), "number of axes must be 1 or 2"),
        (lambda: metrics.best_mean_accuracy([[0.5], [0.5, 0.6]]), "accuracy is not an array of numbers"),
    ],
)
def test_what_is_wrong_is_named(call, says):
    with pytest.raises(DataError, match=says):
        call()
