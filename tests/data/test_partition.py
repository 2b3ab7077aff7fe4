"""Facts about partitions: nothing is dealt twice, nobody goes without, the same seed deals the same."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.data.partition import PARTITIONS, Dirichlet, Iid, Pathological
from personafl.errors import ConfigError, DataError


def deal(partition, labels, seed=0):
    return partition(np.asarray(labels), np.random.default_rng(seed))


def assert_proper(dealt, samples):
    together = np.concatenate(dealt.parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < samples
    assert min(len(part) for part in dealt.parts) >= 1


labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)


@given(labels=labels_of, clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_iid_deals_everything_evenly_or_says_that_it_cannot(labels, clients, seed):
    if clients > len(labels):
        with pytest.raises(DataError, match=f"needs at least {clients} samples .* has {len(labels)}"):
            deal(Iid(clients), labels, seed)
        return
    dealt = deal(Iid(clients), labels, seed)
    sizes = [len(part) for part in dealt.parts]
    assert_proper(dealt, len(labels))
    assert sum(sizes) == len(labels) and max(sizes) - min(sizes) <= 1


@given(
    labels=labels_of,
    clients=st.integers(1, 30),
    exponent=st.floats(-8, 8),
    min_samples=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_dirichlet_always_ends_with_everything_dealt_and_nobody_short(labels, clients, exponent, min_samples, seed):
    partition = Dirichlet(clients, 10.0**exponent, min_samples)
    if clients * min_samples > len(labels):
        with pytest.raises(DataError, match="use fewer clients"):
            deal(partition, labels, seed)
        return
    dealt = deal(partition, labels, seed)
    assert_proper(dealt, len(labels))
    assert sum(len(part) for part in dealt.parts) == len(labels)
    assert min(len(part) for part in dealt.parts) >= min_samples
    again = deal(partition, labels, seed)
    assert all(np.array_equal(a, b) for a, b in zip(dealt.parts, again.parts, strict=True))


@given(
    clients=st.integers(1, 25),
    classes=st.integers(1, 12),
    per_client=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_pathological_gives_exactly_that_many_classes_and_uses_them_evenly(clients, classes, per_client, seed):
    labels = np.repeat(np.arange(classes), 30)
    partition = Pathological(clients, per_client)
    if per_client > classes:
        with pytest.raises(ConfigError, match=f"classes_per_client = {per_client}, .* hold {classes} classes"):
            deal(partition, labels, seed)
        return
    dealt = deal(partition, labels, seed)
    assert_proper(dealt, len(labels))
    held = [np.unique(labels[part]) for part in dealt.parts]
    assert {len(some) for some in held} == {per_client}
    uses = np.bincount(np.concatenate(held), minlength=classes)
    assert uses.max() - uses.min() <= 1
    left_out = len(labels) - sum(len(part) for part in dealt.parts)
    assert left_out == 30 * (uses == 0).sum()
    assert bool(dealt.notes) == bool(left_out)


@pytest.mark.parametrize("partition", [Iid(7), Pathological(7, 2), Dirichlet(7, 0.3)])
def test_the_seed_decides(partition):
    labels = np.repeat(np.arange(5), 40)
    first, same, other = (deal(partition, labels, seed).parts for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


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
    start = time.perf_counter()
    deal(Dirichlet(1000, 0.1), labels)
    assert time.perf_counter() - start < 1.0


def test_pathological_says_which_class_is_too_small():
    labels = np.array([0] * 50 + [1] * 2)
    with pytest.raises(DataError, match="class 1 has 2 samples and 5 clients need some"):
        deal(Pathological(5, 2), labels)


@pytest.mark.parametrize("partition", [Pathological(2, 1), Dirichlet(2)])
def test_partitions_by_class_refuse_regression(partition):
    with pytest.raises(DataError, match=r"needs integer labels.*float64.*use iid"):
        deal(partition, np.linspace(0, 1, 9))


@pytest.mark.parametrize("partition", [Iid(1), Pathological(1, 1), Dirichlet(1)])
def test_no_samples_is_an_error(partition):
    with pytest.raises(DataError, match="needs at least 1 samples"):
        deal(partition, np.zeros(0, int))


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Iid(0), "clients = 0 must be a whole number of at least 1"),
        (lambda: Iid(2.5), "clients = 2.5"),
        (lambda: Iid(True), "clients = True"),
        (lambda: Pathological(classes_per_client=0), "classes_per_client = 0"),
        (lambda: Dirichlet(min_samples=0), "min_samples = 0 .* cannot train"),
        (lambda: Dirichlet(alpha=0.0), "alpha = 0.0 must be positive"),
        (lambda: Dirichlet(alpha=float("nan")), "alpha = nan"),
        (lambda: Dirichlet(alpha=float("inf")), "alpha = inf"),
    ],
)
def test_settings_out_of_range_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_the_registry_knows_partitions_by_name():
    assert {"iid": Iid, "pathological": Pathological, "dirichlet": Dirichlet}.items() <= PARTITIONS.items()
