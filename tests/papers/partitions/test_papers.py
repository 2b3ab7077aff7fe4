"""Facts about the papers' partitions: the published numbers come out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.config import parse
from personafl.data import Digits, build
from personafl.data.partitions import PARTITIONS, Dirichlet, Lognormal, PowerLaw
from personafl.errors import ConfigError, DataError
from personafl_papers.partitions.ds1 import DS1
from personafl_papers.partitions.ds2 import DS2
from personafl_papers.partitions.ds3 import DS3
from personafl_papers.partitions.ds4 import DS4
from personafl_papers.partitions.pfedme import PFedMeUsers
from personafl_papers.partitions.practical import Practical
from tests.data.partitions.facts import CIFAR10_LABELS, MNIST_LABELS, assert_proper, counts_of, deal, neighbours


def outcome(partition, labels, seed):
    """The assignment, or None where the data cannot give what is asked."""
    try:
        return deal(partition, labels, seed)
    except (ConfigError, DataError):
        return None


# FedProx


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
@settings(max_examples=100, deadline=None)
def test_powerlaw_gives_the_least_to_everybody_wherever_that_is_possible(
    sizes, clients, per_client, least, sigma, seed
):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    dealt = outcome(PowerLaw(clients, per_client, least, sigma), labels, seed)
    has = neighbours(clients, per_client, len(sizes))
    assert (dealt is None) == (per_client > len(sizes) or bool((least * has.sum(axis=0) > sizes).any()))
    if dealt is not None:
        counts = counts_of(dealt, labels, len(sizes))
        assert np.array_equal(counts > 0, has) and counts[has].min() >= least


def test_lognormal_gives_the_sizes_of_the_paper_where_there_is_enough():
    labels = np.repeat(np.arange(10), 200_000)
    dealt = deal(Lognormal(clients=5000), labels)
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
@settings(max_examples=100, deadline=None)
def test_lognormal_gives_every_class_to_its_clients_wherever_that_is_possible(
    sizes, clients, per_client, mean, sigma, seed
):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    dealt = outcome(Lognormal(clients, per_client, mean, sigma), labels, seed)
    has = neighbours(clients, per_client, len(sizes))
    assert (dealt is None) == (per_client > len(sizes) or bool((has.sum(axis=0) > sizes).any()))
    if dealt is not None:
        counts = counts_of(dealt, labels, len(sizes))
        assert np.array_equal(counts > 0, has)
        if not dealt.notes:
            assert counts.sum(axis=1).min() >= 5


# pFedMe


def test_pfedme_gives_twenty_users_of_cifar10_three_labels_and_about_1150_to_4500_images():
    smallest, largest = [], []
    for seed in range(40):
        dealt = deal(PFedMeUsers(), CIFAR10_LABELS, seed)
        counts = counts_of(dealt, CIFAR10_LABELS, 10)
        assert np.array_equal(counts > 0, neighbours(20, 3, 10))
        smallest.append(counts.sum(axis=1).min())
        largest.append(counts.sum(axis=1).max())
    assert np.median(smallest) == pytest.approx(1150, rel=0.15)
    assert np.median(largest) == pytest.approx(4500, rel=0.15)


# FedAMP


@pytest.mark.parametrize("pool", ["balanced", "as uneven as EMNIST"])
def test_practical_gives_fedamps_emnist_federation(pool):
    sizes = [2000] * 62 if pool == "balanced" else [*[38_000] * 10, *range(27_000, 1_000, -1_000), *[1_100] * 26]
    labels = np.repeat(np.arange(62), sizes)
    dealt = deal(Practical("emnist"), labels)
    assert_proper(dealt, len(labels))
    counts = counts_of(dealt, labels, 62)
    assert len(counts) == 62 and (counts > 0).all()  # "every client has data from all classes"
    assert counts.sum(axis=1).tolist() == [1000] * 10 + [700] * 26 + [400] * 26
    assert dealt.groups == ["digits"] * 10 + ["upper"] * 26 + ["lower"] * 26
    for group in (slice(0, 10), slice(10, 36), slice(36, 62)):
        assert (counts[group, group].sum(axis=1) == 0.8 * counts[group].sum(axis=1)).all()


EMNIST_TEST = [
    5778, 6330, 5869, 5969, 5619, 5190, 5705, 6139, 5633, 5686,
    1062, 648, 1739, 779, 851, 1440, 447, 521, 2048, 626, 382, 810, 1485, 1351, 4156, 1397, 413, 809, 3508, 1576, 2002,
    796, 806, 432, 798, 464, 1644, 853, 432, 1683, 4092, 400, 589, 1479, 427, 317, 466, 2535, 464, 1898,
    466, 368, 505, 2320, 437, 2965, 482, 468, 467, 470, 381, 451,
]  # fmt: skip
"""How many of each of its 62 classes the test images of EMNIST by class are."""


def test_practical_of_emnists_test_images_has_fewer_of_what_is_short():
    labels = np.repeat(np.arange(62), EMNIST_TEST)
    sizes = {"groups": "emnist", "samples": (1250, 875, 500)}
    with pytest.raises(DataError, match=r'class 20 has 382 samples .* or short = "fewer"'):
        deal(Practical(**sizes), labels)
    dealt = deal(Practical(**sizes, short="fewer"), labels)
    assert_proper(dealt, len(labels))
    assert "class 20 (382 of 8" in dealt.notes[0]
    counts = counts_of(dealt, labels, 62)
    assert (counts > 0).all() and (counts.sum(axis=0) <= EMNIST_TEST).all() and counts[:, 20].sum() == 382
    for group, asked, got in ((slice(0, 10), 1250, 1215), (slice(10, 36), 875, 766), (slice(36, 62), 500, 432)):
        assert (
            counts[group].sum(axis=1).mean() == pytest.approx(got, abs=5) and counts[group].sum(axis=1).max() <= asked
        )
        assert counts[group, group].sum() / counts[group].sum() == pytest.approx(0.8, abs=0.03), "as good as 80%"
    plenty = np.repeat(np.arange(62), 2000)
    plain, same = (deal(Practical(**sizes, **own), plenty) for own in ({}, {"short": "fewer"}))
    assert all(np.array_equal(a, b) for a, b in zip(plain.parts, same.parts, strict=True)), "where nothing is short"


@pytest.mark.parametrize(
    "preset, labels",
    [
        ("mnist", MNIST_LABELS),
        ("fmnist", np.repeat(np.arange(10), 7000)),
        ("cifar100", np.repeat(np.arange(100), 600)),
    ],
)
def test_practical_presets_of_ours_have_every_class_once_and_fit_the_pool(preset, labels):
    classes = int(labels.max()) + 1
    groups = Practical(preset).settings().groups
    assert sorted(c for members in groups.values() for c in members) == list(range(classes)) and len(groups) == 3
    for seed in range(3):
        dealt = deal(Practical(preset), labels, seed)
        assert_proper(dealt, len(labels))
        counts = counts_of(dealt, labels, classes)
        assert counts.sum(axis=1).tolist() == [1000] * 20 + [700] * 20 + [400] * 20 and (counts > 0).all()
        for group, row in zip(dealt.groups, counts, strict=True):
            assert row[list(groups[group])].sum() == 0.8 * row.sum()


CIFAR100 = {
    "animals": """
        beaver dolphin otter seal whale aquarium_fish flatfish ray shark trout bee beetle butterfly caterpillar
        cockroach bear leopard lion tiger wolf camel cattle chimpanzee elephant kangaroo fox porcupine possum raccoon
        skunk crab lobster snail spider worm baby boy girl man woman crocodile dinosaur lizard snake turtle hamster
        mouse rabbit shrew squirrel""",
    "things": """
        bottle bowl can cup plate clock keyboard lamp telephone television bed chair couch table wardrobe bridge
        castle house road skyscraper bicycle bus motorcycle pickup_truck train lawn_mower rocket streetcar tank
        tractor""",
    "plants": """
        orchid poppy rose sunflower tulip apple mushroom orange pear sweet_pepper cloud forest mountain plain sea
        maple_tree oak_tree palm_tree pine_tree willow_tree""",
}


def test_the_groups_of_cifar100_are_what_their_names_say():
    names = sorted(name for members in CIFAR100.values() for name in members.split())  # the labels' order
    made = Practical("cifar100").settings().groups
    assert {g: sorted(names[c] for c in members) for g, members in made.items()} == {
        g: sorted(members.split()) for g, members in CIFAR100.items()
    }


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
@settings(max_examples=100, deadline=None)
def test_practical_gives_the_sizes_asked_for(sizes, groups, clients, samples, dominating, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    members = tuple(tuple(sorted(group)) for group in groups)
    each = (clients,) * len(members), (samples,) * len(members)
    dealt = outcome(Practical(members, *each, dominating), labels, seed)
    if dealt is None:
        return
    most = max(1, round(samples * dominating))
    for m, row in enumerate(counts_of(dealt, labels, len(sizes))):
        mine = list(members[m // clients])
        others = np.delete(row, mine)
        assert row.sum() == samples and row[mine].sum() == most and dealt.groups[m] == f"group-{m // clients}"
        assert np.ptp(row[mine]) <= 1 and (not others.size or np.ptp(others) <= 1)


# PersFL


@pytest.mark.parametrize("labels", [MNIST_LABELS, CIFAR10_LABELS], ids=["mnist", "cifar10"])
@pytest.mark.parametrize("seed", range(3))
def test_ds1_gives_ten_users_equal_totals_of_four_classes(labels, seed):
    counts = counts_of(deal(DS1(), labels, seed), labels, 10)
    assert len(counts) == 10 and ((counts > 0).sum(axis=1) == 4).all()
    totals = counts.sum(axis=1)
    assert len(set(totals)) == 1 and totals[0] >= 0.999 * len(labels) / 10
    held = np.sort(counts, axis=1)[:, -4:]
    assert (held[:, -1] / held[:, 0]).mean() > 2  # "a different number of samples per class"


@given(
    sizes=st.lists(st.integers(1, 90), min_size=2, max_size=8),
    clients=st.integers(1, 12),
    per_client=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_ds1_totals_are_equal_and_the_classes_used_alike_in_any_pool(sizes, clients, per_client, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    dealt = outcome(DS1(clients, per_client), labels, seed)
    if dealt is None:
        return
    counts = counts_of(dealt, labels, len(sizes))
    assert np.ptp(counts.sum(axis=1)) == 0 and ((counts > 0).sum(axis=1) == per_client).all()
    assert np.ptp((counts > 0).sum(axis=0)) <= 1
    assert bool(dealt.notes) == (counts.sum() < len(labels))


def test_ds1_uses_nearly_everything_where_equal_totals_are_possible():
    labels = np.repeat(np.arange(10), 6000)
    for per_client in (2, 4, 10):
        assert sum(map(len, deal(DS1(10, per_client), labels).parts)) > 0.998 * len(labels)


def test_ds2_gives_every_class_to_everybody_in_dirichlet_shares():
    for seed in range(5):
        dealt = deal(DS2(), MNIST_LABELS, seed)
        counts = counts_of(dealt, MNIST_LABELS, 10)
        assert counts.shape == (10, 10) and counts.min() >= 1 and counts.sum() == 70_000
        assert len(set(counts.sum(axis=1))) > 1
    labels = np.repeat(np.arange(300), 2000)
    shares = (counts_of(deal(DS2(), labels), labels, 300) - 1) / 1990
    assert shares.var() == pytest.approx(0.1 * 0.9 / (10 * 0.9 + 1), rel=0.1)


def test_ds3_is_two_labels_and_lognormal_shares():
    for labels in (MNIST_LABELS, CIFAR10_LABELS):
        counts = counts_of(deal(DS3(), labels), labels, 10)
        assert np.array_equal(counts > 0, neighbours(10, 2, 10)) and counts[counts > 0].min() >= 10
        assert np.abs(counts.sum(axis=0) - np.bincount(labels)).max() <= 2
    # The two users of a label have shares whose log-ratio is N(0, 2 · 2²).
    many = np.repeat(np.arange(1000), 1_000_000 // 500)
    mine = counts_of(deal(DS3(clients=1000), many), many, 1000) - 10
    pairs = np.array([mine[[c - 1, c], c] for c in range(1000)]) + 0.5
    middle = np.abs(np.log(pairs[:, 0] / pairs[:, 1]))
    assert np.median(middle) == pytest.approx(0.6745 * np.sqrt(8), rel=0.1)


@pytest.mark.parametrize("labels, k", [(CIFAR10_LABELS, 68), (MNIST_LABELS, 196)], ids=["cifar10", "mnist"])
def test_ds4_gives_half_the_users_five_classes_and_the_others_two(labels, k):
    dealt = deal(DS4(k=k), labels)
    counts = counts_of(dealt, labels, 10)
    assert counts[:5].tolist() == [[k] * 5 + [0] * 5] * 5
    for row in counts[5:]:
        assert sorted(row[:5]) == [0, 0, 0, 0, k // 2] and sorted(row[5:]) == [0, 0, 0, 0, 2 * k]
    assert ((counts[5:] > 0).sum(axis=0) == 1).all()  # each class by equally many
    assert dealt.groups == ["five classes"] * 5 + ["two classes"] * 5
    assert dealt.notes == [
        f"{len(labels) - counts.sum()} of {len(labels)} samples left out: the users do not ask for more"
    ]


def test_ds4_of_an_odd_number_of_users_has_one_more_with_five_classes():
    counts = counts_of(deal(DS4(clients=5, k=7), CIFAR10_LABELS), CIFAR10_LABELS, 10)
    assert (counts > 0).sum(axis=1).tolist() == [5, 5, 5, 2, 2] and counts[3:].sum(axis=1).tolist() == [17, 17]


# The papers' splits


@pytest.mark.parametrize("name", ["ds1", "ds2", "ds3", "ds4", "pfedme"])
def test_the_papers_splits_are_used_where_a_config_gives_none(name):
    partition = {"ds4": {"k": 8}, "pfedme": {"mean": 3.0}}.get(name, {})
    fed = parse({"partition": {"name": name, **partition}}).federation()
    sizes = fed.bounds[:, 3] - fed.bounds[:, 0]
    for split, share in zip(("train", "val", "test"), PARTITIONS[name].splits, strict=True):
        assert np.abs(fed.sizes(split) - share * sizes).max() <= 1
    own = parse({"partition": {"name": name, **partition}, "splits": [0.5, 0.0, 0.5]}).federation()
    assert (own.sizes("val") == 0).all()


def test_a_partition_without_splits_leaves_them_to_the_data():
    assert not hasattr(Dirichlet, "splits")
    fed = build(Digits(), Dirichlet(3, 100.0))
    assert fed.sizes("test").sum() / len(fed.x) == pytest.approx(Digits.splits[2], abs=0.01)
