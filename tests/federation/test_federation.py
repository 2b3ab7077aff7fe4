"""Facts about a federation: what it stores, how it splits, how it is made."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.data.partitions import IID, Dirichlet
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.streams import name_key


def small(**changes):
    """Two clients, three features, three classes."""
    fields = {
        "x": torch.arange(18.0).reshape(6, 3),
        "y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "bounds": np.array([[0, 2, 2, 3], [3, 4, 5, 6]]),
        "ids": ("ann", "bob"),
    }
    return Federation(**(fields | changes))


# --- what it stores


def test_sizes_starts_and_views():
    fed = small()
    assert len(fed) == 2 and fed.classes == 3
    assert [fed.sizes(split).tolist() for split in ("train", "val", "test")] == [[2, 1], [0, 1], [1, 1]]
    assert [fed.starts(split).tolist() for split in ("train", "val", "test")] == [[0, 3], [2, 4], [2, 5]]
    x, y = fed.client("bob")["val"]
    assert x.tolist() == [[12.0, 13.0, 14.0]] and y.tolist() == [1]
    assert x.data_ptr() == fed.x[4].data_ptr()
    assert fed.keys.dtype == np.uint64 and fed.keys.tolist() == [int(name_key("ann")), int(name_key("bob"))]
    with pytest.raises(DataError, match="no split 'valid', only train, val and test"):
        fed.sizes("valid")


def test_an_unknown_client_suggests_the_nearest():
    fed = Federation.from_arrays(np.ones((100, 1)), np.zeros(100, int), partition=IID(50))
    assert fed.index("client-7") == 7
    with pytest.raises(DataError, match="no client 'clent-41' among the 50 clients; did you mean 'client-41'"):
        fed.index("clent-41")


def test_fields_cannot_be_reassigned():
    fed = small()
    with pytest.raises(AttributeError):
        fed.name = "other"
    with pytest.raises(ValueError):
        fed.bounds[0, 0] = 1


@pytest.mark.parametrize(
    "given_type, stored",
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.float16, torch.float32),
        (np.uint8, torch.uint8),
        (np.bool_, torch.uint8),
        (np.int8, torch.int64),
        (np.int32, torch.int64),
        (np.int64, torch.int64),
        (">f8", torch.float32),
    ],
)
def test_feature_types(given_type, stored):
    x = np.array([[0], [1], [1]]).astype(given_type)
    fed = Federation.from_arrays(x, [0, 1, 0], clients=["a", "a", "b"])
    assert fed.x.dtype == stored and sorted(fed.x.flatten().tolist()) == [0, 1, 1]


@pytest.mark.parametrize(
    "y, stored, classes",
    [
        (np.array([0, 1, 3], np.uint8), torch.int64, 4),
        (np.array([False, True, True]), torch.int64, 2),
        (np.array([0.0, 0.5, 1.0]), torch.float32, None),
        (np.zeros((3, 2)), torch.float32, None),
        (torch.tensor([2, 0, 1]), torch.int64, 3),
    ],
)
def test_integer_labels_are_classes_and_floats_are_targets(y, stored, classes):
    fed = Federation.from_arrays(torch.ones(3, 2), y, clients=[1, 1, 2])
    assert fed.y.dtype == stored and fed.classes == classes and fed.y.shape == tuple(y.shape)


def test_fingerprint_sees_every_change_that_training_could_see():
    changes = [
        {},
        {"x": small().x + 1},
        {"x": small().x.long()},
        {"x": small().x.reshape(6, 3, 1)},
        {"y": torch.tensor([0, 1, 2, 0, 2, 2])},
        {"bounds": np.array([[0, 1, 2, 3], [3, 4, 5, 6]])},
        {"ids": ("ann", "eve")},
        {"groups": ("g", "g")},
        {"classes": 4},
    ]
    assert len({small(**change).fingerprint for change in changes}) == len(changes)
    assert small().fingerprint == small(name="other", notes=("hello",)).fingerprint


# --- splits


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    shares=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
)
@settings(max_examples=100, deadline=None)
def test_splits_are_near_their_shares_and_training_is_never_empty(sizes, shares):
    splits = np.array(shares) / sum(shares)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = np.arange(len(owner))
    fed = Federation.from_arrays(x[:, None], np.zeros(len(owner), int), clients=owner, splits=splits)
    counts = np.stack([fed.sizes(split) for split in ("train", "val", "test")], axis=1)
    assert counts.sum(axis=1).tolist() == sizes and sorted(fed.x.flatten().tolist()) == x.tolist()
    assert (counts[:, 0] >= 1).all()
    assert (counts[:, splits == 0] == 0).all()
    assert (np.abs(counts - np.array(sizes)[:, None] * splits) < 2).all()
    if splits[2] > 0:  # test before validation
        assert (counts[counts[:, 2] == 0, 1] == 0).all()


@pytest.mark.parametrize(
    "size, splits, expected",
    [
        (1, (0.7, 0.1, 0.2), [1, 0, 0]),
        (1, (0.1, 0.1, 0.8), [1, 0, 0]),
        (2, (0.7, 0.1, 0.2), [1, 0, 1]),
        (2, (0.2, 0.4, 0.4), [1, 0, 1]),
        (3, (0.7, 0.1, 0.2), [2, 0, 1]),
        (10, (0.7, 0.1, 0.2), [7, 1, 2]),
        (1000, (0.9, 0.0, 0.1), [900, 0, 100]),
    ],
)
def test_split_counts(size, splits, expected):
    fed = Federation.from_clients({"a": (np.ones((size, 1)), np.zeros(size, int))}, splits=splits)
    assert [int(fed.sizes(split)[0]) for split in ("train", "val", "test")] == expected


def test_a_clients_split_does_not_depend_on_the_others():
    def data(n, offset):
        return (np.arange(n)[:, None] + offset, np.zeros(n, int))

    alone = Federation.from_clients({"bob": data(30, 100)}, seed=1)
    among = Federation.from_clients({"ann": data(7, 0), "bob": data(30, 100), "eve": data(9, 500)}, seed=1)
    for split in ("train", "val", "test"):
        assert torch.equal(alone.client("bob")[split][0], among.client("bob")[split][0])
    other = Federation.from_clients({"bob": data(30, 100)}, seed=2)
    renamed = Federation.from_clients({"rob": data(30, 100)}, seed=1)
    assert not torch.equal(other.x, alone.x) and not torch.equal(renamed.x, alone.x)


def test_splits_are_uniformly_random():
    owner = np.repeat(np.arange(3000), 10)
    fed = Federation.from_arrays(np.tile(np.arange(10), 3000)[:, None], np.zeros(30_000, int), clients=owner)
    tested = np.concatenate([fed.client(client)["test"][0].flatten().numpy() for client in fed.ids])
    assert np.bincount(tested) == pytest.approx(600, rel=0.2)


@pytest.mark.parametrize("splits", [(0.5, 0.5), (0.8, 0.1, 0.2), (1.2, -0.1, -0.1), (0, 0.5, 0.5), (np.nan, 0, 1)])
def test_impossible_splits_are_refused(splits):
    with pytest.raises(ConfigError, match=r"splits = .* must be the shares of train, validation and test"):
        Federation.from_arrays([[1.0]], [0], clients=["a"], splits=splits)


# --- constructors


def test_from_arrays_with_a_partition():
    labels = np.repeat(np.arange(10), 30)
    fed = Federation.from_arrays(labels[:, None] * 1.5, labels, partition=Dirichlet(40, 1e-3), seed=2)
    assert fed.ids[:2] == ("client-0", "client-1") and len(fed) == 40
    assert torch.equal(fed.x[:, 0], fed.y * 1.5)
    assert any(note.startswith("moved") for note in fed.notes)
    again = Federation.from_arrays(labels[:, None] * 1.5, labels, partition=Dirichlet(40, 1e-3), seed=2)
    assert again.fingerprint == fed.fingerprint


def test_from_arrays_with_natural_clients_and_groups():
    keys = ["c10", "c2", "c10", "c2"]
    x = np.array([[10.0], [2.0], [10.0], [2.0]])
    fed = Federation.from_arrays(x, [0, 1, 0, 1], clients=keys, groups=["B", "A", "B", "A"])
    assert fed.ids == ("c2", "c10") and fed.groups == ("A", "B")
    assert fed.x.flatten().tolist() == [2, 2, 10, 10] and fed.y.tolist() == [1, 1, 0, 0]
    mapped = Federation.from_arrays(x, [0, 1, 0, 1], clients=keys, groups={"c2": "A", "c10": "B"})
    assert mapped.fingerprint == fed.fingerprint
    objects = Federation.from_arrays(x, [0, 1, 0, 1], clients=np.array(keys, object), groups={"c2": "A", "c10": "B"})
    assert objects.fingerprint == fed.fingerprint


def test_from_arrays_reads_memory_maps(tmp_path):
    np.save(tmp_path / "big.npy", np.arange(300_000.0).reshape(-1, 2))
    x = np.load(tmp_path / "big.npy", mmap_mode="r")
    fed = Federation.from_arrays(x, np.zeros(150_000, int), partition=IID(3))
    assert fed.x.dtype == torch.float32 and torch.equal(fed.x[:, 0] + 1, fed.x[:, 1])


def test_from_clients_keeps_given_splits_as_they_are():
    fed = Federation.from_clients(
        {
            "b": {"test": ([[9.0]], [1]), "train": ([[1.0], [2.0]], [0, 1])},
            "a": {"train": ([[3.0]], [0]), "val": ([[4.0]], [1])},
        }
    )
    assert fed.ids == ("b", "a") and fed.x.flatten().tolist() == [1, 2, 9, 3, 4]
    assert fed.bounds.tolist() == [[0, 2, 2, 3], [3, 4, 5, 5]]


def test_from_folder_reads_both_kinds_of_files(tmp_path):
    for number in (10, 2):
        np.savez(tmp_path / f"client-{number}.npz", x=np.full((5, 2), number), y=np.arange(5), group="G")
    (tmp_path / "README.txt").write_text("not a client")
    fed = Federation.from_folder(tmp_path)
    assert fed.ids == ("client-2", "client-10") and fed.groups == ("G", "G") and fed.name == tmp_path.name
    assert (fed.client("client-10")["test"][0] == 10).all()
    split = tmp_path / "split"
    split.mkdir()
    np.savez(split / "a.npz", x_train=np.ones((2, 2)), y_train=[0, 1], x_test=np.zeros((1, 2)), y_test=[1])
    assert Federation.from_folder(split).bounds.tolist() == [[0, 2, 2, 3]]
