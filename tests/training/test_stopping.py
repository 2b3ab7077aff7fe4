"""A run that is told to stop saves where it is, says how to go on, and lets nobody else into its folder until then."""

import os
import shlex
import signal
import subprocess

import pytest

from tests.training.killable import PERSONAFL, SETTINGS, assert_same, environment, files, write_config
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked processes")


@pytest.fixture(scope="module")
def whole(worker, tmp_path_factory):
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert worker.run({**SETTINGS, "seed": 3, "checkpoint_every": 5}, folder)[0] == 0
    return folder


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True)],
    ids=["SIGINT", "SIGTERM", "SIGTERM, with SIGINT ignored"],
)
def test_a_signal_saves_and_says_how_to_go_on(worker, whole, tmp_path, number, code, ignored):
    config, folder = write_config(tmp_path / "a config.toml", {**SETTINGS, "checkpoint_every": 5}), tmp_path / "run"
    command = ("run", config, "-s", "seed=3", "-s", "model.hidden=[8]", "--out", folder)
    ended, told = worker.command(*command, after=2, number=number, ignored=ignored)
    assert ended == code and "Traceback" not in told
    rounds = (folder / "rounds.jsonl").read_text().count("\n")
    assert rounds == 3 and (folder / "checkpoint" / "round-000003.json").exists()
    again = shlex.split(told.strip().splitlines()[-1].split("Continue with: ")[1])
    assert again[0] == "personafl" and again[-1] == "--resume"
    assert worker.command(*again[1:])[0] == 0
    assert_same(folder, {**files(whole), **leftover_checkpoints(folder, whole)})


@pytest.mark.parametrize("command", ["compare", pytest.param("demo", marks=pytest.mark.slow)])
def test_a_comparison_that_is_terminated_keeps_what_is_done(worker, tmp_path, command):
    folder = tmp_path / "runs"
    config = write_config(tmp_path / "config.toml", {**SETTINGS, "checkpoint_every": 0})
    words = [config, "-a", "fedavg,ditto", "--seeds", "1"] if command == "compare" else ["--rounds", "40"]
    ended, told = worker.command(command, *words, "--out", folder, after=2, number=signal.SIGTERM)
    assert ended == 143 and "Traceback" not in told
    assert f"Stopped; what is done is kept. Continue with: personafl {command}" in told
    assert list(folder.glob("*/checkpoint/round-*.json"))


def leftover_checkpoints(folder, whole):
    """A stopped run has a checkpoint where it was stopped, which may still be the last but one."""
    return {name: data for name, data in files(folder).items() if not (whole / name).exists() and "checkpoint/" in name}


def test_a_folder_belongs_to_one_process_until_it_stops(worker, tmp_path):
    """Here it is in a round that takes minutes: the second Ctrl-C does not wait for it."""
    settings = {**SETTINGS, "local": {"steps": 200_000}, "engine": {"name": "loop", "threads": 1}}
    config, folder = write_config(tmp_path / "config.toml", settings), tmp_path / "run"
    command = [*PERSONAFL, "run", str(config), "--out", str(folder)]
    first = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        until((folder / "run.toml").exists, first)
        second = worker.command("run", config, "--out", folder, "--resume")
        refusal = f"error: another process is training into {folder}: wait for it, or use another out (--out)\n"
        assert second == (2, refusal)
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert first.stderr.readline() == "warning: stopping after this round (Ctrl-C again to stop at once)\n"
        first.send_signal(signal.SIGINT)
        assert first.stderr.read().startswith("Stopped at once; the last checkpoint is kept. Continue with: personafl")
        assert first.wait() == 130
    finally:
        first.kill()
        first.communicate()
