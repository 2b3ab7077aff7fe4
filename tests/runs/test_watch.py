"""A run is shown while it goes on, said to be stopped when it is, and never notices."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from personafl.errors import RunError
from personafl.runs import watch
from personafl.runs.watch import Lines, Watch, WatchedRun, lock_held, sparkline
from personafl.storage.folder import RunFolder
from personafl.training.events import RunFiles

MANIFEST = {
    "seed": 0,
    "rounds": 4,
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
    "resolved": {"clients": 5, "fingerprint": "0", "loss": "mse", "parameters": 3},
}
COMMAND = (sys.executable, "-c", "from personafl.cli import main; main()")


# --- runs to watch


class Paced:
    """A real run in a process of its own, that takes a round for each line it is sent."""

    def __init__(self, folder):
        self.folder = RunFolder(Path(folder))
        self.process = subprocess.Popen([sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, text=True)

    def go_on(self, rounds):
        self.process.stdin.write("\n" * rounds)
        self.process.stdin.flush()

    def wait_for(self, round):
        while len(self.folder.timings()) < round:
            assert self.process.poll() is None
            time.sleep(0.02)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


def train_at_a_pace(folder):
    import torch

    import personafl as pf

    class Pace(pf.Listener):
        def round_ended(self, record, seconds):
            sys.stdin.readline()

    torch.set_num_threads(1)
    fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    model = torch.nn.Linear(64, 10)
    pf.train(
        fed, model, rounds=6, eval_every=2, checkpoint_every=2, engine="stacked", threads=1, out=folder,
        progress=False, listeners=[Pace()],
    )  # fmt: skip


def record(round, **more):
    return {
        "round": round, "active": 5, "failed": [], "lr": 0.1, "steps": 3.0, "bytes_up": 10, "bytes_down": 10, **more,
    }  # fmt: skip


def write_rounds(path, rounds, seconds=0.5):
    """What a run leaves in its folder as it goes on, by the code that runs use."""
    folder = RunFolder(Path(path))
    if not folder.exists:
        folder.create(MANIFEST)
    for round in rounds:
        RunFiles(folder).round_ended(record(round, personal_accuracy=round / 10), {"round": seconds})
    return folder


def age(path, seconds):
    for file in (path, *path.rglob("*")):
        os.utime(file, (time.time() - seconds,) * 2)


@pytest.fixture
def run_folder(tmp_path):
    """A run that was taken through two of four rounds, by nobody any more."""
    with RunFolder(tmp_path / "run").lock():
        write_rounds(tmp_path / "run", (1, 2))
    age(tmp_path / "run", 3600)
    return tmp_path / "run"


def look(path):
    run = WatchedRun(path)
    run.look()
    return run


needs_list_of_locks = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system keeps no list of locks")


# --- is it alive?


@needs_list_of_locks
def test_a_run_goes_on_while_its_lock_is_held_however_long_it_is_silent(run_folder):
    assert look(run_folder).state == "stopped"
    with RunFolder(run_folder).lock():
        age(run_folder, 3600)
        assert lock_held(run_folder) and look(run_folder).state == "going on"
    age(run_folder, 3600)
    assert not lock_held(run_folder) and look(run_folder).state == "stopped"


@needs_list_of_locks
def test_a_folder_without_run_toml_is_starting_while_it_is_locked(tmp_path):
    with RunFolder(tmp_path / "run").lock():
        age(tmp_path / "run", 3600)
        watched = Watch([tmp_path / "run"])
        assert [run.state for run in watched.look()] == ["starting"] and not watched.over
    age(tmp_path / "run", 3600)
    assert [run.state for run in watched.look()] == ["stopped"] and watched.over and not watched.finished


@pytest.mark.parametrize(
    ("seconds", "silent", "state"),
    [(0.5, 9, "going on"), (0.5, 12, "stopped"), (20, 55, "going on"), (20, 65, "stopped")],
)
def test_where_locks_are_not_seen_silence_decides(tmp_path, monkeypatch, seconds, silent, state):
    """As on another machine: three rounds' time, and ten seconds at least."""
    monkeypatch.setattr(watch, "lock_held", lambda path: False)
    write_rounds(tmp_path / "run", (1, 2), seconds)
    age(tmp_path / "run", silent)
    assert look(tmp_path / "run").state == state


def test_looking_never_turns_a_run_away_nor_changes_its_folder(run_folder):
    before = {path: path.stat() for path in (run_folder, *run_folder.rglob("*"))}
    done = threading.Event()

    def keep_looking():
        while not done.is_set():
            Watch([run_folder]).look()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        for _ in range(300):
            with RunFolder(run_folder).lock():
                pass
    finally:
        done.set()
        thread.join()
    after = {path: path.stat() for path in (run_folder, *run_folder.rglob("*"))}
    assert {p: (s.st_mtime_ns, s.st_size) for p, s in before.items()} == {
        p: (s.st_mtime_ns, s.st_size) for p, s in after.items()
    }


# --- what is new


def test_only_what_is_new_is_read(tmp_path):
    path = tmp_path / "rounds.jsonl"
    lines = Lines(path, dict[str, int])
    assert lines.new() == (True, [])
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert lines.new() == (True, [{"round": 1}, {"round": 2}])
    assert lines.new() == (False, [])
    with path.open("a") as file:
        file.write('nd": 3}\n')
    assert lines.new() == (False, [{"round": 3}])
    (tmp_path / "other").write_text('{"round": 1}\nnot json\n{"round": 2}\n')
    os.replace(tmp_path / "other", path)
    assert lines.new() == (True, [{"round": 1}, {"round": 2}])


def test_a_file_that_is_a_link_to_itself_is_named(tmp_path):
    path = tmp_path / "timings.jsonl"
    path.symlink_to(path)
    with pytest.raises(RunError, match=r"timings.jsonl cannot be read: .*symbolic links"):
        Lines(path, dict[str, float]).new()


def test_rounds_that_a_resumed_run_makes_again_are_told_again(tmp_path):
    folder = write_rounds(tmp_path / "run", (1, 2, 3))
    run = look(tmp_path / "run")
    assert [r["round"] for r in run.news()] == [1, 2, 3] and run.news() == []
    folder.rewind(2)
    run.look()
    assert run.round == 2 and run.news() == []
    write_rounds(tmp_path / "run", (3, 4))
    run.look()
    assert [r["round"] for r in run.news()] == [3, 4]


def test_a_round_is_told_with_its_seconds(tmp_path):
    """They are written a moment later; if they never are, because the run was killed, it is told without."""
    folder = write_rounds(tmp_path / "run", (1,))
    folder.append("rounds.jsonl", record(2))
    run = look(tmp_path / "run")
    assert [r["round"] for r in run.news()] == [1]
    folder.append("timings.jsonl", {"round": 2, "round_seconds": 0.25})
    run.look()
    assert [(r["round"], r["round_seconds"]) for r in run.news()] == [(2, 0.25)]
    folder.append("rounds.jsonl", record(3))
    age(tmp_path / "run", 3600)
    run.look()
    assert [r["round"] for r in run.news()] == [3]


def test_what_is_left_follows_from_the_recent_rounds(run_folder):
    run = look(run_folder)
    assert run.seconds_per_round == 0.5 and run.left.total_seconds() == 1
    assert run.curve("personal") == [0.1, 0.2] and run.curve("global") == []


def test_a_sparkline_shows_lowest_and_highest():
    assert sparkline([0.0, 1.0, 0.5, float("nan")]) == "▁█▅"
    assert sparkline([1.0]) == "" and sparkline([3.0, 3.0]) == "▁▁"
    assert len(sparkline(range(100), width=8)) == 8


# --- folders of runs


def test_a_comparison_is_over_when_its_summary_is_written(tmp_path):
    runs = [tmp_path / "ditto-0-0a0a0a0a", tmp_path / "fedavg-0-0b0b0b0b"]
    finish(write_rounds(runs[0], (1, 2, 3, 4)))
    watched = Watch([tmp_path])
    assert [run.state for run in watched.look()] == ["finished"] and not watched.over  # the next may come
    finish(write_rounds(runs[1], (1, 2, 3, 4)))
    assert sorted(run.path for run in watched.look()) == runs and not watched.over
    (tmp_path / "comparison.json").write_text("{}")
    watched.look()
    assert watched.over and watched.finished


def test_a_comparison_that_was_left_alone_is_over_too(tmp_path):
    finish(write_rounds(tmp_path / "ditto-0-0a0a0a0a", (1, 2, 3, 4)))
    write_rounds(tmp_path / "fedavg-0-0b0b0b0b", (1, 2))
    age(tmp_path, 3600)
    done = CliRunner().invoke(app(), ["watch", str(tmp_path)])
    assert done.exit_code == 1
    assert "fedavg-0-0b0b0b0b has stopped after round 2 of 4. Give the command again that made it" in done.stderr
    assert f"{tmp_path / 'ditto-0-0a0a0a0a'}: finished\n" in done.stdout


def finish(folder):
    (folder.path / "models").mkdir()
    (folder.path / "models" / "personal.safetensors").write_bytes(b"")


def app():
    from personafl.cli import app

    return app


# --- the command


def test_what_holds_no_run_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="holds no run: name a run folder"):
            Watch([path])


def test_a_stopped_run_is_said_to_be_and_how_to_resume(run_folder):
    done = CliRunner().invoke(app(), ["watch", str(run_folder)])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1:] == [
        f"{run_folder}: round 2 of 4, 0.5 s, personalized accuracy 0.2000",
        f"{run_folder}: stopped",
    ]
    assert f"personafl run CONFIG.toml --out {run_folder} --resume" in done.stderr


def test_json_has_no_nan(run_folder):
    RunFolder(run_folder).append("rounds.jsonl", record(3, personal_loss=float("nan"), failed=["anna"]))
    age(run_folder, 3600)
    lines = CliRunner().invoke(app(), ["watch", str(run_folder), "--json"]).stdout.splitlines()
    told = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [line.get("round") for line in told] == [1, 2, 3, None]
    assert told[2]["personal_loss"] is None and told[2]["failed"] == ["anna"]
    assert told[3] == {"run": str(run_folder), "state": "stopped"}


@needs_list_of_locks
def test_a_real_run_watched_live(tmp_path):
    """By two at once: line by line, and on a terminal, which Ctrl-C leaves without harm to the run."""
    run = Paced(tmp_path / "run")
    watchers = []
    try:
        run.wait_for(1)
        run.go_on(2)
        run.wait_for(3)
        command = (*COMMAND, "watch", str(tmp_path / "run"), "--every", "0.1")
        lines = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        inner, outer = pty.openpty()
        size = {**os.environ, "COLUMNS": "200", "LINES": "24", "TERM": "xterm"}
        screen = subprocess.Popen(command, stdin=outer, stdout=outer, stderr=outer, env=size)
        os.close(outer)
        watchers += [lines, screen]

        for round in (1, 2, 3):
            assert lines.stdout.readline().startswith(f"{run.folder.path}: round {round} of 6, ")
        assert "going on" in (shown := read_until(inner, "left")) and "3 of 6" in shown and "fedavg" in shown
        run.go_on(1)
        assert "round 4 of 6" in (line := lines.stdout.readline()) and "personalized accuracy 0." in line
        assert run.process.poll() is None, "the fourth round was told while the run went on"
        read_until(inner, "4 of 6")
        screen.send_signal(signal.SIGINT)
        read_until(inner, "the runs go on")
        assert screen.wait() == 130

        run.go_on(3)
        assert run.process.wait() == 0
        out, err = lines.communicate()
        assert lines.returncode == 0 and out.splitlines()[-1] == f"{run.folder.path}: finished" and err == ""
        os.close(inner)
    finally:
        for process in (*watchers, run.process):
            process.kill()
            process.wait()
        run.process.stdin.close()


@needs_list_of_locks
def test_a_run_that_is_killed_while_it_is_watched(tmp_path):
    run = Paced(tmp_path / "run")
    try:
        run.wait_for(1)
        run.go_on(1)
        run.wait_for(2)
        watched = Watch([tmp_path / "run"])
        age(tmp_path / "run", 3600)
        assert watched.look()[0].state == "going on" and not watched.over
    finally:
        run.end()
    assert watched.look()[0].state == "stopped" and watched.over and not watched.finished


def read_until(handle, words):
    text = ""
    while words not in text:
        text += os.read(handle, 4096).decode()
    return text


if __name__ == "__main__":
    train_at_a_pace(sys.argv[1])
