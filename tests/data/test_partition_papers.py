"""Facts about the papers' partitions: the published numbers come out, and nothing is dealt twice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.data.partition import PARTITIONS, Lognormal, PowerLaw, Practical
from personafl.errors import ConfigError, DataError

MNIST_LABELS = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])


def deal(partition, labels, seed=0):
    return partition(np.asarray(labels), np.random.default_rng(seed))


def assert_proper(dealt, samples):
    together = np.concatenate(dealt.parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < samples
    assert min(len(part) for part in dealt.parts) >= 1


def assert_same(first, second):
    assert first.groups == second.groups and first.notes == second.notes
    assert all(np.array_equal(a, b) for a, b in zip(first.parts, second.parts, strict=True))


def counts_of(dealt, labels, classes):
    return np.array([np.bincount(labels[part], minlength=classes) for part in dealt.parts])


def neighbours(clients, per_client, classes):
    """Which of the classes u, u+1, … client u has, as a table."""
    has = np.zeros((clients, classes), bool)
    for u in range(clients):
        for j in range(per_client):
            has[u, (u + j) % classes] = True
    return has


def outcome(partition, labels, seed):
    """The assignment, or None where the data cannot give what is asked; any other error is a failure."""
    try:
        return deal(partition, labels, seed)
    except (ConfigError, DataError) as error:
        assert str(error).startswith(f"partition {partition.name}")
        return None


def test_powerlaw_gives_the_published_mnist_federation():
    sizes = []
    for seed in range(5):
        dealt = deal(PowerLaw(), MNIST_LABELS, seed)
        assert_proper(dealt, 70_000)
        counts = counts_of(dealt, MNIST_LABELS, 10)
        assert np.array_equal(counts > 0, neighbours(1000, 2, 10)) and counts[counts > 0].min() >= 5
        sizes.append(counts.sum(axis=1))
        assert sizes[-1].mean() == pytest.approx(69, abs=0.2)
        assert dealt.notes == [f"{70_000 - counts.sum()} of 70000 samples left out: shares are rounded down"]
    # A heavy tail: the standard deviation is twice the mean, and varies much from draw to draw.
    assert 80 < np.std(sizes) < 250 and np.median(sizes) < 35


def test_powerlaw_without_spread_gives_equal_shares():
    labels = np.repeat(np.arange(4), 50)
    counts = counts_of(deal(PowerLaw(8, 2, least=5, sigma=0.0), labels), labels, 4)
    assert np.array_equal(counts, neighbours(8, 2, 4) * 12)  # 50 over 4 clients a class: 5 + ⌊30 / 4⌋


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 15),
    per_client=st.integers(1, 7),
    least=st.integers(1, 4),
    sigma=st.sampled_from([0.0, 0.5, 2.0, 50.0, 1e6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_powerlaw_always_ends_with_the_least_for_everybody(sizes, clients, per_client, least, sigma, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    partition = PowerLaw(clients, per_client, least, sigma)
    dealt = outcome(partition, labels, seed)
    has = neighbours(clients, per_client, len(sizes))
    assert (dealt is None) == (per_client > len(sizes) or bool((least * has.sum(axis=0) > sizes).any()))
    if dealt is not None:
        assert_proper(dealt, len(labels))
        counts = counts_of(dealt, labels, len(sizes))
        assert np.array_equal(counts > 0, has) and counts[has].min() >= least
        assert_same(dealt, deal(partition, labels, seed))


def test_lognormal_gives_the_sizes_of_the_paper_where_there_is_enough():
    labels = np.repeat(np.arange(10), 200_000)
    partition = Lognormal(clients=5000)
    dealt = deal(partition, labels)
    assert_proper(dealt, len(labels))
    counts = counts_of(dealt, labels, 10)
    sizes = counts.sum(axis=1)
    assert dealt.notes == [] and sizes.min() >= 5
    assert np.array_equal(counts > 0, neighbours(5000, 5, 10))
    assert np.log(sizes - 4.5).mean() == pytest.approx(4, abs=0.05)
    assert np.log(sizes - 4.5).std() == pytest.approx(1, abs=0.05)
    mine = np.sort(counts, axis=1)[:, -5:]
    assert (mine[:, -1] - mine[:, 0]).max() <= 1


def test_lognormal_scales_only_the_class_that_runs_short_and_says_so():
    labels = np.repeat(np.arange(10), [5000] * 9 + [189])
    dealt = deal(Lognormal(), labels)
    counts = counts_of(dealt, labels, 10)
    assert counts[:, 9].sum() == 189 and np.array_equal(counts > 0, neighbours(200, 5, 10))
    assert len(dealt.notes) == 1 and dealt.notes[0].startswith("too few samples of class 9 (189 of ")
    assert "instead of" in dealt.notes[0]
    clients = counts[:, 9] > 0
    drawn, got = counts[clients, :9].sum(axis=1) / 4, counts[clients, 9]  # a client's other four classes were kept
    exact = 1 + (drawn - 1) * (189 - 100) / (drawn.sum() - 100)
    assert np.abs(got - exact).max() < 1.1


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 15),
    per_client=st.integers(1, 5),
    mean=st.sampled_from([-1e6, 0.0, 2.0, 1e6]),
    sigma=st.sampled_from([0.0, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_lognormal_always_ends_with_every_class_for_its_clients(sizes, clients, per_client, mean, sigma, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    partition = Lognormal(clients, per_client, mean, sigma)
    dealt = outcome(partition, labels, seed)
    has = neighbours(clients, per_client, len(sizes))
    assert (dealt is None) == (per_client > len(sizes) or bool((has.sum(axis=0) > sizes).any()))
    if dealt is not None:
        assert_proper(dealt, len(labels))
        counts = counts_of(dealt, labels, len(sizes))
        assert np.array_equal(counts > 0, has)
        if not dealt.notes:
            assert counts.sum(axis=1).min() >= 5
        assert_same(dealt, deal(partition, labels, seed))


def test_practical_gives_fedamps_emnist_federation():
    labels = np.repeat(np.arange(62), 2000)
    dealt = deal(Practical("emnist"), labels)
    assert_proper(dealt, len(labels))
    counts = counts_of(dealt, labels, 62)
    assert counts.sum(axis=1).tolist() == [1000] * 10 + [700] * 26 + [400] * 26
    assert dealt.groups == ["digits"] * 10 + ["upper"] * 26 + ["lower"] * 26
    for clients, classes in ((slice(0, 10), slice(0, 10)), (slice(10, 36), slice(10, 36)), (slice(36, 62),) * 2):
        assert (counts[clients, classes].sum(axis=1) / counts[clients].sum(axis=1)).tolist() == [0.8] * len(
            counts[clients]
        )


@pytest.mark.parametrize("preset", ["mnist", "fmnist"])
def test_practical_presets_of_ours_cover_ten_classes_once_and_fit_the_pool(preset):
    groups = Practical(preset).settings().groups
    assert sorted(c for members in groups.values() for c in members) == list(range(10)) and len(groups) == 3
    labels = MNIST_LABELS if preset == "mnist" else np.repeat(np.arange(10), 7000)
    for seed in range(3):
        dealt = deal(Practical(preset), labels, seed)
        assert_proper(dealt, 70_000)
        for group, row in zip(dealt.groups, counts_of(dealt, labels, 10), strict=True):
            assert row[list(groups[group])].sum() == 0.8 * row.sum()


def test_practical_takes_a_presets_groups_with_other_numbers():
    dealt = deal(Practical("fmnist", clients=(1, 2, 3), samples=(30, 20, 10)), np.repeat(np.arange(10), 20))
    assert [len(part) for part in dealt.parts] == [30, 20, 20, 10, 10, 10]
    assert dealt.groups == ["tops", "shoes", "shoes", "other", "other", "other"]
    assert dealt.notes == ["100 of 200 samples left out: the groups do not ask for more"]


@given(
    sizes=st.lists(st.integers(5, 80), min_size=2, max_size=6),
    groups=st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    clients=st.integers(1, 4),
    samples=st.integers(1, 40),
    dominating=st.floats(0.01, 1.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_practical_always_ends_with_the_sizes_asked_for(sizes, groups, clients, samples, dominating, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    members = tuple(tuple(sorted(group)) for group in groups)
    each = (clients,) * len(members), (samples,) * len(members)
    partition = Practical(members, *each, dominating)
    dealt = outcome(partition, labels, seed)
    if dealt is None:
        return
    assert_proper(dealt, len(labels))
    most = max(1, round(samples * dominating))
    for m, row in enumerate(counts_of(dealt, labels, len(sizes))):
        mine = list(members[m // clients])
        others = np.delete(row, mine)
        assert row.sum() == samples and row[mine].sum() == most and dealt.groups[m] == f"group-{m // clients}"
        assert np.ptp(row[mine]) <= 1 and (not others.size or np.ptp(others) <= 1)
    assert_same(dealt, deal(partition, labels, seed))


@pytest.mark.parametrize(
    "partition", [PowerLaw(20), Lognormal(20, mean=2.0), Practical(((0, 1), (2,)), (2, 3), (9, 9))]
)
def test_the_seed_decides(partition):
    labels = np.repeat(np.arange(5), 100)
    first, same, other = (deal(partition, labels, seed) for seed in (1, 1, 2))
    assert_same(first, same)
    assert not all(np.array_equal(a, b) for a, b in zip(first.parts, other.parts, strict=True))


@pytest.mark.parametrize("kind", [PowerLaw, Lognormal, Practical])
def test_partitions_by_class_refuse_regression_and_emptiness(kind):
    with pytest.raises(DataError, match=r"needs integer labels.*float64.*use iid"):
        deal(kind(), np.linspace(0, 1, 9))
    with pytest.raises(DataError, match="needs at least 1 samples"):
        deal(kind(), np.zeros(0, int))


LABELS = np.repeat(np.arange(10), 30)


@pytest.mark.parametrize(
    "partition, error, said",
    [
        (PowerLaw(60), DataError, "powerlaw: class 0 has 30 samples and the clients need 60 of it; use fewer clients"),
        (PowerLaw(10**12), DataError, "powerlaw needs at least 2000000000000 samples"),
        (PowerLaw(5, 11), ConfigError, "powerlaw: classes_per_client = 11, but the labels hold 10 classes"),
        (Lognormal(10**12), DataError, "lognormal needs at least 5000000000000 samples"),
        (Lognormal(5, 11, least=11), ConfigError, "classes_per_client = 11, but the labels hold 10"),
        (Practical(), DataError, "practical needs at least 42000 samples .* the data has 300"),
        (Practical(((0, 10),), (1,), (5,)), DataError, r"group-0 has class 10, .* 10 classes of the labels \(0 to 9\)"),
        (Practical("emnist", samples=(1, 1, 1)), DataError, "upper has class 10, which is not among"),
        (Practical(((0,),), (1,), (100,)), DataError, "class 0 has 30 samples and the clients need 80 of it"),
        (Practical((tuple(range(10)),), (1,), (100,)), DataError, "all 10 classes .* other 20 samples"),
    ],
)
def test_what_the_data_cannot_give_is_named(partition, error, said):
    with pytest.raises(error, match=said):
        deal(partition, LABELS)


def test_lognormal_names_a_class_with_fewer_samples_than_clients():
    labels = np.repeat(np.arange(10), [30] * 9 + [4])
    with pytest.raises(DataError, match="class 9 has 4 samples and the clients need 5 of it"):
        deal(Lognormal(10), labels)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: PowerLaw(0), "powerlaw: clients = 0 must be a whole number of at least 1"),
        (lambda: PowerLaw(least=0), "least = 0"),
        (lambda: PowerLaw(classes_per_client=2.0), "classes_per_client = 2.0"),
        (lambda: PowerLaw(sigma=float("nan")), "sigma = nan must be in 0 to 1e6"),
        (lambda: PowerLaw(sigma=-1.0), "sigma = -1.0"),
        (lambda: Lognormal(mean=float("inf")), "mean = inf must be in -1e6 to 1e6"),
        (lambda: Lognormal(classes_per_client=6), "least = 5 must not be below classes_per_client = 6"),
        (lambda: Practical("cifar"), "groups = 'cifar' is no preset; use mnist, fmnist, emnist"),
        (lambda: Practical(()), "groups is empty"),
        (lambda: Practical(((),), (1,), (1,)), r"group-0 has the classes \(\)"),
        (lambda: Practical(((1, 1),), (1,), (1,)), r"group-0 has the classes \(1, 1\); give it .* different"),
        (lambda: Practical((0, 1), (1, 1), (1, 1)), "group-0 has the classes 0;"),
        (lambda: Practical(((0,), (1,))), r"clients = \[\] must be 2 whole numbers of at least 1, one for each group"),
        (lambda: Practical("mnist", clients=(1, 2)), r"clients = \[1, 2\] must be 3 whole numbers"),
        (lambda: Practical("mnist", samples=(1, 0, 1)), r"samples = \[1, 0, 1\]"),
        (lambda: Practical(dominating=0.0), "dominating = 0.0 must be above 0"),
        (lambda: Practical(dominating=float("nan")), "dominating = nan"),
    ],
)
def test_settings_out_of_range_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_the_registry_knows_the_papers_partitions_by_name():
    assert {"powerlaw": PowerLaw, "lognormal": Lognormal, "practical": Practical}.items() <= PARTITIONS.items()
