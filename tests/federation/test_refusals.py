"""What a federation refuses: unusable data, partitions that do not add up, files that execute or lie."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from personafl.data.partitions import IID, Assignment
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from tests.federation.test_federation import small

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
            lambda: Federation.from_arrays(np.ones((3, 1)), [0, 1], partition=IID(1)),
            "x has 3 samples and y has 2",
        ),
        (lambda: Federation.from_clients({1: ONE, "1": ONE}), "1 client id given twice: 1"),
        (lambda: small(ids=("ann", "ann")), "given twice: ann"),
        (
            lambda: Federation.from_clients({"a": (np.array([[1], ["x"]], object), [0, 1])}),
            "x of client 'a' holds object values, not numbers",
        ),
        (lambda: Federation.from_clients({"a": ([["x"]], [0])}), "x of client 'a' holds <U1 values"),
        (
            lambda: Federation.from_clients({"a": ([[1.0]], ["cat"])}),
            "y of client 'a' holds text such as 'cat'; give the number",
        ),
        (
            lambda: Federation.from_clients({"a": ([[[1.0], [1.0, 2.0]], [[1.0]]], [0, 1])}),
            "x of client 'a': sample 0 is not one array",
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
        (lambda: small(class_names=("a", "b")), r"labels outside 0..1 in 2 clients"),
        (lambda: small(class_names=("a", "b"), classes=3), "2 class names for 3 classes; give the name of each class"),
        (
            lambda: small(class_names=("a", "b", "b")),
            "class_names must be the names of the classes, each another string",
        ),
        (lambda: small(class_names=("a", "b", 3)), "class_names must be the names of the classes"),
        (
            lambda: small(y=torch.ones(6), class_names=("a",)),
            "class_names were given, and y are targets of a regression",
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
    for given_ones in ({}, {"partition": IID(1), "clients": ["a"]}):
        with pytest.raises(ConfigError, match=r"exactly one of partition .* and clients"):
            Federation.from_arrays([[1.0]], [0], **given_ones)
    with pytest.raises(ConfigError, match="a partition makes its own"):
        Federation.from_arrays([[1.0]], [0], partition=IID(1), groups=["g"])


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
