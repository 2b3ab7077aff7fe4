"""Missing values are filled in as scikit-learn's SimpleImputer does that was fitted on the training rows."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import personafl as pf
from personafl.data.sources import Files
from personafl.errors import ConfigError, DataError
from personafl.federation.missing import INDICATOR, VALUE

Federation = pf.Federation
HEART = Path(os.environ.get("PERSONAFL_DATA", "nowhere")) / "heart_disease.csv.gz"


def holed(samples=120, features=5, seed=0):
    """Features with gaps in the columns 1 and 3, labels, and whose they are."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)).astype(np.float32)
    x[rng.random(samples) < 0.3, 1] = np.nan
    x[rng.random(samples) < 0.1, 3] = np.nan
    return x, rng.integers(0, 2, samples), np.arange(samples) % 4


def parts(fed, values):
    """Values of the samples that are for training, and of the others."""
    training = np.concatenate([np.arange(row[0], row[1]) for row in fed.bounds])
    others = np.setdiff1d(np.arange(len(fed.y)), training)
    return values[training], values[others]


def in_order(fed, x, y, clients):
    """The raw features in the order of the federation, found by a federation that holds row numbers."""
    numbers = Federation.from_arrays(np.arange(len(x))[:, None], y, clients=clients)
    assert np.array_equal(numbers.bounds, fed.bounds)
    return x[numbers.x[:, 0].numpy()]


def test_numbers_are_filled_in_by_the_median_of_the_training_samples_with_an_indicator():
    x, y, clients = holed()
    fed = Federation.from_arrays(x, y, clients=clients, missing="fill")
    raw = in_order(fed, x, y, clients)
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(parts(fed, raw)[0])
    assert np.allclose(fed.x.numpy(), imputer.transform(raw))
    assert fed.x.shape == (120, 7) and fed.constants[INDICATOR].tolist() == [1, 3]


def test_standardized_after_it_is_filled_in():
    x, y, clients = holed()
    fed = Federation.from_arrays(x, y, clients=clients, missing="fill").standardized()
    raw = in_order(fed, x, y, clients)
    known = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    assert np.allclose(fed.x.numpy(), known.fit(parts(fed, raw)[0]).transform(raw), atol=1e-5)


def test_a_gap_in_a_test_sample_alone_is_filled_in_without_an_indicator():
    train, test = ([[1.0, 5.0], [3.0, 6.0], [4.0, 7.0]], [0, 1, 0]), ([[np.nan, 9.0]], [1])
    fed = Federation.from_clients({"ann": {"train": train, "test": test}}, missing="fill")
    assert fed.client("ann")["test"][0].tolist() == [[3.0, 9.0]] and fed.notes == ()


def test_categories_are_filled_in_by_the_mode():
    table = {
        "who": ["a"] * 4 + ["b"] * 4,
        "age": [1.0, None, 3.0, 4.0, 5.0, 6.0, None, 8.0],
        "kind": ["x", "y", "y", None, "x", "y", "", "x"],
        "split": ["train", "train", "train", "train", "train", "train", "test", "test"],
        "label": [0, 1] * 4,
    }
    fed = Federation.from_table(table, client="who", label="label", categorical=["kind"], split="split", missing="fill")
    expected = [  # age, kind = x, kind = y, age missing, kind missing; the median is 4, the mode of the training rows y
        [1, 1, 0, 0, 0], [4, 0, 1, 1, 0], [3, 0, 1, 0, 0], [4, 0, 1, 0, 1],
        [5, 1, 0, 0, 0], [6, 0, 1, 0, 0], [4, 0, 1, 1, 1], [8, 1, 0, 0, 0],
    ]  # fmt: skip
    assert fed.x.tolist() == expected
    assert "age (1), kind (1)" in fed.notes[0]


def test_without_it_a_gap_is_an_error_as_ever():
    x, y, clients = holed()
    with pytest.raises(DataError, match="NaN or infinite features in 4 clients"):
        Federation.from_arrays(x, y, clients=clients)
    with pytest.raises(DataError, match=r"column 'age' in row 2 has no value; fill it in \(missing = 'fill' does\)"):
        Federation.from_table({"who": ["a", "b"], "age": [1, None], "y": [0, 1]}, client="who", label="y")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"who": ["a", None]}, "column 'who' in row 2 has no value"),
        ({"y": [0, None]}, "column 'y' in row 2 has no finite value"),
        ({"age": [1.0, float("inf")]}, "column 'age' in row 2 is infinite"),
        ({"age": [None, None]}, "feature 'age' has no value in any training sample; leave it out"),
    ],
)
def test_what_cannot_be_filled_in_is_named(column, said):
    table = {"who": ["a", "b"], "age": [1.0, 2.0], "y": [0, 1]} | column
    with pytest.raises(DataError, match=said):
        Federation.from_table(table, client="who", label="y", missing="fill")


def test_only_flat_features_are_filled_in():
    with pytest.raises(DataError, match=r"is for features \(N, d\), and x has shape \(4, 2, 2\)"):
        Federation.from_arrays(np.full((4, 2, 2), np.nan), [0, 1, 0, 1], clients=list("aabb"), missing="fill")


def test_a_partition_deals_rows_with_gaps():
    table = {"age": [1.0, None, 3.0, 4.0] * 5, "y": [0, 1] * 10}
    fed = Federation.from_table(table, label="y", partition=pf.partition.IID(clients=4), missing="fill")
    assert fed.x.shape == (20, 2) and set(fed.x[:, 1].tolist()) == {0.0, 1.0}


def test_newcomers_are_filled_in_as_the_federation_was(tmp_path):
    x, y, clients = holed()
    fed = Federation.from_arrays(x, y, clients=clients, missing="fill").standardized()
    run = pf.train(fed, nn.Linear(7, 2), "fedavg", rounds=1, out=tmp_path / "run", progress=False)
    again = pf.load(tmp_path / "run", module=nn.Linear(7, 2))
    new = np.array([[np.nan, np.nan, 1.0, 2.0, 3.0], [0.5, 1.0, 1.0, np.nan, 3.0]])
    c = {name: value.numpy() for name, value in fed.constants.items()}
    filled = np.where(np.isnan(new), c[VALUE], new)
    whole = np.concatenate([filled, np.isnan(new)[:, [1, 3]]], axis=1)
    expected = (whole - c["mean"]) / c["std"]
    assert np.allclose(again.newcomers({"new": (new, [0, 1])}).x, expected, atol=1e-5)
    assert np.allclose(again.features(new), expected, atol=1e-5)
    assert run.personalize(new, [0, 1])(again.features(new)).shape == (2, 2)
    with pytest.raises(DataError, match=r"x of client 'newcomer' has shape \(2, 7\).* expected \(n, 5\) numbers"):
        run.personalize(whole, [0, 1])


def test_what_was_filled_in_is_saved_with_the_federation(tmp_path):
    x, y, clients = holed()
    fed = Federation.from_arrays(x, y, clients=clients, missing="fill")
    fed.save(tmp_path / "fed")
    assert torch.equal(Federation.load(tmp_path / "fed").constants[VALUE], fed.constants[VALUE])


def test_a_config_fills_in_too(tmp_path):
    (tmp_path / "t.csv").write_text("who,age,y\n" + "a,1,0\na,,1\na,3,0\n" * 5)
    settings = {"path": str(tmp_path / "t.csv"), "client": "who", "label": "y"}
    fed = Files(**settings, missing="fill").federation(None, None, 0)
    assert fed.x.shape == (15, 2)
    with pytest.raises(ConfigError, match=r"missing = 'median': must be error, fill .* or fill-all"):
        Files(**settings, missing="median")


@pytest.mark.skipif(not HEART.exists(), reason="needs the heart disease data")
def test_the_hospitals_of_the_heart_disease_data():
    kinds = ["cp", "restecg", "slope", "thal"]
    options = {"client": "site", "label": "target", "categorical": kinds}
    with pytest.raises(DataError, match="has no value"):
        Federation.from_table(HEART, **options)
    fed = Federation.from_table(HEART, **options, missing="fill")
    assert fed.ids == ("cleveland", "hungarian", "switzerland", "va") and len(fed.y) == 920
    numbers = [f for f in columns_of(HEART) if f not in (*kinds, "site", "target")]
    raw = raw_rows(HEART, fed)
    train = {name: parts(fed, values)[0] for name, values in raw.items()}
    medians = SimpleImputer(strategy="median", add_indicator=True)
    medians.fit(np.stack([train[name].astype(float) for name in numbers], 1))
    filled = medians.transform(np.stack([raw[name].astype(float) for name in numbers], 1))
    blocks = [filled[:, : len(numbers)]]
    for name in kinds:
        mode = SimpleImputer(strategy="most_frequent", missing_values="").fit(train[name][:, None])
        codes = OneHotEncoder(sparse_output=False).fit(raw[name][raw[name] != ""][:, None])
        blocks.append(codes.transform(mode.transform(raw[name][:, None])))
    blocks.append(filled[:, len(numbers) :])
    blocks += [(raw[name] == "")[:, None] for name in kinds if (train[name] == "").any()]
    assert np.allclose(fed.x.numpy(), np.concatenate(blocks, 1), rtol=1e-6)


def columns_of(path):
    return pyarrow.csv.read_csv(path).column_names


def raw_rows(path, fed):
    """The columns as text, in the order of the federation; a missing value is empty, of a number nan."""
    names = columns_of(path)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    table = pyarrow.csv.read_csv(path, convert_options=as_text).to_pydict()
    numbers = Federation.from_arrays(np.arange(920)[:, None], np.zeros(920, int), clients=table["site"])
    order = numbers.x[:, 0].numpy()
    kinds = ("cp", "restecg", "slope", "thal", "site")
    empty = {name: "" if name in kinds else "nan" for name in names}
    return {name: np.array([v or empty[name] for v in column], object)[order] for name, column in table.items()}
