"""Facts about several inputs by name, and about samples of unequal length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from personafl import Federation
from personafl.errors import ConfigError, DataError
from personafl.federation.ragged import Ragged
from tests.federation.test_datasets import Items

RNG = np.random.default_rng(0)


def two_inputs(samples=12, clients=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"c{m}": (
            {"ids": rng.integers(0, 9, (samples, 4)), "table": rng.normal(m, 2, (samples, 3)).astype(np.float32)},
            rng.integers(0, 2, samples),
        )
        for m in range(clients)
    }


def texts(lengths, seed=0, kind=int):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 9, n).astype(kind) for n in lengths]


def test_inputs_keep_their_types_and_stay_with_their_samples():
    x = {"ids": np.arange(40).reshape(20, 2), "mask": np.arange(20) % 2 == 0, "z": np.arange(20) / 2}
    fed = Federation.from_arrays(x, np.arange(20) % 2, clients=["b", "a"] * 10, classes=2)
    assert [part.dtype for part in fed.x.values()] == [torch.int64, torch.uint8, torch.float32]
    for client in "ab":
        for part, _ in fed.client(client).values():
            # A sample's number is half its first id: all inputs were taken from the same samples.
            number = part["ids"][:, 0] // 2
            assert torch.equal(part["z"], number / 2) and torch.equal(part["mask"], (number % 2 == 0).to(torch.uint8))
            assert (number % 2 == (client == "a")).all()


@pytest.mark.parametrize("verify", [True, False])
def test_a_federation_on_disk_is_the_same_and_is_mapped(tmp_path, verify):
    fed = Federation.from_clients(two_inputs())
    fed.save(tmp_path / "fed")
    assert sorted(file.name for file in (tmp_path / "fed").glob("x*")) == ["x.ids.npy", "x.table.npy"]
    again = Federation.load(tmp_path / "fed", verify=verify)
    assert list(again.x) == ["ids", "table"] and again.fingerprint == fed.fingerprint
    assert all(torch.equal(again.x[name], fed.x[name]) for name in fed.x)


def test_what_is_damaged_on_disk_is_noticed(tmp_path):
    Federation.from_clients(two_inputs()).save(tmp_path / "fed")
    array = np.load(tmp_path / "fed" / "x.ids.npy")
    array[0, 0] += 1
    np.save(tmp_path / "fed" / "x.ids.npy", array)
    with pytest.raises(DataError, match="damaged"):
        Federation.load(tmp_path / "fed", verify=True)
    np.save(tmp_path / "fed" / "x.ids.npy", array[:, :2])
    with pytest.raises(DataError, match="damaged"):
        Federation.load(tmp_path / "fed")


def test_a_name_in_a_saved_federation_cannot_lead_out_of_it(tmp_path):
    Federation.from_clients(two_inputs()).save(tmp_path / "fed")
    file = tmp_path / "fed" / "federation.json"
    file.write_text(file.read_text().replace('"ids",\n  "table"', '"/../../secret",\n  "table"'))
    with pytest.raises(DataError, match="input names must be like variables"):
        Federation.load(tmp_path / "fed")


def test_the_fingerprint_sees_names_and_values_and_not_their_order():
    data = two_inputs()
    swapped = {client: ({"table": x["table"], "ids": x["ids"]}, y) for client, (x, y) in data.items()}
    renamed = {client: ({"tokens": x["ids"], "table": x["table"]}, y) for client, (x, y) in data.items()}
    one = Federation.from_clients(data).fingerprint
    assert Federation.from_clients(swapped).fingerprint == one
    assert Federation.from_clients(renamed).fingerprint != one
    data["c0"][0]["ids"][0, 0] += 1
    assert Federation.from_clients(data).fingerprint != one


def test_one_tensor_keeps_the_fingerprint_that_it_had():
    fed = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])})
    assert fed.fingerprint == "08dcbaa1cb5d0daf5f50b1a5c535bf82ed90088f3aa4237af77e3a522ceb3fdb"


def test_only_floats_are_standardized():
    fed = Federation.from_clients(two_inputs())
    made = fed.standardized()
    train = torch.cat([made.client(client)["train"][0]["table"] for client in made.ids])
    assert torch.allclose(train.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(3), atol=1e-5)
    assert torch.equal(made.x["ids"], fed.x["ids"]) and sorted(made.constants) == ["mean_table", "std_table"]
    with pytest.raises(ConfigError, match="none of the inputs is floats"):
        Federation.from_arrays({"ids": [[1], [2]]}, [0, 1], clients=["a", "a"]).standardized()


def test_npz_files_hold_inputs_by_name_with_and_without_splits(tmp_path):
    x, y = two_inputs()["c0"]
    np.savez(tmp_path / "a.npz", **{"x.ids": x["ids"], "x.table": x["table"]}, y=y)
    whole = Federation.from_folder(tmp_path)
    assert list(whole.x) == ["ids", "table"] and whole.fingerprint == Federation.from_clients({"a": (x, y)}).fingerprint
    parts = {"x_train.ids": x["ids"][:8], "x_train.table": x["table"][:8], "y_train": y[:8]}
    parts |= {"x_test.ids": x["ids"][8:], "x_test.table": x["table"][8:], "y_test": y[8:]}
    np.savez(tmp_path / "a.npz", **parts)
    divided = Federation.from_folder(tmp_path)
    assert divided.bounds.tolist() == [[0, 8, 8, 12]]
    assert np.array_equal(divided.client("a")["test"][0]["ids"], x["ids"][8:])


def test_samples_of_unequal_length_are_padded_as_torch_pads_them():
    x, y = texts([3, 1, 5, 2]), [0, 1, 0, 1]
    fed = Federation.from_clients({"a": {"train": (x, y)}})
    expected = pad_sequence([torch.from_numpy(row) for row in x], batch_first=True)
    assert torch.equal(fed.x["x"], expected) and fed.x["mask"].dtype == torch.uint8
    assert fed.x["mask"].sum(1).tolist() == [3, 1, 5, 2] and (fed.x["x"][fed.x["mask"] == 0] == 0).all()
    assert fed.notes == ("samples of unequal length are padded to 5; mask is 1 for what is real",)


def test_clients_of_unequal_length_are_padded_alike_and_keep_their_samples():
    data = {"a": ({"ids": texts([2, 4])}, [0, 1]), "b": ({"ids": np.ones((2, 3), int)}, [0, 1])}
    fed = Federation.from_clients(data, splits=(1, 0, 0))
    assert fed.x["ids"].shape == (4, 4) and fed.client("b")["train"][0]["mask"].tolist() == [[1, 1, 1, 0]] * 2
    wide = Federation.from_clients(data, splits=(1, 0, 0), length=6)
    assert wide.x["ids"].shape == (4, 6) and torch.equal(wide.x["ids"][:, :4], fed.x["ids"])
    assert not wide.x["mask"][:, 4:].any()


def test_lists_of_single_numbers_are_no_sequences():
    y = [torch.tensor(0), torch.tensor(1)], [np.array(0), np.array(1)], (0, 1)
    for labels in y:
        fed = Federation.from_clients({"a": {"train": ([torch.ones(2), torch.zeros(2)], labels)}})
        assert fed.y.tolist() == [0, 1] and fed.x.tolist() == [[1, 1], [0, 0]]


def test_labels_of_each_word_are_padded_with_what_no_loss_looks_at():
    x = texts([3, 1, 5])
    fed = Federation.from_clients({"a": {"train": ({"ids": x}, [row % 3 for row in x])}})
    expected = pad_sequence([torch.from_numpy(row % 3) for row in x], batch_first=True, padding_value=-100)
    assert torch.equal(fed.y, expected) and fed.classes == 3


def test_inputs_of_different_lengths_have_a_mask_each():
    x = {"source": texts([3, 1]), "target": texts([2, 4]), "age": np.ones((2, 1))}
    fed = Federation.from_clients({"a": {"train": (x, [0, 1])}})
    assert list(fed.x) == ["source", "target", "age", "source_mask", "target_mask"]
    assert fed.x["source_mask"].sum(1).tolist() == [3, 1] and fed.x["target_mask"].sum(1).tolist() == [2, 4]


def test_a_mask_that_is_brought_is_the_mask():
    x = {"input_ids": texts([3, 1]), "attention_mask": [np.ones(3, int), np.ones(1, int)]}
    fed = Federation.from_clients({"a": {"train": (x, [0, 1])}})
    assert list(fed.x) == ["input_ids", "attention_mask"] and fed.x["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_file_holds_samples_of_unequal_length_end_to_end(tmp_path):
    x, y = texts([3, 1, 2]), np.array([0, 1, 0])
    np.savez(tmp_path / "a.npz", **{"x.ids": np.concatenate(x), "x.ids.lengths": [3, 1, 2]}, y=y)
    expected = Federation.from_clients({"a": ({"ids": x}, y)})
    assert Federation.from_folder(tmp_path).fingerprint == expected.fingerprint
    np.savez(tmp_path / "a.npz", **{"x": np.concatenate(x), "x.lengths": [3, 1, 2]}, y=y)
    assert torch.equal(Federation.from_folder(tmp_path).x["x"], expected.x["ids"])


def test_padding_has_no_part_in_the_standardization():
    x = [RNG.normal(3, 2, (n, 2)) for n in (4, 2, 7)]
    fed = Federation.from_clients({"a": {"train": (x, [0, 1, 0])}}).standardized()
    real = np.concatenate(x)
    expected = (real - real.mean(0)) / real.std(0)
    assert np.allclose(fed.x["x"][fed.x["mask"] != 0], expected, atol=1e-5) and not fed.x["x"][fed.x["mask"] == 0].any()


def test_datasets_give_inputs_by_name_and_of_unequal_length():
    items = [({"ids": row, "age": float(n)}, n % 2) for n, row in enumerate(texts([2, 4, 3]))]
    fed = Federation.from_datasets({"a": {"train": Items(items)}})
    assert list(fed.x) == ["ids", "age", "mask"] and fed.x["age"].tolist() == [0.0, 1.0, 2.0]
    assert fed.x["mask"].sum(1).tolist() == [2, 4, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (({"ids": np.ones((10, 2)), "mask": np.ones((12, 2))}, [0] * 10), "'a': x.mask has 12 samples, x.ids 10"),
        (({"ids": np.ones((3, 2))}, [0] * 2), "x.ids has 3 samples and y has 2"),
        (({"my ids": np.ones((2, 2))}, [0, 1]), "input 'my ids' must be named like a variable"),
        (({"class": np.ones((2, 2))}, [0, 1]), "input 'class' must be named like a variable"),
        (({}, [0, 1]), "x is an empty dictionary"),
        (({"ids": [["a"], ["b"]]}, [0, 1]), "x.ids of client 'a' holds <U1 values, not numbers"),
        (({"ids": [[[1, 2]], [[1], [2]]]}, [0, 1]), r"x.ids of client 'a': sample 1 has shape \(2, 1\), expected \("),
        (({"ids": [[1], []]}, [0, 1]), "x.ids of client 'a': sample 1 is empty; leave it out"),
        (({"ids": [[1], [1, 2]]}, [[0.5], [0.1, 0.2]]), "y are floats of unequal length"),
        (({"ids": [[1], [1, np.inf]]}, [0, 1]), "NaN or infinite features x.ids in 1 client: a"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_input_is_named(data, message):
    with pytest.raises(DataError, match=message):
        Federation.from_clients({"a": data})


def test_clients_bring_the_same_inputs():
    one = two_inputs(clients=1)["c0"]
    with pytest.raises(DataError, match="client 'b' has the inputs ids, and client 'a' ids, table; give all the same"):
        Federation.from_clients({"a": one, "b": ({"ids": one[0]["ids"]}, one[1])})
    with pytest.raises(DataError, match=r"client 'b' has features x.ids of shape \(2,\), expected \(4,\)"):
        Federation.from_clients({"a": one, "b": ({**one[0], "ids": one[0]["ids"][:, :2]}, one[1])})


def test_lengths_in_a_file_must_fit(tmp_path):
    np.savez(tmp_path / "a.npz", **{"x.ids": np.arange(5), "x.ids.lengths": [3, 1]}, y=[0, 1])
    with pytest.raises(DataError, match=r"a.npz: x.ids: lengths add up to 4, and there are 5 values"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", **{"x.ids": np.ones((2, 1)), "x": np.ones((2, 1))}, y=[0, 1])
    with pytest.raises(DataError, match="not both"):
        Federation.from_folder(tmp_path)


def test_a_sample_longer_than_the_length_is_named():
    with pytest.raises(DataError, match=r"x.ids has a sample of length 4, and length = 3; cut it"):
        Federation.from_clients({"a": ({"ids": texts([2, 4])}, [0, 1])}, length=3)


def test_unequal_samples_know_the_shape_that_they_will_have():
    assert Ragged(np.ones((5, 2)), np.array([2, 3])).shape == (2, 3, 2)


TABLE = {
    "who": ["a", "b", "a", "b", "a"],
    "age": [31, 42, 53, 64, 75],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5],
    "ward": ["north", "south", "north", "east", "south"],
    "cp": [4, 1, 10, 4, 1],
    "tokens": [[1], [2, 3], [4, 5, 6], [7], [8, 9]],
    "label": [0, 1, 0, 1, 0],
}


def by_age(fed, name):
    """What an input holds, by the age of its sample, which no two have in common."""
    return {int(age): value for age, value in zip(fed.x["numbers"][:, 0], fed.x[name].tolist(), strict=True)}


def test_groups_of_columns_are_inputs():
    features = {"numbers": ["age", "dose"], "categories": ["ward", "cp"], "tokens": "tokens"}
    fed = Federation.from_table(TABLE, client="who", label="label", features=features, categorical=["cp"])
    assert list(fed.x) == ["numbers", "categories", "tokens", "mask"] and fed.ids == ("a", "b")
    assert [part.dtype for part in fed.x.values()] == [torch.float32, torch.int64, torch.int64, torch.uint8]
    # In natural order: east 0, north 1, south 2; 1 is 0, 4 is 1, 10 is 2.
    assert by_age(fed, "categories") == {31: [1, 1], 42: [2, 0], 53: [1, 2], 64: [0, 1], 75: [2, 0]}
    assert by_age(fed, "tokens") == {31: [1, 0, 0], 42: [2, 3, 0], 53: [4, 5, 6], 64: [7, 0, 0], 75: [8, 9, 0]}
    assert "x.categories: ward has 3 codes, 0 east, 1 north, 2 south" in fed.notes


def test_a_csv_file_and_a_config_have_groups_of_columns_too(tmp_path):
    from personafl.config import parse

    columns = [TABLE[name] for name in ("who", "age", "dose", "ward", "label")]
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["who,age,dose,ward,label", *rows]))
    features = {"numbers": ["age", "dose"], "categories": ["ward"]}
    table = {"name": "files", "path": str(tmp_path / "t.csv"), "client": "who", "label": "label", "features": features}
    fed = parse({"rounds": 1, "data": table}).federation()
    assert by_age(fed, "categories") == {31: [1], 42: [2], 53: [1], 64: [0], 75: [2]}


def test_what_is_missing_is_filled_in_numbers_and_is_a_code_of_its_own():
    table = TABLE | {"age": [31, None, 53, 64, 75], "ward": ["north", "south", None, "east", "south"]}
    table["part"] = ["train"] * 5
    features = {"numbers": ["dose", "age"], "categories": ["ward"]}
    fed = Federation.from_table(
        table, client="who", label="label", features=features, missing="fill", split="part", normalize="standard"
    )
    raw = fed.x["numbers"] * fed.constants["std_numbers"] + fed.constants["mean_numbers"]
    found = {round(float(row[0]), 1): row[1:].round().tolist() for row in raw}
    assert found == {0.5: [31, 0], 1.5: [58.0, 1], 2.5: [53, 0], 3.5: [64, 0], 4.5: [75, 0]}  # 58.5 is the median
    codes = {round(float(row[0]), 1): int(code) for row, code in zip(raw, fed.x["categories"][:, 0], strict=True)}
    assert codes[2.5] == 3 and "3 is missing" in " ".join(fed.notes)


@pytest.mark.parametrize(
    ("features", "more", "message"),
    [
        ({"n": ["age", "ward"]}, {}, r"features.n has categories \(ward\) and numbers \(age\)"),
        ({"n": []}, {}, r"features.n = \[\]: name at least one column"),
        ({"n": ["age"]}, {"categorical": ["cp"]}, "categorical = 'cp' is in none of the inputs of features: n"),
        ({"n": ["age"], "m": ["age"]}, {}, "column 'age' is named as features and as features"),
        ({"n": ["aeg"]}, {}, "has no column 'aeg' .features.; did you mean 'age'"),
        ({"my n": ["age"]}, {}, "input 'my n' must be named like a variable"),
        ({"t": "tokens"}, {"length": 2}, "x.t has a sample of length 3, and length = 2"),
    ],
)  # fmt: skip
def test_groups_of_columns_that_cannot_be(features, more, message):
    with pytest.raises((ConfigError, DataError), match=message):
        Federation.from_table(TABLE, client="who", label="label", features=features, **more)


def test_a_hugging_face_dataset_of_tokens():
    datasets = pytest.importorskip("datasets")
    rows = {"input_ids": TABLE["tokens"], "who": TABLE["who"], "label": TABLE["label"], "age": TABLE["age"]}
    features = {"input_ids": "input_ids", "numbers": ["age"]}
    fed = Federation.from_huggingface(datasets.Dataset.from_dict(rows), client="who", features=features)
    assert by_age(fed, "input_ids")[53] == [4, 5, 6] and by_age(fed, "mask")[42] == [1, 1, 0]
