"""Word vectors are on every machine's own disk: sites do what the loop engine does; other vectors are refused."""

import numpy as np
import pytest
import torch

from personafl.backends.flower.app import read_operator
from personafl.backends.flower.policy import read_policy
from personafl.backends.flower.vectors import WordVectorFile
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.files import checksum
from personafl.runs.run import load_run
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import flower, loop, same, same_clients, server_state

MODEL = {"name": "lstm", "hidden": 3, "layers": 1}


@pytest.fixture
def vectors(tmp_path):
    table = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    table[0] = 0
    np.save(tmp_path / "vectors.npy", table)
    return tmp_path / "vectors.npy"


def texts(constants=None):
    rng, data = np.random.default_rng(4), {}
    for name in ("site-2", "site-4", "site-6"):
        x = rng.integers(1, 7, (18, 6))
        data[name] = {
            split: (x[k::3], (x[k::3, 0] > 3).astype(np.int64)) for k, split in enumerate(("train", "val", "test"))
        }
    return Federation.from_clients(data, classes=2, constants=constants)


def run(folder, sites, vectors, sha256):
    return flower(
        folder, MemoryGrid(sites), "ditto", model=MODEL, input_shape=[6], max_weight=1.0,
        vectors={"path": str(vectors), "sha256": sha256},
    )  # fmt: skip


def test_a_federation_with_word_vectors_is_what_the_loop_does(tmp_path, vectors):
    sites = sites_of(tmp_path / "sites", texts(), vectors={"path": str(vectors)})
    ours = run(tmp_path / "flower", sites, vectors, checksum(vectors))
    table = torch.from_numpy(np.load(vectors))
    reference = loop(tmp_path / "loop", "ditto", texts({"embedding": table}), model=MODEL)
    assert not any("dropped" in record for record in ours.rounds())
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)
    x = texts().x
    assert torch.equal(load_run(ours.path).global_model()(x), reference.global_model()(x))


def test_no_message_has_the_word_vectors(tmp_path, vectors):
    grid = MemoryGrid(sites_of(tmp_path / "sites", texts(), vectors={"path": str(vectors)}))
    flower(tmp_path / "flower", grid, "ditto", model=MODEL, input_shape=[6],
           vectors={"path": str(vectors), "sha256": checksum(vectors)})  # fmt: skip
    travelled = b"".join(data for _, _, data in grid.left)
    table = np.load(vectors)
    assert len(travelled) > 1000 and not any(row.tobytes() in travelled for row in table[1:])


def test_other_word_vectors_and_none_are_refused(tmp_path, vectors):
    other = tmp_path / "other.npy"
    np.save(other, np.load(vectors) * 2)
    record = run(tmp_path / "a", sites_of(tmp_path / "s", texts(), vectors={"path": str(other)}), vectors,
                 checksum(vectors)).rounds()[0]  # fmt: skip
    why = f"site site-4: its word vectors other.npy have SHA-256 {checksum(other)}, this run wants {checksum(vectors)}"
    assert record["dropped"]["site-4"] == why
    record = run(tmp_path / "b", sites_of(tmp_path / "t", texts()), vectors, checksum(vectors)).rounds()[0]
    why = f"site site-4 has no word vectors, this run those with SHA-256 {checksum(vectors)}: [vectors] in site.toml"
    assert record["dropped"]["site-4"] == why


def test_a_policy_lists_them(tmp_path, vectors):
    (tmp_path / "policy.toml").write_text("weights = []\n")
    assert read_policy(tmp_path / "policy.toml").weights == ()
    sites = sites_of(tmp_path / "s", texts(), vectors={"path": str(vectors)}, policy=str(tmp_path / "policy.toml"))
    dropped = run(tmp_path / "a", sites, vectors, checksum(vectors)).rounds()[0]["dropped"]
    why = f"site site-4: its policy does not list the word vectors (SHA-256 {checksum(vectors)}; policy: weights)"
    assert dropped["site-4"] == why


def test_files_that_are_none_are_one_line(tmp_path, vectors):
    (tmp_path / "f.toml").write_text(f'[federation]\nsites = 3\ninput_shape = [6]\n[vectors]\npath = "{vectors}"\n')
    with pytest.raises(ConfigError, match=r"vectors\.sha256 is missing"):
        read_operator(tmp_path / "f.toml")
    for name, what in (("long.npy", np.zeros((3, 2))), ("flat.npy", np.zeros(3, np.float32))):
        np.save(tmp_path / name, what)
        with pytest.raises(DataError, match=r"have to be a \.npy file of float32 \(words, features\)"):
            WordVectorFile(str(tmp_path / name)).load(None)
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    for name in ("pickled.npy", "text.npy", "gone.npy"):
        with pytest.raises(DataError, match=r"cannot read the word vectors"):
            WordVectorFile(str(tmp_path / name)).load(None)
