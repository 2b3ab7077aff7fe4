"""Results as frames hold what the tables hold, in pandas, polars and pyarrow."""

import sys

import pyarrow as pa
import pytest
from torch import nn

import personafl as pf
from personafl.errors import ConfigError
from personafl.runs.frames import as_frame


@pytest.fixture(scope="module")
def found():
    fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=1.0))
    return pf.compare(
        fed, nn.Linear(64, 10), ["ditto"], seeds=1, rounds=2, eval_every=2, progress=False, engine="stacked"
    )


@pytest.fixture
def tables(found):
    """Each way to ask, and what it gives unless one asks for a frame."""
    run = found.methods["ditto"][0]
    ways = (run.rounds, run.clients, run.predictions, found.table, found.significance)
    plain = [way() for way in ways]
    return ways, [table.to_pylist() if isinstance(table, pa.Table) else table for table in plain]


def known(rows):
    """Rows without what is not there: null, NaN, or no key at all."""
    return [{key: value for key, value in row.items() if value is not None and value == value} for row in rows]


def test_pandas_frames_are_the_tables(tables):
    pytest.importorskip("pandas", reason="pandas is not installed")
    for way, rows in zip(*tables, strict=True):
        frame = way(frame="pandas")
        assert type(frame).__module__.startswith("pandas") and len(frame) == len(rows)
        found = frame.drop(columns="failed", errors="ignore").to_dict("records")
        assert known(found) == [{k: v for k, v in row.items() if k != "failed"} for row in known(rows)]


def test_polars_frames_are_the_tables(tables):
    pytest.importorskip("polars", reason="polars is not installed")
    for way, rows in zip(*tables, strict=True):
        frame = way(frame="polars")
        assert type(frame).__module__.startswith("polars") and known(frame.to_dicts()) == known(rows)


def test_arrow_tables_too(tables):
    for way, rows in zip(*tables, strict=True):
        assert known(way(frame="arrow").to_pylist()) == known(rows)


def test_a_frame_that_there_is_not(found, monkeypatch):
    with pytest.raises(ConfigError, match="frame must be one of arrow, pandas, polars, not 'panda'"):
        found.table(frame="panda")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match="pip install polars"):
        as_frame([{"a": 1}], "polars")
