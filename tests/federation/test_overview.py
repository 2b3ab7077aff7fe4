"""Facts about the overview of a federation: the heterogeneity has its closed form, the numbers add up."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.data import IID, Digits, Dirichlet, build
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.overview import heterogeneity, label_counts, overview
from personafl_papers.data.gaussian import Gaussian
from personafl_papers.partitions.ds4 import DS4


def federation(counts):
    """Clients with so many samples of each class."""
    rows = {f"c{m}": np.repeat(np.arange(len(row)), row) for m, row in enumerate(counts)}
    data = {name: (np.zeros((len(y), 1)), y) for name, y in rows.items()}
    return Federation.from_clients(data, classes=len(counts[0]))


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_one_class_for_each_client_has_heterogeneity_one_minus_one_over_the_classes(classes):
    assert heterogeneity(federation(30 * np.eye(classes, dtype=int))) == pytest.approx(1 - 1 / classes)


def test_one_class_each_of_unequal_classes_is_one_minus_the_sum_of_squares():
    assert heterogeneity(federation(np.diag([60, 30, 10]))) == pytest.approx(1 - 0.6**2 - 0.3**2 - 0.1**2)


def test_the_same_mixture_has_none_whatever_the_sizes():
    assert heterogeneity(federation([[6, 3, 1], [60, 30, 10], [12, 6, 2]])) == pytest.approx(0)


def test_two_of_four_equal_classes_are_a_half_away_and_large_clients_count_more():
    assert heterogeneity(federation([[5, 5, 0, 0], [0, 0, 5, 5]])) == pytest.approx(0.5)
    # p = (.75, .25); the first client is .25 away and has three quarters of the samples, the second .75.
    assert heterogeneity(federation([[30, 0], [0, 10]])) == pytest.approx(0.75 * 0.25 + 0.25 * 0.75)


counts_of = st.integers(1, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 30), min_size=classes, max_size=classes).filter(any), min_size=1, max_size=8
    )
)


@given(counts=counts_of)
@settings(max_examples=60, deadline=None)
def test_it_is_the_mean_total_variation_and_at_most_that_of_one_class_each(counts):
    counts = np.array(counts)
    fed = federation(counts)
    assert np.array_equal(label_counts(fed), counts)
    share, pool = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    distance = np.array([0.5 * np.abs(row - pool).sum() for row in share])
    expected = np.average(distance, weights=counts.sum(axis=1))
    assert heterogeneity(fed) == pytest.approx(expected)
    assert -1e-12 <= heterogeneity(fed) <= 1 - (pool**2).sum() + 1e-9


def test_dealing_at_random_is_what_chance_says_and_a_partition_is_more():
    fed = build(Digits(), IID(20))
    made = overview(fed)
    assert made["heterogeneity"] == pytest.approx(made["heterogeneity_by_chance"], abs=0.03)
    # The mean absolute deviation of counts around n p is about √(2 n p (1 − p) / π).
    n, p = 1797 / 20, 0.1
    assert made["heterogeneity_by_chance"] == pytest.approx(5 * np.sqrt(2 * p * (1 - p) / (np.pi * n)), abs=0.015)
    for alpha, at_least in ((0.01, 0.75), (0.5, 0.3)):
        assert overview(build(Digits(), Dirichlet(20, alpha)))["heterogeneity"] > at_least


def test_the_overview_counts_clients_samples_and_classes():
    made = overview(build(Digits(), DS4(clients=4, k=8)))
    assert (made["name"], made["clients"], made["samples"], made["classes"]) == ("digits", 4, 120, 10)
    assert made["sizes"] == {"min": 20, "median": 30.0, "mean": 30.0, "max": 40}
    assert made["classes_per_client"] == {"min": 2, "median": 3.5, "mean": 3.5, "max": 5}
    assert made["shares"] == {"train": 0.6, "val": 0.2, "test": 0.2}
    assert made["groups"] == {"five classes": 2, "two classes": 2} and made["without_test_samples"] == 0
    assert made["notes"] == ["1677 of 1797 samples left out: the users do not ask for more"]
    assert json.loads(json.dumps(made)) == made


def test_a_regression_has_sizes_only():
    fed = build(Gaussian(n_test=0))
    made = overview(fed)
    assert made["clients"] == 20 and made["without_test_samples"] == 20
    assert made["heterogeneity"] is made["classes_per_client"] is made["classes"] is None
    with pytest.raises(DataError, match="'gaussian' is a regression"):
        heterogeneity(fed)
