"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

import itertools
import json
import os
import random
import re
import signal
import time

import pytest

from tests.archetypes import FOR_ANY_MODEL, SHORT_GRID
from tests.training.killable import SETTINGS, assert_same, files, write_config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked processes")


@pytest.fixture(scope="module")
def expected(worker, tmp_path_factory):
    """The files of a run of the command line that nothing disturbed."""
    folder = tmp_path_factory.mktemp("expected")
    config = write_config(folder / "config.toml", SETTINGS)
    assert worker.command("run", config, "--out", folder / "run") == (0, "")
    found = files(folder / "run")
    assert {"rounds.jsonl", "clients.parquet", "models/global.safetensors", "models/personal.safetensors"} <= set(found)
    assert {"checkpoint/round-000006.json", "checkpoint/round-000008.safetensors"} <= set(found)
    return found


@pytest.fixture(scope="module")
def operations(worker, expected, tmp_path_factory):
    """What a run does to its files, in order."""
    folder = tmp_path_factory.mktemp("operations") / "run"
    ended, operations = worker.run(SETTINGS, folder)
    assert ended == 0
    assert_same(folder, expected)
    return operations


# --- killed


def test_killed_while_writing(worker, operations, expected, tmp_path):
    """The moments at which a careless program would lose something."""
    moments = {
        "before the settings are there": r"os.rename run.toml.partial",
        "in the middle of the rounds": r"open rounds.jsonl",
        "an evaluation is half written": r"os.rename clients.parts/round-000006.parquet.partial",
        "clients' rows are half written": r"open checkpoint/clients-000004.safetensors.partial",
        "clients' rows have no checkpoint yet": r"open checkpoint/round-000004.safetensors.partial",
        "an old checkpoint's rows are about to go": r"os.remove .*checkpoint/clients-000002.safetensors",
        "a checkpoint's data has no checksum yet": r"open checkpoint/round-000004.json.partial",
        "a checkpoint is whole but for its name": r"os.rename checkpoint/round-000004.json.partial",
        "an old checkpoint lost its first file": r"os.remove .*checkpoint/round-000002.safetensors",
        "the last checkpoint is half written": r"os.rename checkpoint/round-000008.safetensors.partial",
        "one of two models is written": r"open models/personal.safetensors.partial",
        "evaluations are being merged": r"os.rename clients.parquet.partial",
        "evaluations are merged, checksums not noted": r"open run.toml.partial",
        "evaluations are merged, parts still there": r"os.rename clients.parts",
        "half of the parts are deleted": r"os.remove round-000004.parquet",
    }
    for number, (moment, pattern) in enumerate(moments.items()):
        found = [i for i, operation in enumerate(operations) if re.fullmatch(pattern, operation)]
        assert found, f"{moment}: no {pattern} among {operations}"
        folder = tmp_path / f"run-{number}"
        assert worker.run(SETTINGS, folder, operation=found[len(found) // 2])[0] == -signal.SIGKILL, moment
        assert worker.run(SETTINGS, folder)[0] == 0, moment
        assert_same(folder, expected)


@pytest.mark.slow
def test_killed_again_and_again(worker, operations, expected, tmp_path):
    """Each life ends a little later than the one before, until one reaches the end."""
    folder = tmp_path / "run"
    for lives in itertools.count(1):
        ended, _ = worker.run(SETTINGS, folder, operation=16 + 3 * lives)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL and lives < len(operations)
    assert lives > 5
    assert_same(folder, expected)


@pytest.mark.slow
def test_killed_while_resuming_a_finished_run(worker, expected, tmp_path):
    folder = tmp_path / "run"
    worker.run(SETTINGS, folder)
    _, operations = worker.run(SETTINGS, folder)
    assert_same(folder, expected)
    ends = [worker.run(SETTINGS, folder, operation=moment)[0] for moment in range(0, len(operations), 4)]
    assert ends.count(-signal.SIGKILL) > len(ends) // 2
    assert worker.run(SETTINGS, folder)[0] == 0
    assert_same(folder, expected)


def test_the_command_line_resumes_what_was_killed(worker, operations, expected, tmp_path):
    worker.run(SETTINGS, tmp_path / "run", operation=2 * len(operations) // 3)
    config = write_config(tmp_path / "config.toml", SETTINGS)
    assert worker.command("run", config, "--out", tmp_path / "run", "--resume")[0] == 0
    assert_same(tmp_path / "run", expected)


def test_killed_while_checkpoints_share_files(worker, tmp_path):
    """As those of large runs do."""
    kill_while_logging(worker, tmp_path, every=47)


@pytest.mark.slow
def test_killed_before_every_operation_while_checkpoints_share_files(worker, tmp_path):
    kill_while_logging(worker, tmp_path, every=1)


def kill_while_logging(worker, tmp_path, every):
    settings = {**SETTINGS, "rounds": 12, "checkpoint_every": 1, "activity": 0.25, "eval_every": 0}
    settings |= {"partition": {**SETTINGS["partition"], "clients": 10}, "algorithm": {"name": "ditto"}}
    ended, operations = worker.run(settings, tmp_path / "whole", log=True)
    assert ended == 0
    expected = files(tmp_path / "whole")
    assert sum(name.startswith("checkpoint/clients-") for name in expected) > 4
    for moment in range(20, len(operations), every):
        folder = tmp_path / f"run-{moment}"
        assert worker.run(settings, folder, operation=moment, log=True)[0] == -signal.SIGKILL
        assert worker.run(settings, folder, log=True)[0] == 0
        assert_same(folder, expected)
    worker.run(settings, tmp_path / "small")  # nothing but the checkpoints depends on how they are kept
    for name, content in files(tmp_path / "small").items():
        assert name.startswith("checkpoint/") or content == expected[name], name


QUICK = ("separate", "fedprox-ft", "scaffold", "persfl")


@pytest.mark.parametrize(
    "algorithm", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FOR_ANY_MODEL]
)
def test_other_algorithms_survive_too(worker, algorithm, tmp_path):
    settings = {**SETTINGS, "algorithm": {"name": algorithm}}
    if algorithm.startswith("persfl"):
        settings["algorithm"] |= SHORT_GRID
    if algorithm == "scaffold":  # refuses momentum
        settings["local"] = {**SETTINGS["local"], "momentum": 0.0}
    _, operations = worker.run(settings, tmp_path / "whole")
    for share in (0.4, 0.5):  # what is left after the first is short
        assert worker.run(settings, tmp_path / "run", operation=int(share * len(operations)))[0] == -signal.SIGKILL
    assert worker.run(settings, tmp_path / "run")[0] == 0
    assert_same(tmp_path / "run", files(tmp_path / "whole"))


@pytest.mark.slow
def test_killed_before_every_operation(worker, operations, expected, tmp_path):
    for moment in range(len(operations)):
        folder = tmp_path / f"run-{moment}"
        assert worker.run(SETTINGS, folder, operation=moment)[0] == -signal.SIGKILL
        assert worker.run(SETTINGS, folder)[0] == 0
        assert_same(folder, expected)


@pytest.mark.slow
def test_killed_at_random_moments(worker, expected, tmp_path):
    """By the clock, so that also a write, a fsync or a matrix product is cut in two."""
    begun = time.monotonic()
    worker.run(SETTINGS, tmp_path / "whole")
    life = time.monotonic() - begun
    draw = random.Random(0)
    killed = 0
    for number in range(100):
        folder = tmp_path / f"run-{number}"
        for _ in range(draw.choice((1, 1, 2, 3))):
            killed += worker.run(SETTINGS, folder, seconds=draw.uniform(0, life))[0] == -signal.SIGKILL
        assert worker.run(SETTINGS, folder)[0] == 0
        assert_same(folder, expected)
    assert killed > 80


# --- extended


def test_a_longer_run_goes_on_from_a_shorter_one(worker, expected, tmp_path):
    """Models and records are those of the long run, but for the evaluation that ended the short one."""
    folder = tmp_path / "run"
    for rounds in (3, 8):
        assert worker.run({**SETTINGS, "rounds": rounds}, folder)[0] == 0
    found = files(folder)
    for name in ("models/global.safetensors", "models/personal.safetensors", "checkpoint/round-000008.safetensors"):
        assert found[name] == expected[name]
    long = [json.loads(line) for line in expected["rounds.jsonl"].splitlines()]
    extended = [json.loads(line) for line in found["rounds.jsonl"].splitlines()]
    assert "personal_accuracy" in extended[2] and "personal_accuracy" not in long[2]
    extended[2] = {key: extended[2][key] for key in long[2]}
    assert extended == long
