"""Facts about natural clients: those who made the samples, the largest if not all, and nobody forgotten in silence."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from personafl.data import Digits, Dirichlet, Natural, Samples, build
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl_papers.data.gaussian import Gaussian

OWNERS = np.repeat(["w10", "w2", "w7", "w1"], [4, 4, 9, 2])


@dataclass(frozen=True)
class Speakers:
    """A source whose samples have owners, groups and truth, in mixed order."""

    name: ClassVar[str] = "speakers"
    structure: ClassVar[str] = "natural"
    splits: ClassVar[tuple[float, float, float]] = (0.5, 0.0, 0.5)

    def load(self, seed):
        order = np.random.default_rng(7).permutation(len(OWNERS))
        owners = OWNERS[order]
        groups = np.where(owners == "w7", "left", "right")
        truth = {"number": np.array([1, 2, 7, 10])}  # in the natural order of the ids
        x = order[:, None].astype(np.float32)
        return Samples(
            x, np.zeros(len(order), int), 1, clients=owners, groups=groups, truth=truth, notes=("from afar",)
        )


def sizes(fed):
    return (fed.bounds[:, 3] - fed.bounds[:, 0]).tolist()


def test_natural_is_what_leaving_out_the_partition_means():
    assert build(Speakers(), Natural()).fingerprint == build(Speakers()).fingerprint
    assert build(Speakers(), Natural()).notes == ("from afar",)


def test_owners_with_too_few_samples_are_left_out_and_counted():
    fed = build(Speakers(), Natural(least=3))
    assert fed.ids == ("w2", "w7", "w10") and sizes(fed) == [4, 9, 4]
    assert fed.notes == ("from afar", "left out 1 owner with fewer than 3 samples (2 samples)")
    assert fed.groups == ("right", "left", "right") and fed.truth["number"].tolist() == [2, 7, 10]


def test_those_with_most_samples_stay_and_ties_go_by_natural_order():
    fed = build(Speakers(), Natural(clients=2))
    assert fed.ids == ("w2", "w7")
    assert fed.notes[1:] == ("left out 2 owners beyond the 2 clients with most samples (6 samples)",)
    both = build(Speakers(), Natural(least=3, clients=1))
    assert both.ids == ("w7",) and len(both.notes) == 3


def test_the_others_keep_their_samples_and_splits():
    every, few = build(Speakers()), build(Speakers(), Natural(clients=2))
    for client in few.ids:
        for split, (x, _) in few.client(client).items():
            assert x.tolist() == every.client(client)[split][0].tolist()


@given(owners=st.lists(st.integers(0, 12), min_size=1, max_size=60), least=st.integers(1, 6), clients=st.integers(0, 6))
def test_whatever_the_owners_are(owners, least, clients):
    owners = np.array(owners)
    counts = np.bincount(owners)
    enough = int((counts >= least).sum())
    if enough == 0 or clients > enough:
        with pytest.raises(DataError, match=r"partition natural: (least|clients) = "):
            Natural(least, clients).keep(owners)
        return
    kept, notes = Natural(least, clients).keep(owners)
    stayed = np.bincount(owners[kept], minlength=len(counts))
    assert (stayed > 0).sum() == (clients or enough)
    assert set(stayed - counts * (stayed > 0)) == {0}  # all of an owner, or nothing
    assert counts[stayed > 0].min() >= least
    gone = counts[(stayed == 0) & (counts >= least)]
    assert gone.max(initial=0) <= counts[stayed > 0].min()
    assert bool(notes) == (not kept.all())


@pytest.mark.parametrize(
    "make, error, said",
    [
        (lambda: build(Digits(), Natural()), ConfigError, "'digits' does not .* owners: mnist, femnist, sent140"),
        (lambda: build(Gaussian(), Natural()), ConfigError, "'gaussian' comes with its own clients"),
        (lambda: build(Speakers(), Natural(least=10)), DataError, "least = 10, and no owner has more than 9 samples"),
        (lambda: build(Speakers(), Natural(4, 4)), DataError, "clients = 4, and only 3 owners have 4 samples or more"),
        (
            lambda: Federation.from_arrays([[1.0]], [0], partition=Natural()),
            ConfigError,
            "natural goes by the samples' owners, .* from_arrays takes them as clients",
        ),
    ],
)
def test_mistakes_are_named(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_another_partition_replaces_the_owners():
    fed = build(Speakers(), Dirichlet(3, 100.0))
    assert fed.ids == ("client-0", "client-1", "client-2") and fed.groups is None and fed.truth == {}
