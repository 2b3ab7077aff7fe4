"""A run that is told to stop saves where it is, says how to go on, and lets nobody else into its folder until then."""

import os
import shlex
import signal
import subprocess

import pytest

from tests.training.killable import PERSONAFL, SETTINGS, assert_same, command_line, environment, files, write_config
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked processes")


FIFTY = {**SETTINGS, "rounds": 50, "checkpoint_every": 40, "local": {"lr": 0.1, "steps": 40}}


@pytest.fixture(scope="module")
def whole(worker, tmp_path_factory):
    """Fifty rounds that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert worker.run({**FIFTY, "seed": 3}, folder)[0] == 0
    return folder


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [
        (signal.SIGINT, 130, False),
        pytest.param(signal.SIGTERM, 143, False, marks=pytest.mark.slow),  # as the next, but for SIGINT
        pytest.param(signal.SIGTERM, 143, True, id="SIGTERM, with SIGINT ignored"),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(whole, tmp_path, number, code, ignored):
    config, folder = write_config(tmp_path / "a config.toml", FIFTY), tmp_path / "run"
    rounds = folder / "rounds.jsonl"
    process = subprocess.Popen(
        [*PERSONAFL, "run", str(config), "-s", "seed=3", "-s", "model.hidden=[16]", "--out", str(folder)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler),
    )  # fmt: skip
    until(lambda: rounds.exists() and rounds.read_text().count("\n") >= 2, process, pause=0.002)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == code and "Traceback" not in told
    done = rounds.read_text().count("\n")
    assert done < 40 and (folder / "checkpoint" / f"round-{done:06d}.json").exists()
    again = shlex.split(told.strip().splitlines()[-1].split("Continue with: ")[1])
    assert again[0] == "personafl" and again[-1] == "--resume"
    resumed = command_line(*again[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert_same(folder, {**files(whole), **leftover_checkpoints(folder, whole)})


@pytest.mark.parametrize("command", ["compare", pytest.param("demo", marks=pytest.mark.slow)])
def test_a_comparison_that_is_terminated_keeps_what_is_done(tmp_path, command):
    folder = tmp_path / "runs"
    config = write_config(tmp_path / "config.toml", {**SETTINGS, "rounds": 400, "checkpoint_every": 0})
    words = [str(config), "-a", "fedavg,ditto", "--seeds", "1"] if command == "compare" else ["--rounds", "4000"]
    process = subprocess.Popen(
        [*PERSONAFL, command, *words, "--out", str(folder)], env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: any(path.stat().st_size for path in folder.glob("*/rounds.jsonl")), process)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143 and "Traceback" not in told
    assert f"Stopped; what is done is kept. Continue with: personafl {command}" in told
    assert list(folder.glob("*/checkpoint/round-*.json"))


def leftover_checkpoints(folder, whole):
    """A stopped run has a checkpoint where it was stopped, which may still be the last but one."""
    return {name: data for name, data in files(folder).items() if not (whole / name).exists() and "checkpoint/" in name}


def test_a_folder_belongs_to_one_process_until_it_stops(tmp_path):
    """Here it is in a round that takes minutes: the second Ctrl-C does not wait for it."""
    settings = {**SETTINGS, "local": {"steps": 200_000}, "engine": {"name": "loop", "threads": 1}}
    config, folder = write_config(tmp_path / "config.toml", settings), tmp_path / "run"
    command = [*PERSONAFL, "run", str(config), "--out", str(folder)]
    first = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        until((folder / "run.toml").exists, first)
        second = command_line("run", config, "--out", folder, "--resume")
        assert second.returncode == 2
        assert second.stderr == f"error: another process is training into {folder}: wait for it, or use --out\n"
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert first.stderr.readline() == "warning: stopping after this round (Ctrl-C again to stop at once)\n"
        first.send_signal(signal.SIGINT)
        assert first.stderr.read().startswith("Stopped at once; the last checkpoint is kept. Continue with: personafl")
        assert first.wait() == 130
    finally:
        first.kill()
        first.communicate()
