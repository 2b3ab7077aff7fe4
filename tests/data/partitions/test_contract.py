"""What every partition promises, whatever it gets: a proper answer or one clear line, always the same for a seed."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from personafl.data.partitions import IID, PARTITIONS, Dirichlet, Lognormal, Natural, Pathological, PowerLaw
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl_papers.partitions.ds1 import DS1
from personafl_papers.partitions.ds2 import DS2
from personafl_papers.partitions.ds3 import DS3
from personafl_papers.partitions.ds4 import DS4
from personafl_papers.partitions.pfedme import PFedMeUsers
from personafl_papers.partitions.practical import Practical
from tests.data.partitions.facts import assert_proper, deal, same

CLIENTS = st.integers(1, 20)
PER_CLIENT = st.integers(1, 5)
LEAST = st.integers(1, 5)
SIGMAS = st.sampled_from([0.0, 0.5, 2.0, 50.0, 1e6])
MEANS = st.sampled_from([-1e6, 0.0, 2.0, 1e6])
ALPHAS = st.sampled_from([1e-100, 1e-8, 0.1, 0.9, 100.0, 1e100])


@st.composite
def practical(draw):
    groups = draw(st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=3))
    each = st.lists(st.integers(1, 20), min_size=len(groups), max_size=len(groups)).map(tuple)
    return Practical(tuple(tuple(sorted(g)) for g in groups), draw(each), draw(each), draw(st.floats(0.01, 1.0)))


def lognormal(kind):
    five_or_more = st.integers(5, 9)
    return st.builds(kind, clients=CLIENTS, classes_per_client=PER_CLIENT, mean=MEANS, sigma=SIGMAS, least=five_or_more)


STRATEGIES = {
    "iid": st.builds(IID, clients=CLIENTS),
    "pathological": st.builds(Pathological, clients=CLIENTS, classes_per_client=PER_CLIENT),
    "dirichlet": st.builds(Dirichlet, clients=CLIENTS, alpha=ALPHAS, min_samples=LEAST),
    "powerlaw": st.builds(PowerLaw, clients=CLIENTS, classes_per_client=PER_CLIENT, least=LEAST, sigma=SIGMAS),
    "lognormal": lognormal(Lognormal),
    "pfedme": lognormal(PFedMeUsers),
    "practical": practical(),
    "ds1": st.builds(DS1, clients=CLIENTS, classes_per_client=PER_CLIENT),
    "ds2": st.builds(DS2, clients=CLIENTS, alpha=ALPHAS),
    "ds3": st.builds(DS3, clients=CLIENTS, classes_per_client=PER_CLIENT, least=LEAST, sigma=SIGMAS),
    "ds4": st.builds(DS4, clients=CLIENTS, k=st.integers(2, 9)),
}


@st.composite
def pools(draw):
    """Labels in any order: one class or ten, classes that are missing, a class of one, fewer samples than clients."""
    missing = draw(st.sets(st.integers(0, 12), max_size=1))
    classes = [c for c in range(draw(st.integers(1, 12)) + 1) if c not in missing]
    size = draw(st.sampled_from([st.integers(1, 4), st.integers(1, 300), st.integers(60, 300)]))
    sizes = draw(st.lists(size, min_size=len(classes), max_size=len(classes)))
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(classes, sizes))


def test_every_partition_of_labels_is_tested_here():
    assert {*STRATEGIES, "natural"} == {*PARTITIONS}


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data(), labels=pools(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_proper_answer_or_one_clear_line(name, data, labels, seed):
    partition = data.draw(STRATEGIES[name])
    assert partition.name == name
    try:
        dealt = deal(partition, labels, seed)
    except (ConfigError, DataError) as error:
        event("refused")
        assert str(error).startswith(f"partition {name}") and "\n" not in str(error)
        with pytest.raises(type(error)) as again:
            deal(partition, labels, seed)
        assert str(again.value) == str(error)
        return
    event("dealt")
    assert_proper(dealt, len(labels))
    assert same(dealt, deal(partition, labels, seed))
    given_number = getattr(partition, "clients", None)
    assert len(dealt.parts) == (sum(given_number) if name == "practical" else given_number)


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data(), labels=pools(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_sample_is_in_two_places_of_the_federation(name, data, labels, seed):
    numbers = np.arange(len(labels), dtype=np.int64)
    try:
        fed = Federation.from_arrays(
            numbers[:, None], labels, partition=data.draw(STRATEGIES[name]), splits=(0.6, 0.2, 0.2), seed=seed
        )
    except (ConfigError, DataError) as error:
        assert str(error).startswith(f"partition {name}")
        return
    trained, tested = ({int(n) for m in fed.ids for n in fed.client(m)[split][0]} for split in ("train", "test"))
    assert not trained & tested
    stored = fed.x[:, 0].numpy()
    assert len(np.unique(stored)) == len(stored)
    assert np.array_equal(labels[stored], fed.y.numpy())


# One that fits ten classes of sixty samples, for each name.
FITTING = {
    "iid": IID(7), "pathological": Pathological(7, 2), "dirichlet": Dirichlet(7, 0.3), "powerlaw": PowerLaw(20),
    "lognormal": Lognormal(20, mean=2.0), "pfedme": PFedMeUsers(5, mean=3.0),
    "practical": Practical(((0, 1), (2,)), (2, 3), (9, 9)), "ds1": DS1(), "ds2": DS2(), "ds3": DS3(), "ds4": DS4(6, 8),
}  # fmt: skip


@pytest.mark.parametrize("partition", FITTING.values(), ids=FITTING.keys())
def test_the_seed_decides(partition):
    labels = np.repeat(np.arange(10), 60)
    first, again, other = (deal(partition, labels, seed) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)


@pytest.mark.parametrize("partition", FITTING.values(), ids=FITTING.keys())
def test_what_cannot_be_dealt_is_refused_at_once(partition):
    start = time.process_time()
    nothing, regression, one = np.zeros(0, int), np.linspace(0, 1, 9), np.zeros(1, int)
    with pytest.raises(DataError, match="needs at least"):
        deal(partition, nothing)
    if partition.name != "iid":
        with pytest.raises(DataError, match=r"needs integer labels.*float64.*use iid"):
            deal(partition, regression)
    with pytest.raises((ConfigError, DataError), match=f"^partition {partition.name}"):
        deal(partition, one)
    huge = (10**12, 10**12) if partition.name == "practical" else 10**12
    with pytest.raises(DataError, match=f"^partition {partition.name} needs at least"):
        deal(dataclasses.replace(partition, clients=huge), np.repeat(np.arange(10), 60))
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("kind", PARTITIONS.values(), ids=PARTITIONS.keys())
def test_every_partition_says_where_it_comes_from(kind):
    assert kind.paper and kind.__doc__
    splits = getattr(kind, "splits", (1.0,))
    assert sum(splits) == pytest.approx(1)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: IID(0), "iid: clients = 0 must be a whole number of at least 1: somebody has to train"),
        (lambda: IID(2.5), "clients = 2.5"),
        (lambda: IID(True), "clients = True"),
        (lambda: IID(2**41), "iid: clients = 2199023255552 is more than any data has samples"),
        (lambda: PowerLaw(least=10**30), "powerlaw: least = 10{30} is more than any data"),
        (lambda: Pathological(classes_per_client=0), "classes_per_client = 0"),
        (lambda: Dirichlet(min_samples=0), "min_samples = 0 .* cannot train"),
        (lambda: Dirichlet(alpha=0.0), "dirichlet: alpha = 0.0 must be positive"),
        (lambda: Dirichlet(alpha=float("nan")), "alpha = nan"),
        (lambda: Dirichlet(alpha=float("inf")), "alpha = inf"),
        (lambda: DS2(alpha=-1.0), "ds2: alpha = -1.0 must be positive"),
        (lambda: PowerLaw(0), "powerlaw: clients = 0 must be a whole number of at least 1"),
        (lambda: PowerLaw(least=0), "least = 0"),
        (lambda: PowerLaw(classes_per_client=2.0), "classes_per_client = 2.0"),
        (lambda: PowerLaw(sigma=float("nan")), "sigma = nan must be in 0 to 1e6"),
        (lambda: DS3(sigma=-1.0), "ds3: sigma = -1.0"),
        (lambda: Lognormal(mean=float("inf")), "lognormal: mean = inf must be in -1e6 to 1e6"),
        (lambda: Lognormal(classes_per_client=6), "least = 5 must not be below classes_per_client = 6"),
        (lambda: PFedMeUsers(least=2), "pfedme: least = 2 must not be below classes_per_client = 3"),
        (lambda: Practical("cifar"), "groups = 'cifar' is no preset; use mnist, fmnist, cifar100, emnist"),
        (lambda: Practical(()), "groups is empty"),
        (lambda: Practical(((),), (1,), (1,)), r"group-0 has the classes \(\)"),
        (lambda: Practical(((1, 1),), (1,), (1,)), r"group-0 has the classes \(1, 1\); give it .* different"),
        (lambda: Practical((0, 1), (1, 1), (1, 1)), "group-0 has the classes 0;"),
        (lambda: Practical(((0,), (1,))), r"clients = \[\] must be 2 whole numbers of at least 1, one for each group"),
        (lambda: Practical("mnist", clients=(1, 2)), r"clients = \[1, 2\] must be 3 whole numbers"),
        (lambda: Practical("mnist", samples=(1, 0, 1)), r"samples = \[1, 0, 1\]"),
        (lambda: Practical(dominating=0.0), "dominating = 0.0 must be above 0"),
        (lambda: Practical(dominating=float("nan")), "dominating = nan"),
        (lambda: DS1(classes_per_client=0), "ds1: classes_per_client = 0"),
        (lambda: DS4(k=1), "ds4: k = 1 must be at least 2"),
        (lambda: Natural(least=0), "natural: least = 0 must be a whole number of at least 1"),
        (lambda: Natural(clients=-1), "natural: clients = -1 must be a whole number of at least 0"),
    ],
)
def test_settings_out_of_range_are_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


LABELS = np.repeat(np.arange(10), 30)


@pytest.mark.parametrize(
    "partition, error, said",
    [
        (Pathological(5, 11), ConfigError, "pathological: classes_per_client = 11, but the labels hold 10 classes"),
        (PowerLaw(60), DataError, "powerlaw: class 0 has 30 samples and the clients need 60 of it; use fewer clients"),
        (PowerLaw(5, 11), ConfigError, "powerlaw: classes_per_client = 11, but the labels hold 10 classes"),
        (Lognormal(5, 11, least=11), ConfigError, "classes_per_client = 11, but the labels hold 10"),
        (Practical(), DataError, "practical needs at least 42000 samples .* the data has 300"),
        (Practical(((0, 10),), (1,), (5,)), DataError, r"group-0 has class 10, .* 10 classes of the labels \(0 to 9\)"),
        (Practical("emnist", samples=(1, 1, 1)), DataError, "upper has class 10, which is not among"),
        (Practical(((0,),), (1,), (100,)), DataError, "class 0 has 30 samples and the clients need 80 of it"),
        (Practical((tuple(range(10)),), (1,), (100,)), DataError, "all 10 classes .* other 20 samples"),
        (DS1(10, 11), ConfigError, "ds1: classes_per_client = 11"),
        (DS2(31), DataError, "ds2 needs at least 310 samples"),
        (DS4(2, 20), DataError, "ds4: class [5-9] has 30 samples and the clients need 40 of it; .* smaller k"),
        (DS4(10), DataError, "ds4 needs at least 2550 samples"),
    ],
)
def test_what_the_data_cannot_give_is_named(partition, error, said):
    with pytest.raises(error, match=said):
        deal(partition, LABELS)


@pytest.mark.parametrize(
    "partition, said",
    [
        (Pathological(5, 2), "class 9 has 2 samples and the clients need 5 of it"),
        (Lognormal(5, 2), "class 9 has 2 samples and the clients need 5 of it"),
        (DS1(5, 2), "class 9 has 2 samples and the clients need 5 of it"),
        (DS2(5), "class 9 has 2 samples and the clients need 5 of it; use fewer clients, or partition dirichlet"),
        (DS4(2), "ds4 needs more than 5 classes and the labels hold 2"),
    ],
)
def test_a_class_that_is_too_small_is_named(partition, said):
    with pytest.raises(DataError, match=said):
        deal(partition, np.array([3] * 50 + [9] * 2))
