"""Comparisons spread over a real Ray, on the loopback address: what comes out is what one process makes.

Runs are killed and stopped while they train; the folders say how far they were.
"""

import io
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from personafl.cli import main
from personafl.engines.machine import cores
from personafl.errors import ConfigError, RunError
from personafl.runs.watch import lock_held
from personafl.storage import checkpoint
from personafl.study import ray_launcher as sweep
from personafl.study.launch import run_plan
from personafl.study.plan import PlannedRun, plan
from personafl.study.progress import StudyProgress
from personafl.study.ray_launcher import on_ray
from personafl.training.events import Listener
from tests.study import test_plan

pytest.importorskip("ray", reason="needs Ray: pip install 'personafl[ray]'")

TABLES = test_plan.TABLES | {"engine": {"name": "stacked", "threads": 1}}
LONG = TABLES | {"rounds": 250, "eval_every": 0, "checkpoint_every": 50}


@pytest.fixture(scope="module", autouse=True)
def running_ray():
    """One Ray for all tests: `on_ray` takes the one that is there."""
    from personafl.backends.ray.start import connect

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else its processes wait for whatever else this machine does
        with connect():
            yield


@pytest.fixture(autouse=True)
def looking_often(monkeypatch):
    monkeypatch.setattr(sweep, "LOOK_EVERY", 0.02)


def spread(planned, folder, listeners=lambda job, reused: (), **settings):
    with on_ray(folder, **settings) as launcher:
        return run_plan(planned, folder, listeners, launcher)


def files(folder):
    """What runs left: everything but times and locks, byte for byte."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".timings" and path.name not in ("timings.jsonl", ".lock"):
            found[str(path.relative_to(folder))] = re.sub(rb"created = .*\n", b"", path.read_bytes())
    return found


def trainer_of(folder):
    """The process that holds a run's lock."""
    try:
        inode = str((folder / ".lock").stat().st_ino)
    except FileNotFoundError:
        return None
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next((int(words[-4]) for words in held if words[-3].split(":")[-1] == inode), None)


@contextmanager
def killing(comparison, name, times):
    """Kill the process that trains a run, once it has a round, and this many times."""
    killed = []

    def watch():
        while len(killed) < times and not over.wait(0.005):
            for rounds in comparison.glob(f"{name}-*/rounds.jsonl"):
                process = trainer_of(rounds.parent)
                if process not in (None, os.getpid(), *killed):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    over, thread = threading.Event(), threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory):
    """`separate` and `fedavg`, made here without an interruption."""
    folder = tmp_path_factory.mktemp("long")
    run_plan(plan(LONG, ["separate"], seeds=1), folder)
    return files(folder)


# --- the same as here


def test_runs_failures_and_choices_are_the_same_as_here_to_the_byte(tmp_path):
    tables = TABLES | {
        "methods": {"wild": {"algorithm": {"name": "fedprox", "mu": 0.0}, "local": {"lr": 9e37}}, "ditto": {}}
    }
    planned = plan(tables, seeds=2, tune=["ditto.lam=[0.1,1.0]"])
    one, many = run_plan(planned, tmp_path / "here"), spread(planned, tmp_path / "ray")
    assert len(files(tmp_path / "ray")) > 50 and files(tmp_path / "ray") == files(tmp_path / "here")
    assert [f[:2] for f in many.failures] == [f[:2] for f in one.failures] == [("wild", 3), ("wild", 4)]
    assert all("diverged" in why for _, _, why in many.failures)
    assert [s.chosen for s in many.searches] == [s.chosen for s in one.searches]
    assert {m: {s: r.path.name for s, r in runs.items()} for m, runs in many.methods.items()} == {
        m: {s: r.path.name for s, r in runs.items()} for m, runs in one.methods.items()
    }


def test_what_is_there_is_reused_and_no_more_run_at_once_than_allowed(tmp_path):
    planned = plan(TABLES | {"engine": "auto"}, ["separate"], seeds=1)
    asked, now, most = [], set(), []

    class Counts(Listener):
        def started(self, manifest, round):
            now.add(self)
            most.append(len(now))

        def ended(self):
            now.discard(self)

    def listeners(job, reused):
        asked.append((job.method, reused))
        return [Counts()]

    found = spread(planned, tmp_path, listeners, at_once=1)
    assert most == [1, 1] and not now
    for resolved in (runs[3].manifest["resolved"] for runs in found.methods.values()):
        assert resolved["threads"] == 1
        assert set(re.findall(r"with (\d+) threads", resolved["engine_reason"])) == {"1"}  # others were not tried
    spread(planned, tmp_path, listeners)
    assert asked == [("separate", False), ("fedavg", False), ("separate", True), ("fedavg", True)]
    assert not list(tmp_path.glob(".seen-*"))


def test_a_run_that_was_begun_here_keeps_its_threads(tmp_path):
    class Stops(Listener):
        def round_ended(self, record, seconds):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan(TABLES | {"engine": {"name": "stacked", "threads": 2}}, ["separate"], 1), tmp_path,
                 lambda job, reused: [Stops()])  # fmt: skip
    found = spread(plan(TABLES | {"engine": "stacked"}, ["separate"], 1), tmp_path)
    threads = {method: runs[3].manifest["resolved"]["threads"] for method, runs in found.methods.items()}
    assert threads == {"separate": min(2, cores()), "fedavg": 1}


# --- what goes wrong


@pytest.mark.slow
def test_a_run_whose_process_is_killed_goes_on_after_its_checkpoint(tmp_path, long_runs, caplog):
    with killing(tmp_path, "separate", 1) as killed:
        spread(plan(LONG, ["separate"], seeds=1), tmp_path)
    assert len(killed) == 1 and "separate with seed 3: its process died" in caplog.text
    assert files(tmp_path) == long_runs


@pytest.mark.slow
def test_killed_a_second_time_it_is_reported_and_the_others_are_there(tmp_path):
    with killing(tmp_path, "separate", 2) as killed:
        found = spread(plan(LONG, ["separate"], seeds=1), tmp_path)
    ((method, seed, why),) = found.failures
    assert len(killed) == 2 and (method, seed) == ("separate", 3) and why.startswith("its process died")
    assert found.methods["separate"] == {} and found.methods["fedavg"][3].complete


def test_ctrl_c_ends_the_rounds_with_checkpoints_and_the_same_command_goes_on(tmp_path, long_runs, monkeypatch, capsys):
    config, folder = tmp_path / "c.toml", tmp_path / "out"
    config.write_text(tomli_w.dumps(LONG | {"checkpoint_every": 0}))
    words = ["compare", str(config), "-a", "separate", "--seeds", "1", "--out", str(folder), "--on", "ray"]
    monkeypatch.setattr(sys, "argv", ["personafl", *words])

    def press():
        while not list(folder.glob("*/rounds.jsonl")):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert f"Continue with: personafl {' '.join(words)}" in capsys.readouterr().err
    runs = list(folder.iterdir())
    assert not any(lock_held(run) for run in runs)
    stopped_at = [found.round for run in runs if (found := checkpoint.latest(run / "checkpoint"))]
    assert stopped_at and min(stopped_at) < 250  # only Ctrl-C makes a checkpoint before the end here
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    theirs = {name: text for name, text in long_runs.items() if name.endswith((".parquet", "personal.safetensors"))}
    assert len(theirs) == 6 and theirs.items() <= files(folder).items()


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path):
    inside = os.open(tmp_path, os.O_RDONLY)
    try:
        # This path is another folder in every process, as a path on disks of their own is on every machine.
        with pytest.raises(RunError, match=r"does not see the files in .* a disk that all of them share"):
            spread(plan(TABLES, ["separate"], seeds=1), Path(f"/proc/self/fd/{inside}"))
    finally:
        os.close(inside)
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="at-once = 0: must be at least 1"):
        spread(plan(TABLES, ["separate"], seeds=1), tmp_path, at_once=0)
    wide = plan(TABLES, ["separate"], seeds=1, overrides=[f"engine.threads={cores() + 1}"])
    with pytest.raises(ConfigError, match=rf"engine.threads = {cores() + 1}: no machine .* more than {cores()} CPUs"):
        spread(wide, tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--on ray needs Ray.*pip install 'personafl\[ray\]'"):
        spread(plan(TABLES, ["separate"], seeds=1), tmp_path)


# --- the display


def test_every_run_that_goes_on_has_a_line_and_the_first_counts_those_that_are_over():
    planned = plan(TABLES, ["ditto"], seeds=1)
    text = io.StringIO()

    def shown():
        text.truncate(text.seek(0))
        progress._progress.refresh()
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())

    def listener(method, reused=False):
        (made,) = progress.listeners(PlannedRun(method, 3, planned.job(method, 3).config), reused)
        return made

    with StudyProgress(4, Console(file=text, force_terminal=True, width=120)) as progress:
        ditto, fedavg = listener("ditto"), listener("fedavg")
        ditto.started({"rounds": 3}, 0)
        fedavg.started({"rounds": 3}, 1)
        ditto.round_ended({"round": 2, "personal_accuracy": 0.75}, {})
        assert re.search(r"all runs.* 0/4.*\n.*ditto seed 3.* 2/3 accuracy 0.7500.*\n.*fedavg seed 3.* 1/3", shown())
        ditto.ended()
        assert "ditto" not in shown() and re.search(r"all runs.* 1/4", shown())
        listener("fedprox")  # fails before it starts
        listener("separate", reused=True)
        assert re.search(r"all runs.* 3/4", shown())
        fedavg.ended()
    piped = io.StringIO()
    with StudyProgress(1, Console(file=piped)) as progress:
        listener("ditto").started({"rounds": 3}, 0)
    assert piped.getvalue() == ""
