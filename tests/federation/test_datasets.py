"""Facts about federations of torch Datasets and of Hugging Face datasets."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from personafl import Federation
from personafl.data.partitions import IID
from personafl.errors import ConfigError, DataError


class Items(Dataset):
    """A dataset of whatever items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 4
KNOWN = Federation.from_clients({"ann": (X, Y), "bob": (X[:5], Y[:5])})


class Batched(Items):
    def __getitem__(self, number):
        raise RuntimeError("one at a time is slow")

    def __getitems__(self, numbers):
        return [self.items[number] for number in numbers]


TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "ann, bob",
    [
        (TENSORS, Subset(TENSORS, range(5))),
        (Subset(Subset(TENSORS, list(range(20))), torch.arange(20)), TensorDataset(*TENSORS[:5])),
        (Items([(torch.from_numpy(x), torch.tensor(y)) for x, y in zip(X, Y, strict=True)]), Subset(TENSORS, range(5))),
        (Items([(x, int(y)) for x, y in zip(X, Y, strict=True)]), Items([[X[k], Y[k]] for k in range(5)])),
        (Items([(x.tolist(), y) for x, y in zip(X, Y, strict=True)]), Subset(Items([(x, 0) for x in X]), [])),
        (ConcatDataset([Subset(TENSORS, range(9)), Subset(TENSORS, range(9, 20))]), Subset(TENSORS, range(5))),
        (Batched(list(zip(X, Y, strict=True))), Subset(Batched(list(zip(X, Y, strict=True))), range(5))),
        ([(x, y) for x, y in zip(X, Y, strict=True)], Subset(TENSORS, range(5))),
    ],
)  # fmt: skip
def test_datasets_are_the_same_federation_as_their_arrays(ann, bob):
    if len(bob) == 0:
        with pytest.raises(DataError, match="client 'bob' has an empty dataset; leave it out"):
            Federation.from_datasets({"ann": ann, "bob": bob})
        bob = Subset(TENSORS, range(5))
    assert Federation.from_datasets({"ann": ann, "bob": bob}).fingerprint == KNOWN.fingerprint


def test_datasets_of_splits_are_used_as_they_are():
    fed = Federation.from_datasets(
        {"ann": {"train": Subset(TENSORS, range(5)), "test": Items([(X[7], 3)])}, 2: {"train": TENSORS}},
        class_names=("a", "b", "c", "d"),
        groups={"ann": "g", "2": "h"},
    )
    assert fed.bounds.tolist() == [[0, 5, 5, 6], [6, 26, 26, 26]] and fed.ids == ("ann", "2")
    assert fed.class_names == ("a", "b", "c", "d") and fed.groups == ("g", "h") and fed.classes == 4


def test_pictures_become_channels_first_in_0_to_1():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    fed = Federation.from_datasets(
        {"a": Items([(Image.fromarray(p), k % 2) for k, p in enumerate(pixels)])}, splits=(1, 0, 0)
    )
    assert fed.x.shape == (4, 3, 6, 5) and fed.x.dtype == torch.float32
    known = {tuple(p.transpose(2, 0, 1).ravel()) for p in pixels}
    assert {tuple(np.rint(x.numpy() * 255).astype(int).ravel()) for x in fed.x} == known
    grey = Federation.from_datasets({"a": Items([(Image.fromarray(pixels[0, :, :, 0]), 0)])})
    assert grey.x.shape == (1, 1, 6, 5) and np.array_equal(np.rint(grey.x[0, 0].numpy() * 255), pixels[0, :, :, 0])
    palette = Image.fromarray(pixels[0]).convert("P")
    assert Federation.from_datasets({"a": Items([(palette, 0)])}).x.shape == (1, 3, 6, 5)
    black = Federation.from_datasets({"a": Items([(Image.new("1", (2, 2), 1), 0)])})
    assert black.x.flatten().tolist() == [1, 1, 1, 1]


def test_targets_may_be_vectors():
    fed = Federation.from_datasets({"a": Items([(x, torch.tensor([0.5, 1.5])) for x in X])})
    assert fed.y.shape == (20, 2) and fed.classes is None


def test_mixed_numbers_are_not_cut_off():
    """An item with the label 0 and another with 0.5: the labels are floats."""
    fed = Federation.from_datasets({"a": Items([([0], 0), ([1], 0.5), ([0.5], 1)])}, splits=(1, 0, 0))
    assert sorted(fed.y.tolist()) == [0, 0.5, 1] and sorted(fed.x.flatten().tolist()) == [0, 0.5, 1]


def test_many_items_are_read_in_order():
    count = 3000
    items = Items([(np.array([k]), k % 7) for k in range(count)])
    known = Federation.from_clients({"a": (np.arange(count)[:, None], np.arange(count) % 7)})
    assert Federation.from_datasets({"a": items}).fingerprint == known.fingerprint


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([(X[0], 0)])


class Broken(Items):
    def __getitem__(self, number):
        if number == 3:
            raise KeyError("no such\nfile")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    "dataset, said",
    [
        (Items([(X[0], 0), X[1]]), r"client 'ann', item 1 is a ndarray; expected a pair \(x, y\)"),
        (Items([(X[0], 0), (X[1], 0, 1)]), r"client 'ann', item 1 is a tuple of 3; expected a pair \(x, y\)"),
        (Items([{"image": X[0], "label": 0}]), r"client 'ann', item 0 is a dict; expected a pair"),
        (Items([(X[0], 0), (X[:2], 1)]), r"client 'ann', item 1: x has shape \(2, 3\), expected \(3,\) as in item 0"),
        (Items([(X[0], 0)] * 2000 + [(X[1], [1])]), r"item 2000: y has shape \(1,\), expected \(\) as in item 0"),
        (Items([(X[0], "cat")]), r"y of client 'ann', item 0 is a str; expected numbers"),
        (Items([(None, 1)]), r"x of client 'ann', item 0 is a NoneType; expected numbers"),
        (Items([([[1], [1, 2]], 1)]), r"x of client 'ann', item 0 is a list of 2 that is not an array"),
        (Broken([(x, 0) for x in X]), r"client 'ann', item 3 cannot be read: KeyError: 'no such"),
        (Streamed(), "client 'ann' is a Streamed; expected a map-style torch Dataset"),
        (Items([]), "client 'ann' has an empty dataset"),
        (3, "client 'ann' is a int; expected a map-style torch Dataset"),
        ({"trian": TENSORS}, "client 'ann' has a split 'trian'"),
        ({"test": TENSORS}, "1 client without training data: ann"),
        ({"train": TENSORS, "test": Items([(X[0, :2], 1)])}, r"client 'ann' \(test\) has features of shape \(2,\)"),
        (TensorDataset(torch.zeros(3, 2)), r"client 'ann', item 0 is a tuple of 1; expected a pair"),
        (
            TensorDataset(torch.full((3, 2), torch.nan), torch.zeros(3).long()),
            "NaN or infinite features in 1 client: ann",
        ),
    ],
)
def test_what_cannot_be_used_is_named(dataset, said):
    with pytest.raises(DataError, match=said) as caught:
        Federation.from_datasets({"ann": dataset})
    assert "\n" not in str(caught.value)


def test_no_datasets():
    with pytest.raises(DataError, match="the federation is empty"):
        Federation.from_datasets({})


# --- Hugging Face

ROWS = {
    "user": ["u2", "u10", "u2", "u10", "u2", "u10"],
    "age": [1, 2, 3, 4, 5, 6],
    "vector": [[float(k), 0.5] for k in range(6)],
    "label": [0, 1, 1, 0, 2, 2],
    "word": ["b", "a", "b", "a", "a", "b"],
}


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets", reason="the extra huggingface is not installed")


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("personafl.federation.datasets.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs the package datasets: pip install "personafl\[huggingface\]"'):
        Federation.from_huggingface("mnist", client="user")


def test_a_dataset_is_a_table(datasets):
    fed = Federation.from_huggingface(datasets.Dataset.from_dict(ROWS), client="user", features=["age", "vector"])
    x = [[age, *vector] for age, vector in zip(ROWS["age"], ROWS["vector"], strict=True)]
    assert fed.fingerprint == Federation.from_arrays(np.array(x), ROWS["label"], clients=ROWS["user"]).fingerprint
    assert fed.ids == ("u2", "u10") and fed.class_names is None
    words = Federation.from_huggingface(
        datasets.Dataset.from_dict(ROWS), client="user", label="word", features="vector"
    )
    assert words.class_names == ("a", "b") and words.x.shape == (6, 2)


def test_rows_that_were_selected_and_shuffled_are_read_in_their_order(datasets):
    dataset = datasets.Dataset.from_dict(ROWS).select([5, 3, 1, 0]).with_format("torch")
    fed = Federation.from_huggingface(dataset, partition=IID(1), features=["age"], splits=(1, 0, 0))
    assert sorted(fed.x.flatten().tolist()) == [1, 2, 4, 6]
    known = Federation.from_arrays(np.array([[6.0], [4], [2], [1]]), [2, 0, 1, 0], partition=IID(1), splits=(1, 0, 0))
    assert fed.fingerprint == known.fingerprint


def test_the_splits_of_a_dict_are_used_as_they_are(datasets):
    whole = datasets.Dataset.from_dict(ROWS)
    parts = datasets.DatasetDict(
        {"test": whole.select([4, 5]), "train": whole.select([0, 1]), "validation": whole.select([2, 3])}
    )
    fed = Federation.from_huggingface(parts, client="user", features=["age"])
    assert fed.bounds.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6]] and fed.x.flatten().tolist() == [1, 3, 5, 2, 4, 6]
    alone = Federation.from_huggingface(datasets.DatasetDict({"train": whole}), client="user", features=["age"])
    assert alone.fingerprint == Federation.from_huggingface(whole, client="user", features=["age"]).fingerprint


def test_names_of_classes_are_kept(datasets):
    dataset = datasets.Dataset.from_dict(ROWS).cast_column(
        "label", datasets.ClassLabel(names=["cat", "dog", "eel", "fox"])
    )
    fed = Federation.from_huggingface(dataset, client="user", features=["age"])
    assert fed.class_names == ("cat", "dog", "eel", "fox") and fed.classes == 4


def test_pictures_are_decoded(datasets):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 7, 3), np.uint8)
    features = datasets.Features(
        {
            "user": datasets.Value("string"),
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
        }
    )
    images = [Image.fromarray(p) for p in pixels]
    dataset = datasets.Dataset.from_dict({k: ROWS[k] for k in ("user", "label")} | {"image": images}, features=features)
    fed = Federation.from_huggingface(dataset, client="user", features="image", splits=(1, 0, 0))
    assert fed.x.shape == (6, 3, 8, 7) and fed.class_names == ("a", "b", "c")
    known = {tuple(p.transpose(2, 0, 1).ravel()) for p in pixels}
    assert {tuple(np.rint(x.numpy() * 255).astype(int).ravel()) for x in fed.x} == known
    images[2] = images[2].resize((5, 5))
    odd = datasets.Dataset.from_dict({k: ROWS[k] for k in ("user", "label")} | {"image": images}, features=features)
    with pytest.raises(
        DataError, match=r"column 'image' in row 3 is a picture of shape \(3, 5, 5\), expected \(3, 8, 7\)"
    ):
        Federation.from_huggingface(odd, client="user", features="image")


def test_arrays_of_two_dimensions_keep_their_shape(datasets):
    features = datasets.Features(
        {"user": datasets.Value("string"), "a": datasets.Array2D((2, 3), "float32"), "label": datasets.Value("int64")}
    )
    values = np.arange(36.0).reshape(6, 2, 3)
    rows = {"user": ROWS["user"], "a": values.tolist(), "label": ROWS["label"]}
    fed = Federation.from_huggingface(datasets.Dataset.from_dict(rows, features), client="user", features="a")
    assert fed.fingerprint == Federation.from_arrays(values, ROWS["label"], clients=ROWS["user"]).fingerprint


def test_what_is_no_dataset_is_named(datasets):
    whole = datasets.Dataset.from_dict(ROWS)
    with pytest.raises(DataError, match=r"was given a str; expected what datasets\.load_dataset returns"):
        Federation.from_huggingface("mnist", client="user")
    with pytest.raises(DataError, match="has a split 'extra', expected train, validation and test only"):
        Federation.from_huggingface(datasets.DatasetDict({"train": whole, "extra": whole}), client="user")
    with pytest.raises(DataError, match="streamed: load it without streaming=True"):
        Federation.from_huggingface(whole.to_iterable_dataset(), client="user")
    with pytest.raises(DataError, match=r"the dataset has no column 'who' \(client\)"):
        Federation.from_huggingface(whole, client="who")
    parts = datasets.DatasetDict({"train": whole, "test": whole.remove_columns("age")})
    with pytest.raises(DataError, match=r"the dataset \(test\) has no column 'age'"):
        Federation.from_huggingface(parts, client="user", features=["age"])
    parts = datasets.DatasetDict({"train": whole.select([0]), "test": whole.select([1])})
    with pytest.raises(DataError, match="1 client without training data: u10"):
        Federation.from_huggingface(parts, client="user", features=["age"])
