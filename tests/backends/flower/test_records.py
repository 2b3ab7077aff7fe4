"""What is on record: a chain of lines in which every change is found, at sites and at the operator."""

import json

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.removal import without_clients
from personafl.backends.flower.record_words import in_words
from personafl.backends.flower.records import Record, arrays
from personafl.backends.flower.signed_files import sign_models, verify_file
from personafl.errors import ConfigError, RunError
from personafl.files import write_tensors
from personafl.kernels.task import Task
from personafl.models import MLP, initialize
from personafl.settings import Local
from personafl.storage.chained_log import ChainedLog
from personafl.training.job_info import job_info
from tests.backends.flower import problem
from tests.backends.flower.grid import MemoryGrid, sites_of


def filled(folder, count=4):
    log = ChainedLog(folder / "record.jsonl")
    for number in range(count):
        log.add({"event": "trained", "round": number, "text": "é" * 20})
    return log


# --- the chain


def test_lines_are_read_as_they_were_written(tmp_path):
    assert [line["round"] for line in filled(tmp_path).lines()] == [0, 1, 2, 3]
    assert (tmp_path / "record.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_changed_or_taken_out_is_named(tmp_path):
    log = filled(tmp_path)
    whole = log.path.read_bytes().splitlines(keepends=True)
    for lines, named in (
        ([whole[0], whole[1].replace(b'"round": 1', b'"round": 7'), *whole[2:]], "line 2 of record.jsonl"),
        ([whole[0], *whole[2:]], "line 2 of record.jsonl"),
        (whole[:3], "record.jsonl has 3 lines, record.head knows of 4"),
        (whole[:2], "record.jsonl has 2 lines, record.head knows of 4"),
        ([*whole, whole[3]], "line 5 of record.jsonl"),
    ):
        log.path.write_bytes(b"".join(lines))
        with pytest.raises(RunError, match=named):
            log.lines()
    log.path.unlink()
    with pytest.raises(RunError, match=r"record.jsonl is gone"):
        log.lines()


def test_a_cut_log_is_not_written_on(tmp_path):
    """Only its end is looked at when a line is added, and that is enough for this."""
    log = filled(tmp_path)
    whole = log.path.read_bytes().splitlines(keepends=True)
    for lines in (whole[:3], whole[:1], [], [*whole, whole[3]]):
        log.path.write_bytes(b"".join(lines))
        with pytest.raises(RunError):
            log.add({"event": "trained"})
        assert log.path.read_bytes() == b"".join(lines)


def test_a_power_cut_between_a_line_and_its_head_or_within_a_line_costs_nothing(tmp_path):
    log = filled(tmp_path)
    head = log.head.read_bytes()
    log.add({"event": "trained", "round": 4})
    log.head.write_bytes(head)
    log.add({"event": "trained", "round": 5})
    with open(log.path, "ab") as file:
        file.write(b'{"event": "tra')
    log.add({"event": "trained", "round": 6})
    assert [line["round"] for line in log.lines()] == list(range(7))


def test_the_first_line_survives_a_power_cut_too(tmp_path):
    log = filled(tmp_path, 1)
    log.head.unlink()
    log.add({"event": "trained", "round": 1})
    assert [line["round"] for line in log.lines()] == [0, 1]


def test_lines_of_any_length(tmp_path):
    log = ChainedLog(tmp_path / "record.jsonl")
    for number in range(4):
        log.add({"round": number, "text": "a" * 100_000})
    assert [line["round"] for line in log.lines()] == [0, 1, 2, 3]


# --- what is on it


def test_a_run_is_on_the_records_of_its_sites(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path, problem.federation()))
    problem.flower(tmp_path / "operator", grid, "fedavg", rounds=1)
    lines = ChainedLog(tmp_path / "site-2" / "record.jsonl").lines()
    assert [line["event"] for line in lines] == ["introduced", "trained", "evaluated"]
    trained = lines[1]
    assert (trained["round"], trained["algorithm"], trained["model"]) == ("1", "fedavg", "mclr")
    assert set(trained["sent"]) == {"answer", "theta"} and trained["sent"]["theta"]["shape"] == [10]
    state = next((tmp_path / "site-2").glob("state/*"))
    assert trained["run"] == state.name
    assert "personal_loss" in lines[2]["sent"]["columns"]
    assert "theta (40 bytes, norm" in in_words(trained)


def test_a_refusal_is_on_record_with_its_reason(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path, problem.federation(), allow=["ditto"]))
    problem.flower(tmp_path / "operator", grid, "fedavg", rounds=1)
    (refused,) = [line for line in ChainedLog(tmp_path / "site-4" / "record.jsonl").lines() if line["asked"] == "train"]
    assert refused["event"] == "refused" and "not in its allow" in refused["reason"]


def test_no_value_of_an_array_is_on_record():
    said = json.dumps(arrays({"theta": torch.tensor([0.123456, 7.654321])}))
    assert "0.123456" not in said and "7.654321" not in said


def test_a_record_that_is_not_kept_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Record(None).note("joined")
    assert not list(tmp_path.iterdir())


# --- who leaves is forgotten


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(ALGORITHMS.plugins)))
def test_a_server_without_a_client_is_as_if_it_had_never_answered(name):
    """Everything that is kept by client is as in the beginning, and nothing of the others has changed."""
    import numpy as np

    task, local = Task(initialize(MLP(hidden=(3,)), (4,), 2, 0)), Local(lr=0.1, batch_size=4, steps=2)
    try:
        algorithm = ALGORITHMS[name]().prepare(job_info(task, 3, local, None))
    except Exception as error:
        pytest.skip(f"not for this model: {error}")
    fresh, longer = (algorithm.new_server(task.theta0, count) for count in (3, 4))
    kept = {key for key in fresh if fresh[key].shape != longer[key].shape}
    server = {key: value + 1 if value.is_floating_point() else value for key, value in fresh.items()}
    cleared = without_clients(algorithm, server, task.theta0, 3, np.array([1]))
    for key, value in cleared.items():
        expected = server[key].clone()
        if key in kept and value.dim() and value.shape[0] == 3:
            expected[1] = fresh[key][1]
            if value.dim() == 2 and value.shape == (3, 3) and longer[key].shape == (4, 4):
                expected[:, 1] = fresh[key][:, 1]
        assert torch.equal(value, expected), key
    by_client = {"fedamp": "models", "heurfedamp": "models", "mocha": "models", "fedfomo": "models", "fedpac": "heads"}
    assert by_client.get(name, next(iter(kept), None)) in (*kept, None)


# --- signed models


def test_a_model_that_was_changed_or_signed_by_another_is_refused(tmp_path):
    from personafl.backends.deploy.keys import make_key, write_private

    for name in ("north", "south"):
        private, public = make_key(name)
        write_private(tmp_path / f"{name}.key", private)
        (tmp_path / f"{name}.pub").write_bytes(public)
    model = tmp_path / "personal.safetensors"
    write_tensors(model, {"w": torch.ones(2)})
    sign_models(tmp_path, tmp_path / "north.key", "north")
    assert verify_file(model, tmp_path / "north.pub") == "north"
    with pytest.raises(ConfigError, match=r"is not signed with the key .*south.pub"):
        verify_file(model, tmp_path / "south.pub")
    write_tensors(model, {"w": torch.zeros(2)})
    with pytest.raises(ConfigError, match="is not as it was when north signed it"):
        verify_file(model, tmp_path / "north.pub")
    with pytest.raises(ConfigError, match=r"cannot read .*other.safetensors"):
        verify_file(tmp_path / "other.safetensors", tmp_path / "north.pub")
