"""What labels are taken for, what they can be declared to be, and what is said of them."""

import re

import numpy as np
import pytest
import torch

from personafl.data.sources import Files
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.federation.overview import label_counts, overview

X = np.zeros((6, 2), np.float32)
WHO = list("aaabbb")


def made(y, **options):
    return Federation.from_arrays(X[: len(y)], y, clients=WHO[: len(y)], **options)


def table(**columns):
    return {"who": WHO, "age": list(range(6)), **columns}


def from_table(label, **columns):
    options = {name: columns.pop(name) for name in ("label_type", "classes") if name in columns}
    return Federation.from_table(table(**columns), client="who", label=label, **options)


# --- tagging, segmentation, several labels


def test_labels_of_words_and_pixels_are_classes_and_minus_100_does_not_count():
    words = np.array([[0, 3, -100], [1, -100, -100], [2, 2, 2]] * 2)
    fed = made(words)
    assert fed.y.dtype == torch.int64 and fed.y.shape == (6, 3) and fed.classes == 4 and not fed.multi_label
    assert fed.outputs == 4
    pixels = np.zeros((6, 4, 5), int)
    pixels[0, 0, 0] = 6
    assert made(pixels).classes == 7
    assert label_counts(fed).sum(axis=0).tolist() == [2, 2, 6, 2]
    assert overview(fed)["classes"] == 4


def test_other_negative_labels_and_labels_that_never_count_are_refused():
    with pytest.raises(DataError, match=r"negative labels in 1 client: a \(1 label\); .* -100 marks what is not"):
        made(np.array([[0, -1], *[[0, 2]] * 5]))
    with pytest.raises(DataError, match="every label is -100"):
        made(np.full((6, 3), -100))
    with pytest.raises(DataError, match="negative labels"):  # a sample without a label is no sample
        made(np.array([0, 1, -100, 0, 1, 1]))


def test_zeros_and_ones_in_several_columns_are_several_labels():
    y = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]] * 2)
    fed = made(y)
    assert fed.y.dtype == torch.int64 and fed.multi_label and fed.outputs == 3 and fed.classes == 2
    assert label_counts(fed).sum(axis=0).tolist() == [2, 2, 2]
    of_table = from_table(["a", "b", "c"], a=y[:, 0], b=y[:, 1], c=y[:, 2])
    assert of_table.multi_label and torch.equal(of_table.x.sum(0), torch.tensor([15.0]))
    assert sorted(of_table.y.tolist()) == sorted(y.tolist())


def test_several_columns_of_floats_are_targets(tmp_path):
    fed = from_table(["a", "b"], a=[0.5, 1, 2, 3, 4, 5], b=[1, 2, 3, 4, 5, 6])
    assert fed.y.dtype == torch.float32 and fed.y.shape == (6, 2) and fed.classes is None
    (tmp_path / "t.csv").write_text("who,age,a,b\n" + "".join(f"{w},{k},{k}.5,1\n" for k, w in enumerate(WHO)))
    config = Files(path=str(tmp_path / "t.csv"), client="who", label=("a", "b"))
    assert config.federation(None, None, 0).y.shape == (6, 2)


def test_whole_numbers_in_several_columns_have_to_be_declared():
    with pytest.raises(DataError, match="columns a, b hold whole numbers up to 5; give label_type = 'numbers'"):
        from_table(["a", "b"], a=range(6), b=[1] * 6)
    assert from_table(["a", "b"], a=range(6), b=[1] * 6, label_type="numbers").y.dtype == torch.float32
    assert from_table(["a", "b"], a=range(6), b=[1] * 6, label_type="classes").y.dtype == torch.int64
    with pytest.raises(DataError, match="column 'b' holds text"):
        from_table(["a", "b"], a=range(6), b=list("xyzxyz"))


# --- declared types


def test_whole_numbers_of_a_table_can_be_declared_numbers(tmp_path):
    rows = "".join(f"{'ab'[k % 2]},{k},{k % 30 + 1}\n" for k in range(120))
    (tmp_path / "t.csv").write_text("who,age,score\n" + rows)
    options = {"client": "who", "label": "score"}
    taken = Federation.from_table(tmp_path / "t.csv", **options)
    assert taken.classes == 31 and "30 different whole numbers of 'score' were taken as classes" in taken.notes[0]
    numbers = Federation.from_table(tmp_path / "t.csv", **options, label_type="numbers")
    assert numbers.classes is None and numbers.y.dtype == torch.float32 and numbers.notes == ()
    assert sorted(set(numbers.y.tolist())) == list(range(1, 31))
    config = Files(path=str(tmp_path / "t.csv"), **options, label_type="numbers")
    assert config.federation(None, None, 0).fingerprint == numbers.fingerprint


def test_floats_can_be_declared_classes_or_numbers():
    y = np.array([0.0, 1, 2, 0, 1, 2])
    assert made(y, label_type="classes").classes == 3 and made(y, label_type="classes").y.dtype == torch.int64
    assert made(y, label_type="numbers").classes is None
    clients = {"a": (X[:3], y[:3]), "b": (X[3:], y[3:])}
    assert Federation.from_clients(clients, label_type="classes").classes == 3
    with pytest.raises(DataError, match=r"label_type = 'classes', and y holds 0\.5; expected whole numbers"):
        made(y + 0.5, label_type="classes")


def test_one_hot_labels_can_be_declared_several_labels():
    one_hot = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    fed = made(one_hot, label_type="multilabel")
    assert fed.multi_label and fed.y.dtype == torch.int64
    with pytest.raises(DataError, match=r"y has shape \('N', 3\) with values from 0 to 2; expected \(N, labels\)"):
        made(2 * one_hot, label_type="multilabel")


@pytest.mark.parametrize(
    "y", [np.array([0.0, 1.5, 2.0, 0.0, 1.0, 2.0]), np.arange(6.0), np.zeros(6), np.ones((6, 2)), np.zeros((6, 1))]
)
def test_floats_that_do_not_look_like_classes_are_numbers(y):
    assert made(y).classes is None


def test_a_type_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="label_type = 'float': must be auto, classes, numbers or multilabel"):
        made([0, 1], label_type="float")


# --- notes


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1, 2, 3, 1, 2, 3], "labels count from 1, so class 0 of the 4 classes is empty: give y - 1"),
        ([0, 2, 2, 0, 2, 2], r"1 of the 3 classes has no sample \(1\)"),
        ([0, 9, 9, 0, 9, 9], r"8 of the 10 classes have no sample \(1, 2, 3, 4, 5, …\)"),
    ],
)
def test_classes_that_nobody_has_are_said(y, said):
    assert re.search(said, made(y).notes[0])
    assert re.search(said, Federation.from_clients({"a": (X, y)}).notes[0])
    assert re.search(said, from_table("y", y=y).notes[0])
    assert made(y, classes=max(y) + 1).notes == ()


def test_usual_labels_need_no_word():
    assert made([0, 1, 2, 0, 1, 2]).notes == () and made([0.5, 1.5, 2.0, 3, 4, 5]).notes == ()
    assert from_table("y", y=list("xyzxyz")).notes == ()
