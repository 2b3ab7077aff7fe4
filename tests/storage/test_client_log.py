"""Facts about the log of clients' rows: nothing is lost, little is written, and it does not grow for ever."""

import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from personafl.storage import checkpoint, client_log
from personafl.storage.checkpoint import Checkpoint
from personafl.storage.client_log import ClientLog, file_name

CLIENTS, WIDTH = 40, 5
ROW_BYTES = 4 * WIDTH + 8


class Run:
    """Clients whose rows are numbers, saved by checkpoints."""

    def __init__(self, folder):
        self.folder, self.round = folder, 0
        self.values = np.zeros(CLIENTS, np.float32)
        self.log = ClientLog(CLIENTS, ROW_BYTES)
        self.written = []

    def rows(self, ids):
        self.written += ids.tolist()
        return {"own": torch.from_numpy(self.values[ids])[:, None].expand(-1, WIDTH)}

    def put(self, ids, rows):
        self.values[ids] = rows["own"][:, 0].numpy()

    def save(self, ids, value):
        self.round += 1
        ids = np.array(ids, np.int64)
        self.values[ids] = value
        self.log.change(ids)
        self.written = []
        checkpoint.save(self.folder, Checkpoint(self.round, {"theta": torch.zeros(1)}, {}), self.log, self.rows)

    def resumed(self):
        found = checkpoint.latest(self.folder)
        other = Run(self.folder)
        other.round = found.round
        other.log.read(self.folder, found.clients, other.put)
        return other

    def sizes(self):
        return [len(load_file(path)["ids"]) for path in sorted(self.folder.glob("clients-*"))]


@pytest.fixture
def large(monkeypatch):
    """Logs of any size are treated as large ones."""
    monkeypatch.setattr(client_log, "WHOLE", 0)


cohorts = st.lists(st.lists(st.integers(0, CLIENTS - 1), unique=True, min_size=1, max_size=10), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(cohorts, st.integers(0, 11), st.sampled_from([0, 2**25]), st.sampled_from([1, 90, 10**6]))
def test_a_resumed_run_has_every_row_and_writes_the_same_files(tmp_path_factory, cohorts, stop, whole, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_log, "WHOLE", whole)
        patch.setattr(client_log, "AT_ONCE", at_once)
        straight, broken = (Run(tmp_path_factory.mktemp(name)) for name in ("straight", "broken"))
        for number, cohort in enumerate(cohorts, 1):
            straight.save(cohort, number)
            broken.save(cohort, number)
            if number == stop:
                broken = broken.resumed()
            assert np.array_equal(broken.resumed().values, straight.values)
    one, two = ({p.name: p.read_bytes() for p in run.folder.iterdir()} for run in (straight, broken))
    assert one == two


def test_a_checkpoint_writes_who_changed(tmp_path, large):
    run = Run(tmp_path)
    run.save(range(CLIENTS), 1)
    run.save([3, 30], 2)
    assert run.written == [3, 30]
    assert run.resumed().values[[2, 3, 30]].tolist() == [1, 2, 2]


def test_what_is_written_follows_the_cohort_and_the_files_stay_small(tmp_path, large):
    """Cohorts of 4 of 40 clients: in the long run less than 6 rows are written for 4 that changed."""
    run, draw = Run(tmp_path), np.random.default_rng(0)
    run.save(range(CLIENTS), 1)
    written = []
    for number in range(2, 80):
        run.save(draw.choice(CLIENTS, 4, replace=False), number)
        written.append(len(run.written))
        assert sum(run.log.files[round]["rows"] for round in run.log.files) <= 2 * CLIENTS
    assert np.mean(written[30:]) < 6
    assert sum(run.sizes()) < 2.5 * CLIENTS  # the files of two checkpoints, most of which they share
    assert np.array_equal(run.resumed().values, run.values)


def test_small_logs_are_one_file(tmp_path):
    run = Run(tmp_path)
    for number in range(1, 5):
        run.save([number, 20], number)
        assert list(run.log.files) == [number]
    assert run.sizes() == [4, 5]  # of the last two checkpoints


def test_files_that_a_kept_checkpoint_needs_are_not_removed(tmp_path, large):
    run = Run(tmp_path)
    run.save(range(CLIENTS), 1)
    for number in range(2, 6):
        run.save([number], number)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["round-000004.json", "round-000005.json"]
    assert sorted(path.name for path in tmp_path.glob("clients-*")) == [file_name(number) for number in range(1, 6)]
    assert not (tmp_path / "round-000001.safetensors").exists()


def test_damage_in_a_file_of_rows_is_noticed(tmp_path, large, caplog):
    run = Run(tmp_path)
    run.save(range(CLIENTS), 1)
    run.save([3], 2)
    (tmp_path / file_name(2)).write_bytes((tmp_path / file_name(2)).read_bytes()[:-1] + b"!")
    with caplog.at_level(logging.WARNING, "personafl"):
        assert checkpoint.latest(tmp_path).round == 1
    assert "clients-000002.safetensors does not match its checksum" in caplog.text
    assert checkpoint.latest(tmp_path, clients=False).round == 2


def test_files_of_a_killed_process_are_removed(tmp_path):
    run = Run(tmp_path)
    run.save([1], 1)
    (tmp_path / file_name(7)).write_bytes(b"whole, but no checkpoint names it")
    (tmp_path / f"{file_name(2)}.partial").write_bytes(b"half")
    run.save([2], 2)
    assert sorted(path.name for path in tmp_path.glob("clients-*")) == [file_name(1), file_name(2)]
    assert set(json.loads((tmp_path / "round-000002.json").read_text())["clients"]) == {"2"}
