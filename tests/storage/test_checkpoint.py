"""Facts about checkpoints: damage is noticed, the one before is used, nothing in them is ever executed."""

import hashlib
import json
import logging
import pickle

import pytest
import torch

from personafl.errors import RunError
from personafl.storage import checkpoint
from personafl.storage.checkpoint import Checkpoint


def state(round):
    return Checkpoint(round, {"server.theta": torch.full((100,), float(round))}, {"bytes_up": round})


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of rounds 3 and 6."""
    for round in (3, 6):
        checkpoint.save(tmp_path, state(round))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_found(folder):
    found = checkpoint.latest(folder)
    assert found.round == 6 and found.values == {"bytes_up": 6}
    assert found.tensors["server.theta"].equal(torch.full((100,), 6.0))


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_the_newest_two_are_kept(folder):
    checkpoint.save(folder, state(9))
    assert names(folder) == [f"round-{n:06d}.{kind}" for n in (6, 9) for kind in ("json", "safetensors")]


def truncate_data(data, record):
    data.write_bytes(data.read_bytes()[:-7])


def flip_a_bit(data, record):
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)


def remove_data(data, record):
    data.unlink()


def empty_data(data, record):
    data.write_bytes(b"")


def truncate_record(data, record):
    record.write_text(record.read_text()[:20])


def empty_record(data, record):
    record.write_text("")


def record_of_something_else(data, record):
    record.write_text("[1, 2, 3]")


def record_that_is_no_text(data, record):
    record.write_bytes(b"\xff\xfe\x00\x80")


def data_that_is_not_safetensors(data, record):
    """Its checksum is right, so only the format can give it away."""
    forge(data, record, b"not a tensor in sight")


def forge(data, record, content):
    data.write_bytes(content)
    told = {**json.loads(record.read_text()), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    record.write_text(json.dumps(told))


DAMAGE = [
    truncate_data, flip_a_bit, remove_data, empty_data, truncate_record, empty_record, record_of_something_else,
    record_that_is_no_text, data_that_is_not_safetensors,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_passed_over_with_a_warning(folder, damage, caplog):
    damage(folder / "round-000006.safetensors", folder / "round-000006.json")
    with caplog.at_level(logging.WARNING, "personafl"):
        assert checkpoint.latest(folder).round == 3
    assert len(caplog.messages) == 1
    assert "round-000006.json is damaged" in caplog.text and "using the one before it" in caplog.text


@pytest.mark.parametrize("damage", DAMAGE)
def test_if_all_are_damaged_there_is_none(folder, damage, caplog):
    for stem in ("round-000003", "round-000006"):
        damage(folder / f"{stem}.safetensors", folder / f"{stem}.json")
    assert checkpoint.latest(folder) is None
    assert len(caplog.messages) == 2


def test_a_run_that_starts_over_does_not_lose_its_checkpoints_to_damaged_ones(folder):
    for path in folder.glob("*.json"):
        path.write_text("")
    checkpoint.save(folder, state(2))
    assert checkpoint.latest(folder).round == 2
    assert names(folder) == ["round-000002.json", "round-000002.safetensors"]


def test_leftovers_of_a_killed_process_are_ignored_and_removed(folder):
    """Half a data file, half a record, and data whose record was not written any more."""
    (folder / "round-000009.safetensors.partial").write_bytes(b"half")
    (folder / "round-000009.json.partial").write_text('{"round": 9')
    (folder / "round-000012.safetensors").write_bytes(b"whole, but who knows")
    (folder / ".tmpX1y2Z3").write_bytes(b"safetensors' own")
    assert checkpoint.latest(folder).round == 6
    checkpoint.save(folder, state(8))
    assert names(folder) == [f"round-{n:06d}.{kind}" for n in (6, 8) for kind in ("json", "safetensors")]


@pytest.mark.parametrize("name", ["round-000006.json", "round-000006.safetensors", "round-000003.json"])
def test_a_folder_in_the_place_of_a_file_is_passed_over_and_put_aside(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    (folder / name / "notes.txt").write_text("somebody's")
    found = checkpoint.latest(folder)
    assert found.round == (6 if "3" in name else 3)
    checkpoint.prune(folder, found.round)
    checkpoint.save(folder, state(6))
    checkpoint.save(folder, state(9))
    assert checkpoint.latest(folder).round == 9
    assert (folder / f"damaged-{name}" / "notes.txt").read_text() == "somebody's"


def test_a_failed_write_leaves_the_old_one_and_says_why(folder):
    (folder / "round-000009.safetensors").mkdir()
    with pytest.raises(RunError, match=r"writing .*round-000009.safetensors failed: Is a directory"):
        checkpoint.save(folder, state(9))
    assert checkpoint.latest(folder).round == 6
    assert not list(folder.glob("*.partial"))


class Malicious:
    """Whoever unpickles this runs a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_in_the_place_of_a_checkpoint_is_not_executed(folder, tmp_path):
    proof = tmp_path / "executed"
    poison = pickle.dumps(Malicious(proof))
    forge(folder / "round-000006.safetensors", folder / "round-000006.json", poison)
    assert checkpoint.latest(folder).round == 3
    (folder / "round-000006.json").write_bytes(poison)
    assert checkpoint.latest(folder).round == 3
    assert not proof.exists()
    pickle.loads(poison).close()
    assert proof.exists(), "the pickle was harmless: this test proves nothing"


def test_what_is_saved_is_json_and_safetensors(folder):
    for path in folder.glob("*.json"):
        assert set(json.loads(path.read_text())) == {"round", "sha256", "bytes", "values", "clients", "files"}
    for path in folder.glob("*.safetensors"):
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        assert header["server.theta"]["dtype"] == "F32"


def with_server(**tensors):
    return Checkpoint(2, {"theta0": torch.zeros(4), **{f"server.{k}": v for k, v in tensors.items()}}, {})


def test_a_list_of_clusters_may_have_grown():
    like = {"models": torch.zeros(1, 4), "part": torch.zeros(0)}
    found = checkpoint.server_state(with_server(models=torch.ones(3, 4), part=torch.ones(2)), torch.zeros(4), like)
    assert found["models"].shape == (3, 4) and found["part"].shape == (2,)


@pytest.mark.parametrize("shape", [(3,), (5,), (0,), (), (1, 4), (4, 1)])
def test_parameters_of_another_number_are_of_another_model(shape):
    with pytest.raises(RunError, match=r"its server.theta is float32 \(.*\), expected float32 \(4,\)"):
        checkpoint.server_state(with_server(theta=torch.zeros(shape)), torch.zeros(4), {"theta": torch.zeros(4)})


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (4,)])
def test_a_list_of_clusters_has_models_of_the_same_size_and_at_least_one(shape):
    with pytest.raises(RunError, match=r"expected float32 \(1, 4\)"):
        checkpoint.server_state(with_server(models=torch.zeros(shape)), torch.zeros(4), {"models": torch.zeros(1, 4)})
