"""What survives saving a federation, its tables included, and what is refused when it is read again."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from personafl.data.partitions import IID
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation import folders as federation_files
from tests.federation.test_federation import small


def full():
    return small(groups=("g", "h"), name="mine", truth={"theta": np.array([1.5, 2.5])}, notes=("bent",), classes=7)


def test_what_is_saved_comes_back(tmp_path):
    fed = full()
    fed.save(tmp_path / "fed")
    back = Federation.load(tmp_path / "fed", verify=True)
    assert torch.equal(back.x, fed.x) and torch.equal(back.y, fed.y) and np.array_equal(back.bounds, fed.bounds)
    for what in ("ids", "groups", "classes", "name", "notes", "fingerprint"):
        assert getattr(back, what) == getattr(fed, what)
    assert np.array_equal(back.truth["theta"], fed.truth["theta"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["fed"]


def test_names_of_classes_come_back_and_change_no_fingerprint(tmp_path):
    fed = small(class_names=("ant", "bee", "cat"))
    fed.save(tmp_path / "fed")
    assert Federation.load(tmp_path / "fed", verify=True).class_names == ("ant", "bee", "cat")
    assert fed.fingerprint == small().fingerprint and small(class_names=tuple("abcd")).classes == 4
    described = json.loads((tmp_path / "fed" / "federation.json").read_text())
    rewrite(tmp_path / "fed", labels=["ant", "cat", "bee"])
    with pytest.raises(DataError, match="is damaged: its content is not what was saved"):
        Federation.load(tmp_path / "fed")
    small().save(tmp_path / "without")
    assert "labels" in described and "labels" not in json.loads((tmp_path / "without" / "federation.json").read_text())
    assert Federation.load(tmp_path / "without").class_names is None


@pytest.mark.parametrize("y", [np.linspace(0, 1, 4), np.ones((4, 2)), np.array([0, 1, 0, 1])])
@pytest.mark.parametrize("x", [np.ones((4, 1)), np.ones((4, 1, 2, 3), np.uint8), np.ones((4, 5), np.int64), np.ones(4)])
def test_every_kind_of_data_comes_back(tmp_path, x, y):
    fed = Federation.from_arrays(x, y, clients=list("aabb"))
    fed.save(tmp_path / "fed")
    assert Federation.load(tmp_path / "fed").fingerprint == fed.fingerprint


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_maps_the_features_and_writing_to_them_leaves_the_file_alone(tmp_path):
    small().save(tmp_path / "fed")
    before = (tmp_path / "fed" / "x.npy").read_bytes()
    fed = Federation.load(tmp_path / "fed")
    assert str(tmp_path / "fed" / "x.npy") in Path("/proc/self/maps").read_text()
    fed.x.zero_()
    assert (tmp_path / "fed" / "x.npy").read_bytes() == before


def test_saving_never_overwrites_and_leaves_nothing_behind_when_it_fails(tmp_path):
    (tmp_path / "fed").mkdir()
    with pytest.raises(DataError, match="fed exists already"):
        small().save(tmp_path / "fed")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot save the federation to"):
        small().save(tmp_path / "file" / "fed")
    assert sorted(os.listdir(tmp_path)) == ["fed", "file"] and os.listdir(tmp_path / "fed") == []


def huge(shape):
    """A .npy file whose header promises this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(99)


def rewrite(folder, **changes):
    described = json.loads((folder / "federation.json").read_text())
    (folder / "federation.json").write_text(json.dumps(described | changes))


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda f: (f / "federation.json").unlink(), "is not a saved federation: it has no federation.json"),
        (lambda f: (f / "federation.json").write_text("{"), "is damaged: cannot read federation.json"),
        (lambda f: (f / "federation.json").write_text("[]"), "is not a saved federation"),
        (lambda f: rewrite(f, format="other"), "is not a saved federation"),
        (lambda f: rewrite(f, version=2), "has version 2; this personafl reads version 1"),
        (lambda f: rewrite(f, ids=["ann", "eve"]), "is damaged: its content is not what was saved"),
        (lambda f: rewrite(f, ids=["ann"]), "is damaged: bounds of shape"),
        (lambda f: rewrite(f, ids=[1, 2]), "is damaged: client ids must be strings"),
        (lambda f: rewrite(f, ids=None), "is damaged"),
        (lambda f: rewrite(f, classes="many"), "is damaged"),
        (lambda f: rewrite(f, truth=["../../secret"]), "is damaged: truth names"),
        (lambda f: rewrite(f, truth=7), "is damaged"),
        (lambda f: rewrite(f, labels=7), "is damaged"),
        (lambda f: rewrite(f, labels=["a"]), "is damaged: 1 class name for 7 classes"),
        (lambda f: (f / "federation.json").write_text("[" * 100_000), "is damaged: cannot read federation.json"),
        (
            lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes().replace(b"(6, 3)", b"((6, 3")),
            "is damaged: cannot read x.npy",
        ),
        (lambda f: (f / "y.npy").write_bytes(huge((10**13,))), "is damaged: cannot read y.npy"),
        (lambda f: (f / "bounds.npy").write_bytes(huge((10**30, 4))), "is damaged: cannot read bounds.npy"),
        (lambda f: (f / "truth" / "theta.npy").write_bytes(huge((-5,))), "is damaged: cannot read theta.npy"),
        (lambda f: (f / "x.npy").unlink(), "is damaged: cannot read x.npy"),
        (
            lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes()[:-4]),
            "is damaged: cannot read x.npy",
        ),
        (lambda f: (f / "x.npy").write_bytes(b""), "is damaged: cannot read x.npy"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 3), np.complex64)), "is damaged: x is torch.complex64"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 3), ">f4")), "is damaged"),
        (lambda f: np.save(f / "x.npy", np.ones((5, 3), np.float32)), "is damaged: x has 5 samples"),
        (lambda f: np.save(f / "x.npy", np.ones((6, 4), np.float32)), "is damaged: its content"),
        (lambda f: np.save(f / "y.npy", np.zeros(6, np.int64)), "is damaged: its content"),
        (lambda f: np.save(f / "y.npy", np.array(3)), "is damaged"),
        (lambda f: np.save(f / "bounds.npy", np.array(["a"])), "is damaged"),
        (lambda f: np.save(f / "truth" / "theta.npy", np.zeros(2)), "is damaged: its content"),
        (lambda f: np.save(f / "truth" / "theta.npy", np.zeros(1)), "is damaged: truth 'theta'"),
    ],
)
def test_damaged_and_foreign_folders_are_refused(tmp_path, damage, said):
    full().save(tmp_path / "fed")
    damage(tmp_path / "fed")
    with pytest.raises(DataError, match=f"fed {said}"):
        Federation.load(tmp_path / "fed")


def test_changed_features_are_found_when_asked(tmp_path):
    full().save(tmp_path / "fed")
    np.save(tmp_path / "fed" / "x.npy", np.ones((6, 3), np.float32))
    Federation.load(tmp_path / "fed")
    with pytest.raises(DataError, match="content is not what was saved"):
        Federation.load(tmp_path / "fed", verify=True)
    with pytest.raises(DataError, match="is not a saved federation"):
        Federation.load(tmp_path / "nowhere")


# --- constants


def texts(**changes):
    """Two clients whose x are numbers of three words."""
    constants = {"embedding": torch.eye(3), "vocabulary": torch.tensor([97, 98], dtype=torch.uint8)}
    return small(**({"x": torch.tensor([[0, 1], [2, 0], [1, 1]] * 2), "constants": constants} | changes))


def test_constants_count_for_the_fingerprint_where_there_are_any():
    # The value from before there were constants: old runs must remain resumable.
    without = Federation.from_clients({"ann": ([[0.0], [1.0]], [0, 1]), "bob": ([[2.0], [3.0]], [1, 1])})
    assert without.fingerprint == "08dcbaa1cb5d0daf5f50b1a5c535bf82ed90088f3aa4237af77e3a522ceb3fdb"
    constants = texts().constants
    changes = [
        {},
        {"constants": {}},
        {"constants": constants | {"embedding": 2 * torch.eye(3)}},
        {"constants": {"embedding": constants["embedding"]}},
        {"constants": {"other": constants["vocabulary"], "embedding": constants["embedding"]}},
    ]
    assert len({texts(**change).fingerprint for change in changes}) == len(changes)
    assert texts(constants=dict(reversed(constants.items()))).fingerprint == texts().fingerprint


def test_constants_are_saved_and_come_back(tmp_path):
    fed = texts()
    fed.save(tmp_path / "fed")
    back = Federation.load(tmp_path / "fed", verify=True)
    assert back.fingerprint == fed.fingerprint and back.constants.keys() == fed.constants.keys()
    assert all(
        back.constants[what].equal(table) and back.constants[what].dtype == table.dtype
        for what, table in fed.constants.items()
    )
    small().save(tmp_path / "plain")
    assert "tables" not in json.loads((tmp_path / "plain" / "federation.json").read_text())
    assert not (tmp_path / "plain" / "tables").exists() and Federation.load(tmp_path / "plain").constants == {}


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda f: np.save(f / "tables" / "embedding.npy", 2 * np.eye(3, dtype=np.float32)), "is damaged: its content"),
        (lambda f: (f / "tables" / "embedding.npy").unlink(), "is damaged: cannot read embedding.npy"),
        (lambda f: rewrite(f, tables=["embedding"]), "is damaged: its content"),
        (lambda f: rewrite(f, tables=["../x"]), "is damaged: constant names must be like variables"),
        (lambda f: rewrite(f, tables=3), "is damaged"),
    ],
)
def test_damaged_constants_are_refused(tmp_path, damage, said):
    texts().save(tmp_path / "fed")
    damage(tmp_path / "fed")
    with pytest.raises(DataError, match=said):
        Federation.load(tmp_path / "fed")


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"constants": {"embedding": torch.eye(2)}},
            r"x outside 0\.\.1, .* in 2 clients: ann \(1 value\), bob \(1 value\)",
        ),
        ({"x": torch.full((6, 2), -1)}, r"x outside 0\.\.2, the rows of the table 'embedding'"),
        ({"x": torch.ones(6, 2)}, "with a table 'embedding' it must be integers"),
        ({"constants": {"a/b": torch.eye(2)}}, "constant 'a/b' must be named like a variable"),
        ({"constants": {"words": torch.tensor([np.inf])}}, "constant 'words' has NaN or infinite values"),
        ({"constants": {"words": np.ones(2)}}, "constant 'words' must be a tensor, not ndarray"),
    ],
)
def test_constants_that_cannot_be_used_are_refused(changes, said):
    with pytest.raises(DataError, match=said):
        texts(**changes)


def test_every_way_to_make_a_federation_keeps_the_constants():
    table = {"embedding": torch.eye(3)}
    arrays = Federation.from_arrays([[0], [1], [2]], [0, 1, 0], clients=list("aab"), constants=table)
    own = Federation.from_clients({"a": ([[0], [1]], [0, 1]), "b": ([[2]], [0])}, constants=table)
    dealt = Federation.from_arrays([[0], [1], [2]], [0, 1, 0], partition=IID(2), constants=table)
    assert all(fed.constants["embedding"].equal(torch.eye(3)) for fed in (arrays, own, dealt))


@pytest.mark.skipif(sys.platform != "linux", reason="maps files larger than the memory on Linux only")
def test_features_may_be_larger_than_the_memory(tmp_path):
    """Half a terabyte, all of it a hole but for the last value."""
    file, rows = tmp_path / "x.npy", 2**31
    with open(file, "wb") as opened:
        np.lib.format.write_array_header_1_0(opened, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        begin = opened.tell()
        opened.truncate(begin + rows * 64 * 4)
        opened.seek(-4, 2)
        opened.write(np.float32(7).tobytes())
    x = federation_files.map_array(file)
    assert x.shape == (rows, 64) and x[-1, -1] == 7 and x[5, 5] == 0
    x[-1, -1] = 8
    assert torch.from_numpy(x)[-1, -1] == 8 and federation_files.map_array(file)[-1, -1] == 7


def test_a_saved_fingerprint_is_trusted_unless_it_is_to_be_verified(tmp_path):
    fed = small()
    fed.save(tmp_path / "fed")
    file = tmp_path / "fed" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert Federation.load(tmp_path / "fed").fingerprint == fed.fingerprint
    with pytest.raises(DataError, match="damaged"):
        Federation.load(tmp_path / "fed", verify=True)
