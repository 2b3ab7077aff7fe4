"""Facts about iid, pathological and dirichlet: shares are even, classes are few, moments are the distribution's."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.data.partitions import IID, Dirichlet, Pathological
from personafl.errors import DataError
from tests.data.partitions.facts import deal

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)


@given(labels=labels_of, clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_iid_deals_everything_evenly_or_says_that_it_cannot(labels, clients, seed):
    if clients > len(labels):
        with pytest.raises(DataError, match=f"needs at least {clients} samples .* has {len(labels)}"):
            deal(IID(clients), labels, seed)
        return
    sizes = [len(part) for part in deal(IID(clients), labels, seed).parts]
    assert sum(sizes) == len(labels) and max(sizes) - min(sizes) <= 1


@given(
    labels=labels_of,
    clients=st.integers(1, 30),
    exponent=st.floats(-8, 8),
    min_samples=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_dirichlet_deals_everything_with_nobody_short(labels, clients, exponent, min_samples, seed):
    partition = Dirichlet(clients, 10.0**exponent, min_samples)
    if clients * min_samples > len(labels):
        with pytest.raises(DataError, match="use fewer clients"):
            deal(partition, labels, seed)
        return
    sizes = [len(part) for part in deal(partition, labels, seed).parts]
    assert sum(sizes) == len(labels) and min(sizes) >= min_samples


@given(clients=st.integers(1, 25), classes=st.integers(1, 12), per_client=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_pathological_gives_exactly_that_many_classes_and_uses_them_evenly(clients, classes, per_client, seed):
    labels = np.repeat(np.arange(classes), 30)
    per_client = min(per_client, classes)
    dealt = deal(Pathological(clients, per_client), labels, seed)
    held = [np.unique(labels[part]) for part in dealt.parts]
    assert {len(some) for some in held} == {per_client}
    uses = np.bincount(np.concatenate(held), minlength=classes)
    assert uses.max() - uses.min() <= 1
    left_out = len(labels) - sum(len(part) for part in dealt.parts)
    assert left_out == 30 * (uses == 0).sum()
    assert bool(dealt.notes) == bool(left_out)


def test_dirichlet_small_alpha_gives_each_class_to_one_client_and_large_alpha_to_all_alike():
    labels = np.repeat(np.arange(10), 500)
    tiny = deal(Dirichlet(5, 1e-8), labels)
    owners = [sum(bool((labels[part] == c).sum() > 5) for part in tiny.parts) for c in range(10)]
    assert owners == [1] * 10
    huge = deal(Dirichlet(5, 1e8), labels)
    mixture = np.array([np.bincount(labels[part], minlength=10) for part in huge.parts])
    assert np.abs(mixture - 100).max() <= 1


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    alpha, clients, size = 0.5, 4, 1000
    labels = np.repeat(np.arange(400), size)
    dealt = deal(Dirichlet(clients, alpha), labels)
    shares = np.array([np.bincount(labels[part], minlength=400) for part in dealt.parts]) / size
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.mean(axis=1) == pytest.approx(1 / clients, abs=0.05)
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_dirichlet_notes_who_was_helped_and_the_largest_give():
    labels = np.zeros(100, int)
    dealt = deal(Dirichlet(5, 1e-8, min_samples=3), labels)
    assert sorted(len(part) for part in dealt.parts) == [3, 3, 3, 3, 88]
    assert len(dealt.notes) == 1
    assert dealt.notes[0].startswith("moved 12 samples from the largest clients")
    helped = [m for m, part in enumerate(dealt.parts) if len(part) == 3]
    assert all(f"client-{m} (3)" in dealt.notes[0] for m in helped)
    assert deal(Dirichlet(2, 100.0), labels).notes == []


def test_dirichlet_is_fast():
    labels = np.random.default_rng(0).integers(0, 10, 70_000)
    start = time.process_time()
    deal(Dirichlet(1000, 0.1), labels)
    assert time.process_time() - start < 1.0
