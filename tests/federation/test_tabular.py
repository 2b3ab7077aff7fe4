"""Facts about federations of tables: what columns become, how rows are dealt and split, and what is refused."""

import contextlib
import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from personafl import Federation
from personafl.data.partitions import IID, Natural
from personafl.errors import ConfigError, DataError

TABLE = {
    "hospital": ["north", "ward-10", "ward-2", "ward-10", "ward-2", "north"],
    "age": [50, 61, 42, 33, 74, 25],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "sex": ["f", "m", "f", "f", "m", "d"],
    "outcome": ["well", "ill", "well", "ill", "ill", "well"],
    "part": ["train", "train", "train", "test", "validation", "test"],
    "region": ["A", "B", "B", "B", "B", "A"],
}
WHOSE = {"client": "hospital", "label": "outcome"}


def csv_bytes(table):
    buffer = io.BytesIO()
    pa.csv.write_csv(pa.table(table), buffer)
    return buffer.getvalue()


@pytest.fixture(params=["mapping", "pyarrow", "csv", "csv.gz", "parquet", "stream"])
def as_given(request, tmp_path):
    """The same table in each form that it may come in."""

    def give(table):
        file = tmp_path / f"rows.{request.param}"
        if request.param == "mapping":
            return table
        if request.param == "pyarrow":
            return pa.table(table)
        if request.param == "stream":  # what dataframes of other libraries offer
            return pa.RecordBatchReader.from_batches(pa.table(table).schema, pa.table(table).to_batches(2))
        if request.param == "csv":
            file.write_bytes(csv_bytes(table))
        elif request.param == "csv.gz":
            file.write_bytes(gzip.compress(csv_bytes(table)))
        else:
            pq.write_table(pa.table(table), file, row_group_size=2)
        return str(file)

    return give


# --- what columns become


def test_a_table_is_the_same_federation_in_every_form(as_given):
    fed = Federation.from_table(as_given(TABLE), **WHOSE, features=["dose", "age"], group="region", seed=3)
    x = np.stack([TABLE["dose"], TABLE["age"]], axis=1)
    y = [1, 0, 1, 0, 0, 1]  # ill, well
    known = Federation.from_arrays(x, y, clients=TABLE["hospital"], groups=TABLE["region"], seed=3)
    assert fed.fingerprint == known.fingerprint
    assert fed.ids == ("north", "ward-2", "ward-10") and fed.groups == ("A", "B", "B")
    assert fed.class_names == ("ill", "well") and fed.classes == 2 and fed.x.dtype == torch.float32


def test_a_split_column_decides(as_given):
    fed = Federation.from_table(as_given(TABLE), **WHOSE, split="part", features=["age"])
    assert fed.bounds.tolist() == [[0, 1, 1, 2], [2, 3, 4, 4], [4, 5, 5, 6]]
    assert fed.x.flatten().tolist() == [50, 25, 42, 74, 61, 33]


def test_left_out_features_are_all_other_columns_of_numbers(as_given):
    fed = Federation.from_table(as_given(TABLE), **WHOSE)
    assert sorted(fed.x.tolist()) == sorted([float(a), d] for a, d in zip(TABLE["age"], TABLE["dose"], strict=True))
    assert fed.notes == ("columns that are not numbers were left out of the features: sex, part, region",)


def test_categorical_columns_become_a_feature_a_value(as_given):
    fed = Federation.from_table(
        as_given(TABLE), **WHOSE, features=["age"], categorical=["sex", "region"], splits=(1, 0, 0)
    )
    rows = {row[0]: row[1:] for row in fed.x.tolist()}
    assert rows == {
        25: [1, 0, 0, 1, 0], 33: [0, 1, 0, 0, 1], 42: [0, 1, 0, 0, 1], 50: [0, 1, 0, 1, 0], 61: [0, 0, 1, 0, 1],
        74: [0, 0, 1, 0, 1],
    }  # fmt: skip
    assert Federation.from_table(TABLE, **WHOSE, features=[], categorical=["sex"]).x.shape == (6, 3)


@pytest.mark.parametrize(
    "outcome, y, labels, in_csv",
    [
        ([2, 0, 1], [2, 0, 1], None, True),
        ([0.5, -1.0, 2.0], [0.5, -1.0, 2.0], None, True),
        ([True, False, True], [1, 0, 1], ("false", "true"), True),
        (["c10", "c9", "c10"], [1, 0, 1], ("c9", "c10"), True),
        (["2", "0", "2"], [1, 0, 1], ("0", "2"), False),
    ],
)
def test_labels_are_classes_or_targets(tmp_path, outcome, y, labels, in_csv):
    table = {"who": ["a", "a", "a"], "v": [1.0, 2.0, 3.0], "outcome": outcome}
    (tmp_path / "t.csv").write_bytes(csv_bytes(table))
    for given in (table, *([tmp_path / "t.csv"] if in_csv else [])):
        fed = Federation.from_table(given, client="who", label="outcome", splits=(1, 0, 0))
        assert fed.y[fed.x.flatten().argsort()].tolist() == y and fed.class_names == labels
        assert fed.y.is_floating_point() == isinstance(outcome[0], float)


def test_in_csv_a_label_is_a_number_only_if_all_are(tmp_path):
    (tmp_path / "t.csv").write_text("who,v,label\n" + "a,1,0\n" * 3 + "a,1,1.5\n")
    assert Federation.from_table(tmp_path / "t.csv", client="who", label="label").classes is None
    (tmp_path / "t.csv").write_text("who,v,label\n" + "a,1,0\n" * 3 + "a,1,none\n")
    assert Federation.from_table(tmp_path / "t.csv", client="who", label="label").class_names == ("0", "none")


def test_ids_are_what_is_written(tmp_path):
    (tmp_path / "t.csv").write_text('who,v,label\n007,1,0\n7,1,1\n"NA",2,1\n"a\nb",2,1\n')
    assert Federation.from_table(tmp_path / "t.csv", client="who", label="label").ids == ("007", "7", "NA", "a\nb")
    assert Federation.from_table({"who": [10, 9], "v": [1, 2], "label": [0, 1]}, client="who", label="label").ids == (
        "9",
        "10",
    )


def test_a_column_of_arrays_keeps_its_shape(tmp_path):
    pictures = np.arange(4 * 2 * 3 * 5, dtype=np.float32).reshape(4, 2, 3, 5)
    table = pa.table({"who": list("abab"), "picture": pictures.tolist(), "label": [0, 1, 1, 0]})
    pq.write_table(table, tmp_path / "t.parquet")
    fed = Federation.from_table(tmp_path / "t.parquet", client="who", label="label", features="picture")
    known = Federation.from_arrays(pictures, [0, 1, 1, 0], clients=list("abab"))
    assert fed.fingerprint == known.fingerprint and fed.x.shape == (4, 2, 3, 5)
    fixed = pa.table(
        {"who": list("abab"), "v": pa.FixedSizeListArray.from_arrays(pa.array(range(8)), 2), "n": range(4)}
    )
    fed = Federation.from_table(fixed.append_column("label", pa.array([0, 1, 1, 0])), client="who", label="label",
                                features=["v", "n"], splits=(1, 0, 0))  # fmt: skip
    assert sorted(fed.x.tolist()) == [[0, 1, 0], [2, 3, 1], [4, 5, 2], [6, 7, 3]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.int8()), pa.array([1, 2], pa.uint64()), pa.array([1, 2], pa.float16()),
        pa.array([False, True]), pa.array([1, 2], pa.decimal128(5, 2)),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_every_type_of_number_is_a_feature(column):
    table = pa.table({"who": ["a", "b"], "v": column, "label": [0, 1]})
    fed = Federation.from_table(table, client="who", label="label")
    assert fed.x.flatten().tolist() == [float(value) for value in column.to_pylist()]


def test_a_dictionary_column_is_text():
    table = pa.table(TABLE).set_column(0, "hospital", pa.array(TABLE["hospital"]).dictionary_encode())
    assert Federation.from_table(table, **WHOSE).fingerprint == Federation.from_table(TABLE, **WHOSE).fingerprint


def test_a_dataframe_is_a_table_and_its_index_is_no_feature():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(TABLE)
    known = Federation.from_table(TABLE, **WHOSE).fingerprint
    assert Federation.from_table(frame, **WHOSE).fingerprint == known
    frame.index = [9, 8, 7, 6, 5, 4]
    assert Federation.from_table(frame, **WHOSE).fingerprint == known
    frame["hospital"] = frame["hospital"].astype("category")
    assert Federation.from_table(frame.set_index("hospital"), **WHOSE).fingerprint == known
    frame["mixed"] = [1, "a", None, 2.0, 3, 4]
    with pytest.raises(DataError, match="a DataFrame cannot be read as a table"):
        Federation.from_table(frame, **WHOSE)


def test_the_index_that_pandas_wrote_to_parquet_is_no_feature(tmp_path):
    metadata = {"pandas": '{"index_columns": ["age"], "columns": []}'}
    for content, width in (
        (metadata, 1),
        ({"pandas": "{"}, 2),
        ({"pandas": "[]"}, 2),
        ({"pandas": '{"index_columns": 3}'}, 2),
    ):
        pq.write_table(pa.table(TABLE).replace_schema_metadata(content), tmp_path / "t.parquet")
        assert Federation.from_table(tmp_path / "t.parquet", **WHOSE).x.shape[1] == width


# --- who gets the rows


def test_a_partition_deals_the_rows():
    fed = Federation.from_table(TABLE, label="outcome", features=["age"], partition=IID(2), seed=5)
    known = Federation.from_arrays(np.array(TABLE["age"])[:, None] * 1.0, [1, 0, 1, 0, 0, 1], partition=IID(2), seed=5)
    assert fed.fingerprint == known.fingerprint and fed.class_names == ("ill", "well")
    replaced = Federation.from_table(TABLE, **WHOSE, features=["age"], partition=IID(2), seed=5)
    assert replaced.fingerprint == known.fingerprint


def test_natural_picks_clients_with_enough_rows():
    table = TABLE | {"hospital": ["a", "b", "b", "b", "c", "c"], "region": ["A", "B", "B", "B", "C", "C"]}
    fed = Federation.from_table(table, **WHOSE, group="region", partition=Natural(least=2))
    assert fed.ids == ("b", "c") and fed.groups == ("B", "C") and len(fed.x) == 5
    assert fed.notes[-1] == "left out 1 owner with fewer than 2 samples (1 sample)"


def test_names():
    assert Federation.from_table(TABLE, **WHOSE).name == "table"
    assert Federation.from_table(TABLE, **WHOSE, name="mine").name == "mine"


def test_a_files_name_is_the_federations(tmp_path):
    (tmp_path / "patients.csv.gz").write_bytes(gzip.compress(csv_bytes(TABLE)))
    assert Federation.from_table(tmp_path / "patients.csv.gz", **WHOSE).name == "patients"


def test_many_rows_in_many_batches_stay_in_order(tmp_path):
    count = 150_000
    rng = np.random.default_rng(0)
    table = {"who": rng.integers(0, 50, count), "v": np.arange(count), "label": rng.integers(0, 3, count)}
    known = Federation.from_arrays(
        table["v"][:, None].astype(float), table["label"], clients=table["who"], seed=1
    ).fingerprint
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_bytes(csv_bytes(table))
    for file in ("t.parquet", "t.csv"):
        fed = Federation.from_table(tmp_path / file, client="who", label="label", seed=1)
        assert fed.fingerprint == known


# --- what is refused


def changed(**columns):
    return TABLE | columns


@pytest.mark.parametrize(
    "table, options, said",
    [
        (TABLE, {"client": "hopsital"}, r"no column 'hopsital' \(client\); did you mean 'hospital'\? its columns: "),
        (TABLE, {"label": "x"}, r"no column 'x' \(label\)"),
        (TABLE, {"features": ["age", "weight"]}, r"no column 'weight' \(features\)"),
        (TABLE, {"categorical": ["weight"]}, r"no column 'weight' \(categorical\)"),
        (
            TABLE,
            {"features": ["age", "sex"]},
            "column 'sex' holds text, not numbers; leave it out of features, or name it in categorical",
        ),
        (changed(age=[1, None, 3, None, 5, 6]), {}, "column 'age' in row 2 has no value; fill it in .missing = 'fill'"),
        (changed(dose=[1.0, 2.0, np.nan, 4.0, 5.0, 6.0]), {}, "column 'dose' in row 3 has no value"),
        (changed(dose=[1.0, 2.0, 3.0, np.inf, 5.0, 6.0]), {}, "column 'dose' in row 4 is infinite or too large"),
        (changed(dose=[1.0, 2.0, 3.0, 4.0, 1e300, 6.0]), {}, "column 'dose' in row 5 is infinite or too large"),
        (changed(outcome=["a", None, "b"] * 2), {}, "column 'outcome' in row 2 has no value; fill it in"),
        (changed(outcome=[1, 0, None] * 2), {}, "column 'outcome' in row 3 has no finite value"),
        (changed(outcome=[1.5, np.nan, 1.0] * 2), {}, "column 'outcome' in row 2 has no finite value"),
        (changed(outcome=[-1, 1, 1] * 2), {}, "labels are -1 and 1; classes count from 0"),
        (changed(hospital=["a", "b", ""] * 2), {}, "column 'hospital' in row 3 has no value"),
        (changed(hospital=["a", None, "b"] * 2), {}, "column 'hospital' in row 2 has no value"),
        (changed(hospital=[0.5, 1.0, 2.0] * 2), {}, "column 'hospital' holds double values, expected names"),
        (changed(hospital=["a", "b", "9" * 5000] * 2), {}, "in row 3 has 5000 characters, expected a name of at most"),
        (changed(sex=["f", None, "m"] * 2), {"categorical": ["sex"]}, "column 'sex' in row 2 has no value"),
        (TABLE, {"split": "sex"}, "column 'sex' in row 6 is 'd', expected train, val, validation, test"),
        (changed(part=["test"] * 5 + ["train"]), {"split": "part"}, "2 clients without training data: ward-2, ward-10"),
        (TABLE, {"group": "sex"}, "3 clients in more than one group: north, ward-2, ward-10"),
        ({"hospital": ["a"], "outcome": ["b"], "sex": ["m"]}, {}, "has no columns of numbers that could be features"),
        ({name: [] for name in TABLE}, {"features": ["age"]}, "column 'hospital' holds null values|has no row"),
        (pa.table(TABLE).slice(0, 0), {}, "the table has no row"),
        (changed(age=[[1], [2], [3, 4], [5], [6], [7]]), {"features": "age"}, "in row 3 has 2 values, expected 1"),
        (changed(age=[[1], [2], None, [5], [6], [7]]), {"features": "age"}, "'age' in row 3 has no value"),
        (changed(age=[[1], [2], [None], [5], [6], [7]]), {"features": "age"}, "'age' in row 3 has no value"),
        (changed(age=[["a"]] * 6), {"features": "age"}, "column 'age' holds list<.*string> values, not numbers"),
        (pa.table([[1], [2]], names=["a", "a"]), {"features": ["a"]}, "no column 'hospital'"),
        (3, {}, "a int cannot be read as a table: .*give the path of a CSV or parquet file, a pyarrow table"),
        ({"a": [1], "b": [1, 2]}, {}, "a dict cannot be read as a table"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(table, options, said):
    with pytest.raises(DataError, match=said) as caught:
        Federation.from_table(table, **(WHOSE | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"client": None}, "a table needs client .*, or a partition"),
        ({"features": ["age", "outcome"]}, "column 'outcome' is named as label and as features"),
        ({"features": ["age", "age"]}, "column 'age' is named as features and as features"),
        ({"group": "hospital"}, "column 'hospital' is named as client and as group"),
        ({"features": []}, r"features = \[\]: name at least one column"),
        ({"features": "age", "categorical": ["sex"]}, "features = 'age' is one column: give a list"),
        ({"client": None, "partition": IID(2), "group": "region"}, "group = 'region' needs client"),
        ({"client": None, "partition": IID(2), "split": "part"}, "split = 'part' needs client"),
        ({"normalize": "unit"}, "normalize = 'unit': must be none or standard"),
        ({"splits": (0.5, 0.1, 0.1)}, "splits = "),
    ],
)
def test_options_that_contradict_each_other_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        Federation.from_table(TABLE, **(WHOSE | options))


def test_a_name_that_two_columns_have_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("who,v,v,label\na,1,2,0\n")
    with pytest.raises(DataError, match="has 2 columns 'v'; give each a name of its own"):
        Federation.from_table(tmp_path / "t.csv", client="who", label="label")


def test_a_column_with_too_many_values_is_not_made_into_features():
    table = {"who": ["a"] * 2000, "free": [f"text {k}" for k in range(2000)], "v": range(2000), "label": [0] * 2000}
    with pytest.raises(DataError, match="column 'free' has 2000 different values, too many"):
        Federation.from_table(table, client="who", label="label", categorical=["free"])


def test_a_table_larger_than_memory_is_refused_while_it_is_read(monkeypatch, tmp_path):
    """A few kilobytes of parquet may stand for any number of equal rows."""
    pq.write_table(
        pa.table({"who": ["a"] * 500_000, "v": np.zeros(500_000), "label": [0] * 500_000}), tmp_path / "t.parquet"
    )
    assert (tmp_path / "t.parquet").stat().st_size < 50_000
    monkeypatch.setattr("personafl.federation.tabular._memory", lambda: 1e7)
    with pytest.raises(DataError, match=r"t\.parquet does not fit into the memory of this machine, from row"):
        Federation.from_table(tmp_path / "t.parquet", client="who", label="label")


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_an_extension_type_with_a_pickle_in_it_executes_nothing(tmp_path):
    sprung = tmp_path / "sprung"
    metadata = {"ARROW:extension:name": "arrow.py_extension_type",
                "ARROW:extension:metadata": pickle.dumps(Trap(sprung))}  # fmt: skip
    field = pa.field("v", pa.float64(), metadata=metadata)
    schema = pa.schema([pa.field("who", pa.string()), field, pa.field("label", pa.int64())])
    pq.write_table(pa.table([["a", "b"], [1.0, 2.0], [0, 1]], schema=schema), tmp_path / "t.parquet")
    with contextlib.suppress(DataError):
        Federation.from_table(tmp_path / "t.parquet", client="who", label="label")
    assert not sprung.exists()
