"""Facts about the cache of prepared arrays: they are made once, and a damaged entry is no entry."""

import json
import os
import threading
import time
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from personafl.data import Samples, build
from personafl.storage.cache import cache_dir, prepared


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Gives arrays and counts how often it was asked."""

    def __init__(self, factor=1):
        self.calls, self.factor = 0, factor

    def __call__(self):
        self.calls += 1
        return {"x": self.factor * np.arange(12.0, dtype=np.float32).reshape(3, 4), "names": np.array(["a", "bc"])}


def assert_right(found, factor=1):
    assert list(found) == ["x", "names"] and found["x"].dtype == np.float32 and type(found["x"]) is np.ndarray
    assert np.array_equal(found["x"], factor * np.arange(12.0).reshape(3, 4)) and found["names"].tolist() == ["a", "bc"]
    assert not any(array.flags.writeable for array in found.values())
    with pytest.raises(ValueError, match="read-only"):
        found["x"][0] = 1


def entries(cache):
    return sorted(cache.glob("prepared/*")) + sorted(cache.glob("prepared/.*"))


def is_mapped(array):
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def test_arrays_are_made_once_and_mapped(cache):
    make = Maker()
    for _ in range(3):
        found = prepared("mine", [], {"version": 1}, make)
        assert_right(found)
        assert is_mapped(found["x"])
    assert make.calls == 1
    (entry,) = entries(cache)
    assert entry.name.startswith("mine-") and entry.parent == cache_dir() / "prepared"


def test_other_files_and_settings_are_other_entries(cache, tmp_path):
    file = tmp_path / "input"
    file.write_bytes(b"1234")
    os.utime(file, ns=(0, 10**9))
    make = Maker()

    def load(files=(file,), **settings):
        prepared("mine", files, {"version": 1, **settings}, make)
        return make.calls

    assert (load(), load()) == (1, 1)
    assert (load(normalize="unit"), load(normalize="unit"), load(normalize="fedprox")) == (2, 2, 3)
    assert load(version=2) == 4
    os.utime(file, ns=(0, 2 * 10**9))
    assert (load(), load()) == (5, 5)
    file.write_bytes(b"12345")
    os.utime(file, ns=(0, 2 * 10**9))
    assert (load(), load()) == (6, 6)
    assert load(files=()) == 7
    prepared("another", [], {"version": 1}, make)
    assert make.calls == 8


@dataclass(frozen=True)
class Mapped:
    """A source that comes with its own clients, out of the cache."""

    name: ClassVar[str] = "mapped"
    structure: ClassVar[str] = "own"
    splits: ClassVar[None] = None

    def load(self, seed):
        arrays = prepared("mapped", [], {"version": 1}, lambda: {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)})
        return Samples(**arrays, classes=4, clients=np.array(["a"]), bounds=np.array([[0, 3, 3, 4]]))


def test_a_federation_of_mapped_arrays_has_memory_of_its_own(cache):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that must not be written to
        fed = build(Mapped())
    fed.x[0] = 7
    assert Mapped().load(0).x.max() == 0


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: cut(entry / "x.npy"),
        lambda entry: flip(entry / "x.npy"),
        lambda entry: (entry / "x.npy").unlink(),
        lambda entry: (entry / "names.npy").unlink(),
        lambda entry: (entry / "contents.json").unlink(),
        lambda entry: cut(entry / "contents.json"),
        lambda entry: (entry / "contents.json").write_text("[]"),
        lambda entry: (entry / "contents.json").write_text(json.dumps({"x": 1})),
        lambda entry: (entry / "x.npy").write_bytes(b""),
    ],
)
def test_a_damaged_entry_is_made_again(cache, damage):
    make = Maker()
    prepared("mine", [], {"version": 1}, make)
    damage(entries(cache)[0])
    for _ in range(2):
        assert_right(prepared("mine", [], {"version": 1}, make))
    assert make.calls == 2 and len(entries(cache)) == 1


def test_nothing_of_an_entry_is_executed(cache):
    prepared("mine", [], {"version": 1}, Maker())
    (entry,) = entries(cache)
    np.save(entry / "x.npy", np.array([Bomb()], object), allow_pickle=True)
    stat = (entry / "x.npy").stat()
    contents = json.loads((entry / "contents.json").read_text())
    contents["x"] = [stat.st_size, stat.st_mtime_ns]
    (entry / "contents.json").write_text(json.dumps(contents))
    make = Maker()
    assert_right(prepared("mine", [], {"version": 1}, make))
    assert make.calls == 1 and not (cache / "executed").exists()


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.path.join(os.environ["PERSONAFL_CACHE"], "executed"),)


def test_a_cache_that_cannot_be_written_only_costs_time(cache, monkeypatch):
    cache.write_bytes(b"a file, where a folder should be")
    make = Maker()
    for _ in range(2):
        assert_right(prepared("mine", [], {"version": 1}, make))
    assert make.calls == 2

    cache.unlink()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert_right(prepared("mine", [], {"version": 1}, make))
    assert make.calls == 3 and entries(cache) == []


def test_many_at_once_do_no_harm(cache):
    """Also where the entry is damaged when they start."""
    prepared("mine", [], {"version": 1}, Maker())
    cut(entries(cache)[0] / "x.npy")
    together = threading.Barrier(8)
    found = []

    def make():
        together.wait()
        return Maker()()

    threads = [
        threading.Thread(target=lambda: found.append(prepared("mine", [], {"version": 1}, make))) for _ in "8" * 8
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for arrays in found:
        assert_right(arrays)
    assert len(entries(cache)) == 1
    last = Maker()
    assert_right(prepared("mine", [], {"version": 1}, last))
    assert last.calls == 0


def test_what_killed_processes_left_is_removed_a_day_later(cache):
    old, new = (cache / "prepared" / f".mine-0.{age}.draft" for age in ("old", "new"))
    for draft in (old, new):
        draft.mkdir(parents=True)
        (draft / "x.npy").write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    prepared("mine", [], {"version": 1}, Maker())
    assert not old.exists() and new.exists()


def test_the_cache_is_that_of_the_operating_system_unless_the_variable_names_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PERSONAFL_CACHE", "~/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "elsewhere"
    monkeypatch.delenv("PERSONAFL_CACHE")
    assert cache_dir().name == "personafl"
