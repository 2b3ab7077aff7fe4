"""Facts about files of tables: damaged ones are named in one line, and cost neither memory nor time."""

import gzip
import io
import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personafl import Federation
from personafl.errors import DataError, PersonaflError

HEAD = b"who,age,label\n"
ROWS = HEAD + b"ann,1,0\nbob,2,1\n"


def parquet(**options):
    buffer = io.BytesIO()
    rng = np.random.default_rng(0)
    table = pa.table({"who": [f"c{k % 3}" for k in range(30)], "age": rng.normal(size=30), "label": [0, 1, 2] * 10})
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def read(path):
    return Federation.from_table(path, client="who", label="label")


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("t.csv", b"", "t.csv is empty"),
        ("t.parquet", b"", "t.parquet is empty"),
        ("t.csv", HEAD, "t.csv has no row"),
        ("t.csv", HEAD[:-1], "t.csv has no row"),
        ("t.csv", b"\n\n", "t.csv has no row"),
        ("t.csv", ROWS + b"eve,3\n", "row 3 has 2 values, expected 3 as in the header"),
        ("t.csv", ROWS + b"\n\neve,3,0,0\n", "row 3 has 4 values, expected 3 as in the header"),
        ("t.csv", ROWS * 1 + b"ann,1,0\n" * 50_000 + b"eve\n", "row 50003 has 1 values"),
        ("t.csv", ROWS + b"eve,,0\n", "column 'age' in row 3 has no value"),
        ("t.csv", ROWS + b"eve,NA,0\n", "column 'age' in row 3 has no value"),
        ("t.csv", ROWS + b"eve,nan,0\n", "column 'age' in row 3 has no value"),
        ("t.csv", ROWS + b"eve,inf,0\n", "column 'age' in row 3 is infinite"),
        ("t.csv", ROWS + b"eve,3,\n", "column 'label' in row 3 has no value"),
        ("t.csv", ROWS + b",3,0\n", "column 'who' in row 3 has no value"),
        ("t.csv", ROWS + b"NA,3,0\n", "column 'who' in row 3 has no value"),
        ("t.csv", ROWS + b'eve,"1,5",0\n', "no columns of numbers"),
        ("t.csv", HEAD + b"ann,1,0\n" * 200_000 + b"eve,old,0\n", "column 'age' in row 200001 is 'old', not a number"),
        ("t.csv", "who,age,label\nann,1,0\nJosé,2,1\n".encode("latin-1"), "column 'who' in row 2 is not UTF-8 text"),
        ("t.csv", "who,age,label,é\nann,1,0,1\n".encode("latin-1"), "the header is not UTF-8 text"),
        ("t.csv", ROWS.decode().encode("utf-16"), "is not UTF-8 text; save it as CSV"),
        ("t.csv", ROWS.replace(b",", b" "), r"no column 'who' \(client\); its columns: who age label$"),
        ("t.csv", ROWS + b"eve," + b"1" * 3_000_000 + b",0\n", "has a row of more than 1 MB"),
        ("t.csv", ROWS + b'eve,1,"' + b"0\n" * 1_500_000, "a row of more than 1 MB, or a quote that is never closed"),
        ("t.csv", parquet(), "t.csv is not UTF-8 text"),
        ("t.csv.gz", gzip.compress(ROWS * 100)[:-30], "cannot read .*: Truncated compressed stream; expected a CSV"),
        ("t.csv.gz", gzip.compress(ROWS)[:-8] + bytes(8), "cannot read .*t.csv.gz: .*incorrect data check"),
        ("t.csv.gz", lambda: gzip.compress(HEAD + bytes(50_000_000), 1), "t.csv.gz is not UTF-8 text"),
        ("t.csv.gz", lambda: gzip.compress(HEAD + b"a" * 50_000_000, 1), "has a row of more than 1 MB"),
        ("t.parquet", parquet()[:-1], "cannot read .*: Parquet magic bytes not found.*expected a parquet table"),
        ("t.parquet", parquet()[:200], "cannot read .*t.parquet: Parquet magic bytes not found"),
        ("t.parquet", b"PAR2" + parquet()[4:-4] + b"PAR2", "cannot read .*t.parquet: Parquet magic bytes not found"),
        ("t.parquet", b"PAR1" + parquet()[:100] + b"\xff\xff\xff\x7fPAR1", "cannot read .*t.parquet"),
        ("t.parquet", b"PAR1" * 5, "cannot read .*t.parquet"),
        ("t.parquet", ROWS, "cannot read .*t.parquet"),
        ("t.pq", b"PAR1", "cannot read .*t.pq"),
        ("t.xlsx", b"PK", r"t.xlsx is not named like a table; expected a name that ends with .csv, .csv.gz, .parquet"),
    ],
    ids=lambda value: "large" if callable(value) else f"{len(value)} bytes" if isinstance(value, bytes) else value[:40],
)  # fmt: skip
def test_a_malformed_file_is_named_in_one_line(tmp_path, monkeypatch, name, content, said):
    monkeypatch.setattr(
        "personafl.federation.tabular_files._BLOCK", 1 << 20
    )  # smaller than usual, so that the files can be too
    (tmp_path / name).write_bytes(content() if callable(content) else content)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=said) as caught:
        read(tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 30_000_000
    assert "\n" not in str(caught.value) and str(tmp_path / name) in str(caught.value) and len(str(caught.value)) < 600
    assert os.listdir(tmp_path) == [name]


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"there is no file nowhere\.csv; a relative path starts at the working directory"
    ):
        read("nowhere.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"there is no file folder\.csv"):
        read("folder.csv")


def test_a_file_is_unpacked_by_its_content(tmp_path):
    (tmp_path / "t.csv").write_bytes(gzip.compress(ROWS))
    (tmp_path / "t.csv.gz").write_bytes(ROWS)
    (tmp_path / "T.CSV").write_bytes(b"\xef\xbb\xbf" + ROWS.replace(b"\n", b"\r\n"))
    assert len({read(tmp_path / name).fingerprint for name in ("t.csv", "t.csv.gz", "T.CSV")}) == 1


WHOLE = {"t.parquet": parquet(), "u.parquet": parquet(compression="none", use_dictionary=False), "t.csv": ROWS * 1}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(WHOLE)),
    place=st.floats(0, 1, exclude_max=True),
    how=st.sampled_from(["cut", "put", "drop"]),
    what=st.binary(min_size=1, max_size=8),
)
def test_any_damage_is_one_line_or_another_table(tmp_path, name, place, how, what):
    whole = WHOLE[name]
    at = int(place * len(whole))
    damaged = {
        "cut": whole[:at],
        "put": whole[:at] + what + whole[at + len(what) :],
        "drop": whole[:at] + whole[at + 1 :],
    }
    (tmp_path / name).write_bytes(damaged[how])
    try:
        read(tmp_path / name)
    except PersonaflError as error:
        assert "\n" not in str(error) and len(str(error)) < 800
