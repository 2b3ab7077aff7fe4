"""Splits by time: what is for testing comes after what is for training."""

import datetime
import os
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
import torch

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation

N = 40
WHO = np.arange(N) % 2
X = np.arange(N, dtype=np.float32)[:, None]
Y = WHO.copy()


def in_time(fed, time):
    """Whether all of a client's training samples are before its validation samples, and these before its test ones."""
    for row in fed.bounds.tolist():
        ordered = time[fed.x[row[0] : row[3], 0].long().numpy()]
        assert (np.diff(ordered) >= 0).all()
        assert ordered[: row[1] - row[0]].max() <= ordered[row[2] - row[0] :].min()


def test_the_end_of_each_clients_data_is_for_testing():
    fed = Federation.from_arrays(X, Y, clients=WHO, splitting="end")
    assert fed.client(0)["train"][0].flatten().tolist() == list(range(0, 28, 2))
    assert fed.client(0)["val"][0].flatten().tolist() == [28, 30]
    assert fed.client(0)["test"][0].flatten().tolist() == [32, 34, 36, 38]
    clients = {str(m): (X[WHO == m], Y[WHO == m]) for m in (0, 1)}
    assert Federation.from_clients(clients, splitting="end").fingerprint == fed.fingerprint


def test_time_says_what_the_order_is():
    time = np.random.default_rng(0).permutation(N)
    in_time(Federation.from_arrays(X, Y, clients=WHO, time=time), time)
    in_time(Federation.from_arrays(X, Y, clients=WHO, time=torch.from_numpy(time / 7)), time)
    days = np.datetime64("2026-01-01") + time
    in_time(Federation.from_arrays(X, Y, clients=WHO, time=days), time)
    in_time(Federation.from_arrays(X, Y, clients=WHO, time=days.astype(str).tolist()), time)


def test_a_partition_keeps_the_order_in_each_client():
    time = np.random.default_rng(1).permutation(N)
    deal = pf.partition.IID(clients=3)
    fed = Federation.from_arrays(X, Y, partition=deal, time=time)
    in_time(fed, time)
    in_time(Federation.from_arrays(X, Y, partition=deal, splitting="end"), np.arange(N))
    at_random = Federation.from_arrays(X, Y, partition=deal)
    assert [set(fed.client(c)["train"][1].tolist()) for c in fed.ids]
    for client in fed.ids:  # the same clients have the same samples
        whose = [{int(v) for part in f.client(client).values() for v in part[0]} for f in (fed, at_random)]
        assert whose[0] == whose[1]


TIME = np.random.default_rng(2).permutation(N)
START = datetime.datetime(2026, 1, 1)


@pytest.mark.parametrize("how", ["numbers", "dates", "text", "days"])
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_column_orders_the_rows(tmp_path, how, form):
    column = {
        "numbers": [float(t) for t in TIME],
        "dates": [START + datetime.timedelta(hours=int(t)) for t in TIME],
        "text": [str(START + datetime.timedelta(hours=int(t))) for t in TIME],
        "days": [(START + datetime.timedelta(days=int(t))).date() for t in TIME],
    }[how]
    table = {"who": WHO.tolist(), "x": X[:, 0].tolist(), "when": column, "y": Y.tolist()}
    if form == "csv":
        lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    fed = Federation.from_table(table if form == "table" else tmp_path / "t.csv", client="who", label="y", time="when")
    assert fed.x.shape == (N, 1)  # the column of times is no feature
    in_time(fed, TIME)


def test_configs_split_by_time_too(tmp_path):
    lines = ["who,x,when,y", *(f"{w},{x},{t},{y}" for w, x, t, y in zip(WHO, X[:, 0], TIME, Y, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "files", "path": str(tmp_path / "t.csv"), "client": "who", "label": "y", "features": ["x"]}
    in_time(parse({"data": data | {"time": "when"}}).federation(), TIME)
    config = parse({"data": data, "splitting": "end"})
    in_time(config.federation(), np.arange(N))
    assert parse(config.tables()) == config and "splitting" not in parse({"data": data}).tables()
    digits = parse({"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 3}})
    late = parse({"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 3}, "splitting": "end"})
    assert digits.federation().fingerprint != late.federation().fingerprint
    with pytest.raises(ConfigError, match="splitting = 'last': input should be 'random' or 'end'"):
        parse({"splitting": "last"})


def test_a_random_split_is_what_it_was():
    """The samples that were for testing before there were other splits."""
    fed = Federation.from_arrays(X, Y, clients=WHO)
    assert fed.client(0)["test"][0].flatten().tolist() == [34.0, 24.0, 32.0, 12.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"splitting": "last"}, "splitting = 'last': must be random, or end"),
        ({"time": [1, 2]}, r"time has shape \(2,\), expected \(40,\)"),
        ({"time": ["soon"] * N}, r"time is text that is no date \(.*soon.*\); expected numbers or dates"),
        ({"time": [float("nan")] * N}, "none missing"),
    ],
)
def test_what_is_no_order_is_refused(options, said):
    with pytest.raises((ConfigError, DataError), match=said):
        Federation.from_arrays(X, Y, clients=WHO, **options)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (["soon"] * 4, "column 'when' in row 1 is 'soon': time must be numbers, or dates such as 2026-01-31"),
        ([1, 2, None, 3], "column 'when' in row 3 has no value"),
    ],
)
def test_a_column_that_is_no_time_is_named(column, said):
    table = {"who": list("aabb"), "x": [1, 2, 3, 4], "when": column, "y": [0, 1, 0, 1]}
    with pytest.raises(DataError, match=said):
        Federation.from_table(table, client="who", label="y", time="when")


def test_only_one_thing_can_say_what_is_for_testing():
    table = {"who": ["a"], "x": [1], "when": [1], "part": ["train"], "y": [0]}
    with pytest.raises(ConfigError, match="time = 'when' and split = 'part': only one can say"):
        Federation.from_table(table, client="who", label="y", time="when", split="part")


PARKINSON = Path(os.environ.get("PERSONAFL_DATA", "nowhere")) / "parkinsons_updrs.csv.gz"


@pytest.mark.skipif(not PARKINSON.exists(), reason="needs the Parkinsons telemonitoring data")
def test_the_last_recordings_of_each_patient_are_for_testing():
    options = {"client": "subject#", "label": ["motor_UPDRS", "total_UPDRS"], "time": "test_time"}
    fed = Federation.from_table(PARKINSON, **options)
    assert len(fed) == 42 and fed.y.shape == (5875, 2) and fed.classes is None
    rows = {name: column.to_numpy() for name, column in zip(*_columns(PARKINSON), strict=True)}
    for client in fed.ids:
        mine = np.flatnonzero(rows["subject#"] == int(client))
        mine = mine[np.argsort(rows["test_time"][mine], kind="stable")]
        tested = fed.client(client)["test"][1].numpy()
        assert abs(len(tested) - 0.2 * len(mine)) < 1
        expected = np.stack([rows["motor_UPDRS"], rows["total_UPDRS"]], 1)[mine[-len(tested) :]]
        assert np.allclose(tested, expected)


def _columns(path):
    table = pyarrow.csv.read_csv(path)
    return table.column_names, table.columns
