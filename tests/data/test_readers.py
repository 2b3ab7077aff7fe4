"""Facts about the source `files`: it is what the constructors of Federation make, by way of a config."""

import io
import os
import pickle
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from personafl import Federation
from personafl.config import parse
from personafl.data import IID, Files, Natural, build
from personafl.errors import ConfigError, DataError
from personafl.jobs import train_config
from personafl.models import default_model

RNG = np.random.default_rng(0)
TABLE = {
    "hospital": [f"h{k % 4}" for k in range(60)],
    "age": RNG.integers(20, 90, 60),
    "dose": RNG.normal(size=60),
    "outcome": [("ill", "well")[k % 3 == 0] for k in range(60)],
    "part": [("train", "val", "test")[min(2, k % 8 // 5)] for k in range(60)],
}
COLUMNS = {"label": "outcome", "client": "hospital"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the same clients in each form."""
    monkeypatch.chdir(tmp_path)
    pa.csv.write_csv(pa.table(TABLE), "t.csv")
    os.mkdir("clients")
    os.mkdir("divided")
    for m in (2, 10):
        x, y = RNG.normal(size=(20, 3)), RNG.integers(0, 3, 20)
        np.savez(f"clients/c{m}.npz", x=x, y=y, group="g")
        np.savez(f"divided/c{m}.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    Federation.from_folder("divided").save("saved")
    return tmp_path


def test_a_config_gives_what_the_constructors_give(folder):
    def made(seed=1, **data):
        return parse({"seed": seed, "data": {"name": "files", **data}}).federation().fingerprint

    assert made(path="clients") == made(path="clients/") == Federation.from_folder("clients", seed=1).fingerprint
    assert made(path=str(folder / "clients")) == made(path="clients") != made(path="clients", seed=2)
    assert made(path="divided") == made(path="saved") == Federation.from_folder("divided").fingerprint
    assert made(path="t.csv", **COLUMNS) == Federation.from_table("t.csv", **COLUMNS, seed=1).fingerprint
    assert (
        made(path="t.csv", **COLUMNS, features=["dose"], split="part", normalize="standard")
        == Federation.from_table("t.csv", **COLUMNS, features=["dose"], split="part", normalize="standard").fingerprint
    )
    standard = Federation.from_folder("clients", seed=1).standardized()
    assert made(path="clients", normalize="standard") == standard.fingerprint


def test_a_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert len(build(Files("~/clients"))) == 2 and len(build(Files("~/t.csv", "outcome", "hospital"))) == 4


def test_splits_are_the_configs_unless_the_data_has_its_own(folder):
    config = {"data": {"name": "files", "path": "clients"}, "splits": [0.5, 0.0, 0.5]}
    assert parse(config).federation().sizes("test").tolist() == [10, 10]
    for data in ({"path": "divided"}, {"path": "saved"}):
        with pytest.raises(ConfigError, match="says what is for training and testing: leave out the splits"):
            parse({"data": {"name": "files", **data}, "splits": [0.5, 0.0, 0.5]}).federation()
    with pytest.raises(ConfigError, match="decides train and test itself: leave out the splits"):
        parse(
            {"data": {"name": "files", "path": "t.csv", **COLUMNS, "split": "part"}, "splits": [0.5, 0.0, 0.5]}
        ).federation()


def test_partitions_deal_what_may_be_dealt(folder):
    pool = Files("t.csv", label="outcome", features=("age", "dose"))
    assert pool.structure == "pool" and len(build(pool, IID(7))) == 7
    with pytest.raises(ConfigError, match="is a pool of samples without clients: give a partition"):
        build(pool)
    owned = Files("t.csv", **COLUMNS)
    assert owned.structure == "natural" and build(owned).ids == ("h0", "h1", "h2", "h3")
    assert len(build(owned, IID(7))) == 7 and build(owned, IID(7)).x.shape[1] == 2
    assert len(build(owned, Natural(clients=3))) == 3
    for own in (Files("clients"), Files("t.csv", **COLUMNS, split="part")):
        with pytest.raises(ConfigError, match="comes with its own clients: leave out the partition 'iid'"):
            build(own, IID(7))
    with pytest.raises(ConfigError, match="does not know whose its samples are"):
        build(pool, Natural())
    assert parse({"data": {"name": "files", "path": "t.csv", "label": "outcome"}}).partition.name == "dirichlet"


@pytest.mark.parametrize(
    "data, said",
    [
        ({}, "data files: path is missing"),
        ({"path": "t.csv", "client": "hospital"}, "data files: label is missing: name the column of t.csv"),
        ({"path": "clients", "client": "hospital"}, "client = 'hospital' is for tables .* is named like a folder"),
        ({"path": "clients", "features": ["a"]}, "features = .* is for tables"),
        ({"path": "t.csv", **COLUMNS, "normalize": "unit"}, "data.normalize = 'unit'"),
        ({"path": "t.csv", "label": "outcome", "group": "part"}, "group = 'part' needs client"),
        ({"path": "t.csv", **COLUMNS, "feature": ["a"]}, r"unknown key 'data.feature' \(did you mean 'data.features'"),
        ({"path": "t.csv", **COLUMNS, "features": 3}, "data.features"),
        ({"path": 3}, "data.path = 3"),
    ],
)
def test_settings_that_cannot_be_are_named_before_anything_is_read(data, said):
    with pytest.raises(ConfigError, match=said) as caught:
        parse({"data": {"name": "files", **data}})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data, said",
    [
        (
            {"path": "nowhere"},
            "data files: there is no folder nowhere; a relative path starts at the working directory",
        ),
        ({"path": "t.csv.npz"}, "there is no folder"),
        ({"path": "nowhere.csv", **COLUMNS}, r"there is no file nowhere.csv"),
        ({"path": "."}, r"holds no .npz file"),
    ],
)
def test_what_is_not_there_is_named(folder, data, said):
    with pytest.raises(DataError, match=said):
        parse({"data": {"name": "files", **data}}).federation()


def test_the_model_follows_the_shape(folder):
    assert default_model((12,)).name == "mlp" and default_model((1, 28, 28)).name == "cnn"
    assert default_model((1, 8, 8)).name == "mlp" and default_model((40, 50)).name == "mlp"
    config = parse({"rounds": 1, "data": {"name": "files", "path": "t.csv", **COLUMNS}, "engine": "loop"})
    run = train_config(config, folder / "run")
    assert run.manifest["model"]["name"] == "mlp" and run.manifest["resolved"]["labels"] == ["ill", "well"]
    assert run.manifest["data"]["path"] == "t.csv" and run.manifest["data"]["label"] == "outcome"
    assert run.personal("h0")(torch.zeros(1, 2)).shape == (1, 2)
    again = train_config(config, folder / "run", resume=True)
    assert again.manifest["resolved"]["fingerprint"] == run.manifest["resolved"]["fingerprint"]
    os.mkdir("pictures")
    for name in "ab":
        np.savez(f"pictures/{name}", x=RNG.normal(size=(10, 1, 16, 16)), y=np.arange(10) % 2)
    config = parse({"rounds": 1, "data": {"name": "files", "path": "pictures"}, "engine": "loop"})
    assert train_config(config, folder / "run2").manifest["model"]["name"] == "cnn"


def test_what_was_subtracted_is_kept_with_the_run(folder):
    data = {"name": "files", "path": "t.csv", **COLUMNS, "normalize": "standard"}
    run = train_config(parse({"rounds": 1, "data": data, "engine": "loop"}), folder / "run")
    assert torch.equal(run.tables["mean"], Federation.from_table("t.csv", **COLUMNS).standardized().tables["mean"])


# --- .npz files that are not what they seem


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def huge(shape, descr="<f8"):
    """An npy header that promises this shape, and a few bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(99)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "members, said",
    [
        ({"x": huge((10**12, 3))}, "x is .* bytes long and its header promises 24000000000"),
        ({"x": huge((-3, -5))}, "x has shape"),
        ({"x": huge((3, 2), "<U1000000")}, "x holds <U1000000 values, expected"),
        ({"x": npy(np.array([Bomb()], object))}, "x holds object values"),
        ({"x": pickle.dumps(Bomb())}, "cannot read"),
        ({"x": npy(np.ones((2, 2)))[:-1]}, "bytes long and its header promises"),
        ({"x": npy(np.zeros(2, [("a", "f8")]))}, r"x holds \[\('a', '<f8'\)\] values"),
        ({"x": npy(np.array([1j, 2j]))}, "x holds complex128 values"),
        ({"x": b""}, "cannot read"),
        ({"../x": npy(np.ones((2, 2)))}, "holds the arrays ../x, x, y; expected x and y"),
        ({"/tmp/evil": npy(np.ones(2))}, "holds the arrays /tmp/evil, x, y"),
        ({"group": npy(np.array("g" * 100_000))[:-4]}, "group is .* bytes long"),
        ({"group": npy(np.array(3))}, "group holds int64 values, expected text"),
        ({f"a{k}": b"" for k in range(1000)}, "holds the arrays a0, a1, .* and 992 more; expected x and y"),
    ],
    ids=lambda value: ", ".join(value)[:20] if isinstance(value, dict) else value[:20],
)
def test_a_malformed_npz_is_named_executes_nothing_and_takes_no_memory(tmp_path, monkeypatch, members, said):
    monkeypatch.chdir(tmp_path)
    os.mkdir("clients")
    with zipfile.ZipFile("clients/bob.npz", "w") as archive:
        for name, content in ({"x": npy(np.ones((2, 2))), "y": npy(np.array([0, 1]))} | members).items():
            archive.writestr(f"{name}.npy", content)
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as caught:
        build(Files("clients"))
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert "clients/bob.npz" in str(caught.value) and "\n" not in str(caught.value)
    assert os.listdir() == ["clients"] and os.listdir("clients") == ["bob.npz"]


def test_a_directory_that_claims_more_than_the_file_has_is_refused(tmp_path):
    """The sizes in a zip's directory are as untrue as its maker likes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", huge((10**9,), "|u1"))
        archive.writestr("y.npy", npy(np.array([0, 1])))
    whole = bytearray(buffer.getvalue())
    entry = whole.index(b"PK\x01\x02")
    promised = len(huge((10**9,), "|u1")) - 99 + 10**9
    whole[entry + 20 : entry + 24] = (10**8).to_bytes(4, "little")  # compressed
    whole[entry + 24 : entry + 28] = promised.to_bytes(4, "little")  # uncompressed
    (tmp_path / "bob.npz").write_bytes(whole)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bob\.npz claims to hold more bytes than it has"):
        Federation.from_folder(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
