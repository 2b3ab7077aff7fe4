"""Facts about femnist: its clients are those who wrote, and writers of whom a part is missing are left out."""

import numpy as np
import pytest

from personafl.data import FEMNIST, Lognormal, Natural, build
from personafl.errors import ConfigError, DataError

WRITER = np.array([0, 0, 2, 1, 2, 2, 1], np.uint16)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def save(folder, **others):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.integers(0, 256, (7, 28, 28), np.uint8), "y": np.array([0, 61, 10, 36, 5, 5, 9], np.uint8),
        "writer": WRITER, "writer_id": np.array(["f1", "f2", "f3"]), "complete_writer": np.array([True, False, True]),
        **others,
    }  # fmt: skip
    np.savez(folder / "femnist_writers.npz", **arrays)
    return arrays


def test_clients_are_the_writers_that_are_there_in_full(folder):
    arrays = save(folder)
    samples = FEMNIST().load(0)
    kept = WRITER != 1
    assert samples.clients.tolist() == ["f1", "f1", "f3", "f3", "f3"] and samples.classes == 62
    assert samples.y.tolist() == [0, 61, 10, 5, 5] and samples.x.shape == (5, 1, 28, 28)
    assert np.array_equal(np.rint(samples.x[:, 0] * 255), arrays["x"][kept])
    assert FEMNIST(complete=False).load(0).clients.tolist() == ["f1", "f1", "f3", "f2", "f3", "f3", "f2"]
    federation = build(FEMNIST(), Natural(least=3), splits=(0.7, 0.0, 0.3))
    assert federation.ids == ("f3",) and "left out 1 owner" in federation.notes[0]


def test_some_characters_on_a_bright_ground_as_leaf_has_them(folder):
    arrays = save(folder)
    samples = FEMNIST(normalize="leaf", complete=False, classes="95a").load(0)
    assert samples.classes == 3 and samples.y.tolist() == [2, 1, 1, 0] and samples.clients.tolist() == [
        "f2", "f3", "f3", "f2",
    ]  # fmt: skip
    assert np.array_equal(np.rint(255 - samples.x[:, 0] * 255), arrays["x"][3:])
    # A partition takes the images without their writers.
    pooled = build(FEMNIST(complete=False, classes="5a"), Lognormal(clients=2, classes_per_client=1, least=1))
    assert len(pooled.ids) == 2 and sorted(pooled.y.tolist()) == [0, 0, 1]


def test_what_is_wrong_is_one_line(folder):
    with pytest.raises(DataError, match=r"put femnist_writers\.npz"):
        FEMNIST().load(0)
    save(folder, writer=WRITER + np.uint16(1))
    with pytest.raises(DataError, match="of one of the 3 writers"):
        FEMNIST().load(0)
    save(folder, complete_writer=np.zeros(3, bool))
    with pytest.raises(DataError, match="set complete = false"):
        FEMNIST().load(0)
    save(folder, y=np.full(7, 62, np.uint8))
    with pytest.raises(DataError, match="label 62 of sample 0 must be in 0 to 61"):
        FEMNIST().load(0)
    with pytest.raises(ConfigError, match="normalize"):
        FEMNIST(normalize="none")
    with pytest.raises(ConfigError, match="data femnist: classes = 'aa' must be two or more different characters"):
        FEMNIST(classes="aa")
    save(folder)
    with pytest.raises(DataError, match="there is no image of the classes 12"):
        FEMNIST(classes="12").load(0)
