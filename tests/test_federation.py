"""Facts about a federation: what it stores, how it splits, what it refuses, and what survives saving."""

import io
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl import federation_files
from personafl.data.partition import Assignment, Dirichlet, Iid
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
    fed = Federation.from_arrays(np.ones((100, 1)), np.zeros(100, int), partition=Iid(50))
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


def test_summary_counts():
    fed = Federation.from_clients(
        {"a": ([[1.0]] * 5, [0, 0, 0, 0, 0]), "b": ([[1.0]] * 10, [0, 1, 2] * 3 + [0])},
        groups={"a": "g", "b": "g"},
    )
    summary = fed.summary()
    assert summary["clients"] == 2 and summary["samples"] == 15 and summary["classes"] == 3
    assert summary["classes_per_client"] == {"min": 1, "median": 2.0, "max": 3}
    assert summary["sizes"]["train"] == {"min": 3, "median": 5.0, "max": 7}
    assert summary["groups"] == {"g": 2}
    json.dumps(summary)


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
    fed = Federation.from_arrays(x, np.zeros(150_000, int), partition=Iid(3))
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


# --- what it refuses

ONE = ([[1.0, 2.0]], [0])


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Federation.from_clients({}), "empty"),
        (lambda: Federation.from_arrays(np.ones((0, 2)), np.zeros(0, int), clients=[]), "empty"),
        (
            lambda: Federation.from_clients({"a": {"train": ONE}, "b": {"test": ONE}, "c": {"test": ONE}}),
            "2 clients without training data: b, c",
        ),
        (
            lambda: Federation.from_arrays(np.ones((4, 1)), [0, 5, 7, 1], clients=list("aabb"), classes=5),
            r"labels outside 0..4 in 2 clients: a \(1 label\), b \(1 label\).* give classes = 8",
        ),
        (
            lambda: Federation.from_arrays(np.ones((3, 1)), [0, -1, -1], clients=list("abb")),
            r"negative labels in 1 client: b \(2 labels\)",
        ),
        (
            lambda: Federation.from_arrays([[1, np.nan], [np.inf, np.nan], [1, 1]], [0, 1, 0], clients=list("abc")),
            r"NaN or infinite features in 2 clients: a \(1 value\), b \(2 values\)",
        ),
        (
            lambda: Federation.from_arrays(np.full((9, 1), np.nan), [0] * 9, clients=np.arange(9)),
            r"9 clients: .* and 4 more",
        ),
        (lambda: Federation.from_arrays([[1e300]], [0], clients=["a"]), r"infinite features in 1 client: a"),
        (
            lambda: Federation.from_arrays(np.ones((2, 1)), [0.5, np.nan], clients=["a", "b"]),
            r"NaN or infinite targets in 1 client: b \(1 value\)",
        ),
        (
            lambda: Federation.from_clients({"a": ONE, "b": ([[1.0, 2.0, 3.0]], [0])}),
            r"client 'b' has features of shape \(3,\), expected \(2,\) as in client 'a'",
        ),
        (
            lambda: Federation.from_clients({"a": {"train": ONE, "test": ([[1.0]], [0])}}),
            r"client 'a' \(test\) has features of shape \(1,\), expected \(2,\)",
        ),
        (
            lambda: Federation.from_clients({"a": ONE, "b": ([[1.0, 2.0]], [0.5])}),
            "client 'b' has float64 labels and client 'a' has int64",
        ),
        (
            lambda: Federation.from_clients({"a": ([[1.0], [2.0]], [0])}),
            "client 'a': x has 2 samples and y has 1",
        ),
        (
            lambda: Federation.from_arrays(np.ones((3, 1)), [0, 1], partition=Iid(1)),
            "x has 3 samples and y has 2",
        ),
        (lambda: Federation.from_clients({1: ONE, "1": ONE}), "1 client id given twice: 1"),
        (lambda: small(ids=("ann", "ann")), "given twice: ann"),
        (
            lambda: Federation.from_clients({"a": (np.array([[1], ["x"]], object), [0, 1])}),
            "x of client 'a' holds object values, not numbers",
        ),
        (lambda: Federation.from_clients({"a": ([["x"]], [0])}), "x of client 'a' holds <U1 values"),
        (lambda: Federation.from_clients({"a": ([[1.0]], ["cat"])}), "y of client 'a' holds <U3 values"),
        (
            lambda: Federation.from_clients({"a": ([[1.0], [1.0, 2.0]], [0, 1])}),
            "x of client 'a' is not one array",
        ),
        (lambda: Federation.from_clients({"a": (1.0, [0])}), "x of client 'a' is a single number"),
        (lambda: Federation.from_clients({"a": ([[1.0]], [[0]])}), r"class labels have shape \(1, 1\)"),
        (
            lambda: Federation.from_clients({"a": ([[1.0]], [0.0])}, classes=2),
            "classes = 2 .* labels are floats",
        ),
        (lambda: Federation.from_clients({"a": ([[1.0]], np.zeros((1, 1, 1)))}), r"shape \(1, 1, 1\)"),
        (
            lambda: Federation.from_clients({"a": ONE, "b": {"train": ONE}}),
            "'a' is one .x, y. and client 'b' is divided",
        ),
        (lambda: Federation.from_clients({"a": {"trian": ONE}}), "client 'a' has a split 'trian'"),
        (lambda: Federation.from_clients({"a": [1]}), "client 'a' must bring"),
        (
            lambda: Federation.from_clients({"a": ONE, "b": ONE}, groups={"a": "g"}),
            "1 client without a group: b",
        ),
        (lambda: Federation.from_clients({"a": ONE}, groups={"a": "g", "z": "g"}), "unknown clients: z"),
        (
            lambda: Federation.from_arrays(np.ones((2, 1)), [0, 1], clients=["a", "a"], groups=["g", "h"]),
            r"1 client in more than one group: a \(a is in g, h\)",
        ),
        (
            lambda: Federation.from_arrays([[1.0]], [0], clients=["a", "b"]),
            r"clients has shape \(2,\), expected \(1,\)",
        ),
        (lambda: Federation.from_arrays([[1.0]], [0], clients=[0.5]), "clients must be strings or integers"),
        (lambda: Federation.from_arrays([[1.0]], [0], clients=np.array([None])), "none missing"),
        (
            lambda: small(bounds=np.array([[0, 2, 2, 3], [4, 4, 5, 6]])),
            "bounds of shape .* do not divide 6 samples",
        ),
        (lambda: small(bounds=np.array([[0, 3, 2, 3], [3, 4, 5, 6]])), "do not divide"),
        (lambda: small(bounds=np.array([[0, 2, 2, 6]])), r"expected \(2, 4\)"),
        (lambda: small(x=torch.zeros(6, 3, dtype=torch.float64)), "x is torch.float64"),
        (lambda: small(y=torch.tensor([0, 1])), "x has 6 samples and y has 2"),
        (lambda: small(groups=("g",)), "1 groups for 2 clients"),
        (lambda: small(labels=("a", "b")), r"labels outside 0..1 in 2 clients"),
        (lambda: small(labels=("a", "b"), classes=3), "2 labels for 3 classes; give the name of each class"),
        (lambda: small(labels=("a", "b", "b")), "labels must be the names of the classes, each another string"),
        (lambda: small(labels=("a", "b", 3)), "labels must be the names of the classes"),
        (
            lambda: small(y=torch.ones(6), labels=("a",)),
            "labels are the names of classes, and y are targets of a regression",
        ),
        (lambda: small(truth={"theta": np.zeros(3)}), "truth 'theta' must be numbers with first dimension 2"),
        (lambda: small(truth={"../theta": np.zeros(2)}), "must be named like a variable"),
        (
            lambda: small(x=torch.full((6, 3), torch.nan)),
            r"NaN or infinite features in 2 clients: ann \(9 values\)",
        ),
    ],
)
def test_unusable_data_is_named(make, said):
    with pytest.raises(DataError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_exactly_one_of_partition_and_clients():
    for given_ones in ({}, {"partition": Iid(1), "clients": ["a"]}):
        with pytest.raises(ConfigError, match=r"exactly one of partition .* and clients"):
            Federation.from_arrays([[1.0]], [0], **given_ones)
    with pytest.raises(ConfigError, match="a partition makes its own"):
        Federation.from_arrays([[1.0]], [0], partition=Iid(1), groups=["g"])


@pytest.mark.parametrize(
    "parts, said",
    [
        ([[0, 1], [1, 2]], "deals 1 sample more than once, such as 1"),
        ([[0, 9]], "outside 0..2"),
        ([], "no client"),
    ],
)
def test_a_partition_of_ones_own_is_checked(parts, said):
    class Mine:
        name = "mine"

        def __call__(self, labels, rng):
            return Assignment([np.array(part) for part in parts])

    with pytest.raises(DataError, match=f"partition mine .*{said}"):
        Federation.from_arrays(np.ones((3, 1)), [0, 1, 2], partition=Mine())


class Trap:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_pickled_objects_are_refused_and_execute_nothing(tmp_path):
    sprung = tmp_path / "sprung"
    trap = np.array([Trap(sprung)], dtype=object)
    clients = tmp_path / "clients"
    clients.mkdir()
    np.savez(clients / "eve.npz", x=trap, y=[0])
    with pytest.raises(DataError, match=r"eve.npz: x holds object values, expected booleans or .*integers or .*floats"):
        Federation.from_folder(clients)
    (clients / "eve.npz").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DataError, match=r"cannot read .*eve.npz"):
        Federation.from_folder(clients)
    for name in ("x", "y", "bounds"):
        small().save(tmp_path / name)
        np.save(tmp_path / name / f"{name}.npy", trap, allow_pickle=True)
        with pytest.raises(DataError, match="is damaged: cannot read"):
            Federation.load(tmp_path / name)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap does work


@pytest.mark.parametrize(
    "arrays, said",
    [
        ({"x": [[1.0]]}, "holds the arrays x; expected x and y"),
        (
            {"x_train": [[1.0]], "y_train": [0], "x_test": [[1.0]]},
            "holds the arrays x_test, x_train, y_train",
        ),
        ({"x": [[1.0]], "y": [0], "z": [0]}, "holds the arrays x, y, z"),
        ({"x_test": [[1.0]], "y_test": [0]}, "holds the arrays x_test, y_test"),
        ({}, "holds the arrays none"),
    ],
)
def test_a_client_file_with_other_arrays_is_named(tmp_path, arrays, said):
    np.savez(tmp_path / "bob.npz", **arrays)
    with pytest.raises(DataError, match=f"bob.npz {said}"):
        Federation.from_folder(tmp_path)


def test_a_group_that_is_not_one_string_is_named(tmp_path):
    np.savez(tmp_path / "bob.npz", x=[[1.0]], y=[0], group=["g", "h"])
    with pytest.raises(DataError, match=r"bob.npz: group has shape \(2,\), expected \(\)"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "bob.npz", x=[[1.0]], y=[0], group="g")
    np.savez(tmp_path / "ann.npz", x=[[1.0]], y=[0])
    with pytest.raises(DataError, match="1 client without a group: ann; give all or none"):
        Federation.from_folder(tmp_path)


def test_unreadable_folders_and_files_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a folder"):
        Federation.from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no .npz file"):
        Federation.from_folder(tmp_path)
    for content in (b"", b"PK\x03\x04 not really", b"hello"):
        (tmp_path / "bob.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*bob.npz"):
            Federation.from_folder(tmp_path)
    with open(tmp_path / "bob.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match=r"cannot read .*bob.npz"):
        Federation.from_folder(tmp_path)


# --- saving and loading


def full():
    return small(groups=("g", "h"), name="mine", truth={"theta": np.array([1.5, 2.5])}, notes=("bent",), classes=7)


def test_what_is_saved_comes_back(tmp_path):
    fed = full()
    fed.save(tmp_path / "fed")
    back = Federation.load(tmp_path / "fed", verify=True)
    assert torch.equal(back.x, fed.x) and torch.equal(back.y, fed.y) and np.array_equal(back.bounds, fed.bounds)
    for what in ("ids", "groups", "classes", "name", "notes", "fingerprint"):
        assert getattr(back, what) == getattr(fed, what)
    assert np.array_equal(back.truth["theta"], fed.truth["theta"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["fed"]


def test_names_of_classes_come_back_and_change_no_fingerprint(tmp_path):
    fed = small(labels=("ant", "bee", "cat"))
    fed.save(tmp_path / "fed")
    assert Federation.load(tmp_path / "fed", verify=True).labels == ("ant", "bee", "cat")
    assert fed.fingerprint == small().fingerprint and small(labels=tuple("abcd")).classes == 4
    described = json.loads((tmp_path / "fed" / "federation.json").read_text())
    rewrite(tmp_path / "fed", labels=["ant", "cat", "bee"])
    with pytest.raises(DataError, match="is damaged: its content is not what was saved"):
        Federation.load(tmp_path / "fed")
    small().save(tmp_path / "without")
    assert "labels" in described and "labels" not in json.loads((tmp_path / "without" / "federation.json").read_text())
    assert Federation.load(tmp_path / "without").labels is None


@pytest.mark.parametrize("y", [np.linspace(0, 1, 4), np.ones((4, 2)), np.array([0, 1, 0, 1])])
@pytest.mark.parametrize("x", [np.ones((4, 1)), np.ones((4, 1, 2, 3), np.uint8), np.ones((4, 5), np.int64), np.ones(4)])
def test_every_kind_of_data_comes_back(tmp_path, x, y):
    fed = Federation.from_arrays(x, y, clients=list("aabb"))
    fed.save(tmp_path / "fed")
    assert Federation.load(tmp_path / "fed").fingerprint == fed.fingerprint


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_maps_the_features_and_writing_to_them_leaves_the_file_alone(tmp_path):
    small().save(tmp_path / "fed")
    before = (tmp_path / "fed" / "x.npy").read_bytes()
    fed = Federation.load(tmp_path / "fed")
    assert str(tmp_path / "fed" / "x.npy") in Path("/proc/self/maps").read_text()
    fed.x.zero_()
    assert (tmp_path / "fed" / "x.npy").read_bytes() == before


def test_saving_never_overwrites_and_leaves_nothing_behind_when_it_fails(tmp_path):
    (tmp_path / "fed").mkdir()
    with pytest.raises(DataError, match="fed exists already"):
        small().save(tmp_path / "fed")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot save the federation to"):
        small().save(tmp_path / "file" / "fed")
    assert sorted(os.listdir(tmp_path)) == ["fed", "file"] and os.listdir(tmp_path / "fed") == []


def huge(shape):
    """A .npy file whose header promises this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(99)


def rewrite(folder, **changes):
    described = json.loads((folder / "federation.json").read_text())
    (folder / "federation.json").write_text(json.dumps(described | changes))


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda f: (f / "federation.json").unlink(), "is not a saved federation: it has no federation.json"),
        (lambda f: (f / "federation.json").write_text("{"), "is damaged: cannot read federation.json"),
        (lambda f: (f / "federation.json").write_text("[]"), "is not a saved federation"),
        (lambda f: rewrite(f, format="other"), "is not a saved federation"),
        (lambda f: rewrite(f, version=2), "has version 2; this personafl reads version 1"),
        (lambda f: rewrite(f, ids=["ann", "eve"]), "is damaged: its content is not what was saved"),
        (lambda f: rewrite(f, ids=["ann"]), "is damaged: bounds of shape"),
        (lambda f: rewrite(f, ids=[1, 2]), "is damaged: client ids must be strings"),
        (lambda f: rewrite(f, ids=None), "is damaged"),
        (lambda f: rewrite(f, classes="many"), "is damaged"),
        (lambda f: rewrite(f, truth=["../../secret"]), "is damaged: truth names"),
        (lambda f: rewrite(f, truth=7), "is damaged"),
        (lambda f: rewrite(f, labels=7), "is damaged"),
        (lambda f: rewrite(f, labels=["a"]), "is damaged: 1 label for 7 classes"),
        (lambda f: (f / "federation.json").write_text("[" * 100_000), "is damaged: cannot read federation.json"),
        (
            lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes().replace(b"(6, 3)", b"((6, 3")),
            "is damaged: cannot read x.npy",
        ),
        (lambda f: (f / "y.npy").write_bytes(huge((10**13,))), "is damaged: cannot read y.npy"),
        (lambda f: (f / "bounds.npy").write_bytes(huge((10**30, 4))), "is damaged: cannot read bounds.npy"),
        (lambda f: (f / "truth" / "theta.npy").write_bytes(huge((-5,))), "is damaged: cannot read theta.npy"),
        (lambda f: (f / "x.npy").unlink(), "is damaged: cannot read x.npy"),
        (
            lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes()[:-4]),
            "is damaged: cannot read x.npy",
        ),
        (lambda f: (f / "x.npy").write_bytes(b""), "is damaged: cannot read x.npy"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 3), np.complex64)), "is damaged: x is torch.complex64"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 3), ">f4")), "is damaged"),
        (lambda f: np.save(f / "x.npy", np.ones((5, 3), np.float32)), "is damaged: x has 5 samples"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 4), np.float32)), "is damaged: its content"),
        (lambda f: np.save(f / "y.npy", np.zeros(6, np.int64)), "is damaged: its content"),
        (lambda f: np.save(f / "y.npy", np.array(3)), "is damaged"),
        (lambda f: np.save(f / "bounds.npy", np.array(["a"])), "is damaged"),
        (lambda f: np.save(f / "truth" / "theta.npy", np.zeros(2)), "is damaged: its content"),
        (lambda f: np.save(f / "truth" / "theta.npy", np.zeros(1)), "is damaged: truth 'theta'"),
    ],
)
def test_damaged_and_foreign_folders_are_refused(tmp_path, damage, said):
    full().save(tmp_path / "fed")
    damage(tmp_path / "fed")
    with pytest.raises(DataError, match=f"fed {said}"):
        Federation.load(tmp_path / "fed")


def test_changed_features_are_found_when_asked(tmp_path):
    full().save(tmp_path / "fed")
    np.save(tmp_path / "fed" / "x.npy", np.ones((6, 3), np.float32))
    Federation.load(tmp_path / "fed")
    with pytest.raises(DataError, match="content is not what was saved"):
        Federation.load(tmp_path / "fed", verify=True)
    with pytest.raises(DataError, match="is not a saved federation"):
        Federation.load(tmp_path / "nowhere")


# --- tables


def texts(**changes):
    """Two clients whose x are numbers of three words."""
    tables = {"embedding": torch.eye(3), "vocabulary": torch.tensor([97, 98], dtype=torch.uint8)}
    return small(**({"x": torch.tensor([[0, 1], [2, 0], [1, 1]] * 2), "tables": tables} | changes))


def test_tables_count_for_the_fingerprint_where_there_are_any():
    # The value from before there were tables: old runs must remain resumable.
    without = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])})
    assert without.fingerprint == "08dcbaa1cb5d0daf5f50b1a5c535bf82ed90088f3aa4237af77e3a522ceb3fdb"
    tables = texts().tables
    changes = [
        {},
        {"tables": {}},
        {"tables": tables | {"embedding": 2 * torch.eye(3)}},
        {"tables": {"embedding": tables["embedding"]}},
        {"tables": {"other": tables["vocabulary"], "embedding": tables["embedding"]}},
    ]
    assert len({texts(**change).fingerprint for change in changes}) == len(changes)
    assert texts(tables=dict(reversed(tables.items()))).fingerprint == texts().fingerprint


def test_tables_are_saved_and_come_back(tmp_path):
    fed = texts()
    fed.save(tmp_path / "fed")
    back = Federation.load(tmp_path / "fed", verify=True)
    assert back.fingerprint == fed.fingerprint and back.tables.keys() == fed.tables.keys()
    assert all(
        back.tables[what].equal(table) and back.tables[what].dtype == table.dtype for what, table in fed.tables.items()
    )
    small().save(tmp_path / "plain")
    assert "tables" not in json.loads((tmp_path / "plain" / "federation.json").read_text())
    assert not (tmp_path / "plain" / "tables").exists() and Federation.load(tmp_path / "plain").tables == {}


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda f: np.save(f / "tables" / "embedding.npy", 2 * np.eye(3, dtype=np.float32)), "is damaged: its content"),
        (lambda f: (f / "tables" / "embedding.npy").unlink(), "is damaged: cannot read embedding.npy"),
        (lambda f: rewrite(f, tables=["embedding"]), "is damaged: its content"),
        (lambda f: rewrite(f, tables=["../x"]), "is damaged: table names must be like variables"),
        (lambda f: rewrite(f, tables=3), "is damaged"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, damage, said):
    texts().save(tmp_path / "fed")
    damage(tmp_path / "fed")
    with pytest.raises(DataError, match=said):
        Federation.load(tmp_path / "fed")


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"tables": {"embedding": torch.eye(2)}},
            r"x outside 0\.\.1, .* in 2 clients: ann \(1 value\), bob \(1 value\)",
        ),
        ({"x": torch.full((6, 2), -1)}, r"x outside 0\.\.2, the rows of the table 'embedding'"),
        ({"x": torch.ones(6, 2)}, "with a table 'embedding' it must be integers"),
        ({"tables": {"a/b": torch.eye(2)}}, "table 'a/b' must be named like a variable"),
        ({"tables": {"words": torch.tensor([np.inf])}}, "table 'words' has NaN or infinite values"),
        ({"tables": {"words": np.ones(2)}}, "table 'words' must be a tensor, not ndarray"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(changes, said):
    with pytest.raises(DataError, match=said):
        texts(**changes)


def test_every_way_to_make_a_federation_keeps_the_tables():
    table = {"embedding": torch.eye(3)}
    arrays = Federation.from_arrays([[0], [1], [2]], [0, 1, 0], clients=list("aab"), tables=table)
    own = Federation.from_clients({"a": ([[0], [1]], [0, 1]), "b": ([[2]], [0])}, tables=table)
    dealt = Federation.from_arrays([[0], [1], [2]], [0, 1, 0], partition=Iid(2), tables=table)
    assert all(fed.tables["embedding"].equal(torch.eye(3)) for fed in (arrays, own, dealt))


@pytest.mark.skipif(sys.platform != "linux", reason="maps files larger than the memory on Linux only")
def test_features_may_be_larger_than_the_memory(tmp_path):
    """Half a terabyte, all of it a hole but for the last value."""
    file, rows = tmp_path / "x.npy", 2**31
    with open(file, "wb") as opened:
        np.lib.format.write_array_header_1_0(opened, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        begin = opened.tell()
        opened.truncate(begin + rows * 64 * 4)
        opened.seek(-4, 2)
        opened.write(np.float32(7).tobytes())
    x = federation_files.map_array(file)
    assert x.shape == (rows, 64) and x[-1, -1] == 7 and x[5, 5] == 0
    x[-1, -1] = 8
    assert torch.from_numpy(x)[-1, -1] == 8 and federation_files.map_array(file)[-1, -1] == 7


def test_a_saved_fingerprint_is_trusted_unless_it_is_to_be_verified(tmp_path):
    fed = small()
    fed.save(tmp_path / "fed")
    file = tmp_path / "fed" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert Federation.load(tmp_path / "fed").fingerprint == fed.fingerprint
    with pytest.raises(DataError, match="damaged"):
        Federation.load(tmp_path / "fed", verify=True)
