"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from personafl.algorithms import ALGORITHMS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are killed in forked processes")

PERSONAFL = (sys.executable, "-c", "from personafl.cli import main; main()")
SETTINGS = {
    "rounds": 12,
    "activity": 0.5,
    "eval_every": 2,
    "checkpoint_every": 3,
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.1, "steps": 5, "momentum": 0.9},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "stacked", "threads": 1},
}
# What differs between two runs of the same config: when they ran.
OF_THE_MOMENT = ("run.toml", "timings.jsonl", ".lock", ".timings")


# --- runs in processes that can be killed


class Worker:
    """A process that forks a child for each run, which is much faster than starting Python anew."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def run(self, settings, out, operation=None, seconds=None, log=False):
        """Train with --resume; killed before its n-th operation on a file, or after some seconds.

        With `log`, checkpoints share files and clients' states are mapped, as in large runs. Gives how the process
        ended (-9: killed) and the operations, where it lived to tell them.
        """
        job = {"settings": settings, "out": str(out), "operation": operation, "seconds": seconds, "log": log}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["ended"], answer["operations"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve():
    """What a worker does: a line on standard input is a run, a line on standard output is how it ended."""
    import sklearn.datasets  # noqa: F401  (imported once, not in every child)
    import torch

    import personafl.jobs  # noqa: F401

    torch.set_num_threads(1)  # a process with torch threads cannot be forked
    for line in sys.stdin:
        job = json.loads(line)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            train_and_exit(job, send)
        os.close(send)
        if job["seconds"] is not None:
            time.sleep(job["seconds"])
            os.kill(child, signal.SIGKILL)
        with open(receive) as pipe:
            operations = json.loads(pipe.read() or "[]")
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"ended": ended, "operations": operations}), flush=True)


def train_and_exit(job, send):
    from personafl.config import parse
    from personafl.jobs import train_config
    from personafl.storage import client_log

    if job["log"]:
        client_log.WHOLE = 0
        job["settings"]["engine"]["state_memory"] = 0
    operations = []

    def before_operation(event, arguments):
        """Python tells this before it opens, renames, makes or removes anything."""
        if event == "open" and not str(arguments[0]).startswith(job["out"]):
            return
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            if len(operations) == job["operation"]:
                os.kill(os.getpid(), signal.SIGKILL)
            operations.append(f"{event} {str(arguments[0]).removeprefix(job['out'] + '/')}")

    sys.addaudithook(before_operation)
    train_config(parse(job["settings"]), job["out"], resume=True)
    with open(send, "w") as pipe:
        json.dump(operations, pipe)
    os._exit(0)


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def write_config(path, settings):
    import tomli_w

    path.write_text(tomli_w.dumps(settings))
    return path


def command_line(*arguments):
    return subprocess.run([*PERSONAFL, *map(str, arguments)], env=environment(), capture_output=True, text=True)


def files(folder):
    """Every file of a run, by name, without what tells when it ran."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.endswith(OF_THE_MOMENT)}


def assert_same(folder, expected):
    found = files(folder)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files of a run of the command line that nothing disturbed."""
    folder = tmp_path_factory.mktemp("expected")
    done = command_line("run", write_config(folder / "config.toml", SETTINGS), "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    found = files(folder / "run")
    assert {"rounds.jsonl", "clients.parquet", "models/global.safetensors", "models/personal.safetensors"} <= set(found)
    assert {"checkpoint/round-000009.json", "checkpoint/round-000012.safetensors"} <= set(found)
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
        "an evaluation is half written": r"os.rename clients.parts/round-000008.parquet.partial",
        "clients' rows are half written": r"open checkpoint/clients-000006.safetensors.partial",
        "clients' rows have no checkpoint yet": r"open checkpoint/round-000006.safetensors.partial",
        "an old checkpoint's rows are about to go": r"os.remove .*checkpoint/clients-000003.safetensors",
        "a checkpoint's data is half written": r"open checkpoint/round-000006.safetensors.partial",
        "a checkpoint's data has no checksum yet": r"open checkpoint/round-000006.json.partial",
        "a checkpoint is whole but for its name": r"os.rename checkpoint/round-000006.json.partial",
        "an old checkpoint lost its first file": r"os.remove .*checkpoint/round-000003.safetensors",
        "the last checkpoint is half written": r"os.rename checkpoint/round-000012.safetensors.partial",
        "one of two models is written": r"open models/personal.safetensors.partial",
        "evaluations are being merged": r"os.rename clients.parquet.partial",
        "evaluations are merged, checksums not noted": r"open run.toml.partial",
        "evaluations are merged, parts still there": r"os.rename clients.parts",
        "half of the parts are deleted": r"os.remove round-000006.parquet",
    }
    for number, (moment, pattern) in enumerate(moments.items()):
        found = [i for i, operation in enumerate(operations) if re.fullmatch(pattern, operation)]
        assert found, f"{moment}: no {pattern} among {operations}"
        folder = tmp_path / f"run-{number}"
        assert worker.run(SETTINGS, folder, operation=found[len(found) // 2])[0] == -signal.SIGKILL, moment
        assert worker.run(SETTINGS, folder)[0] == 0, moment
        assert_same(folder, expected)


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
    done = command_line("run", config, "--out", tmp_path / "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "run", expected)


def test_killed_while_checkpoints_share_files(worker, tmp_path):
    """As those of large runs do."""
    kill_while_logging(worker, tmp_path, every=9)


@pytest.mark.slow
def test_killed_before_every_operation_while_checkpoints_share_files(worker, tmp_path):
    kill_while_logging(worker, tmp_path, every=1)


def kill_while_logging(worker, tmp_path, every):
    settings = {**SETTINGS, "checkpoint_every": 1, "activity": 0.2, "eval_every": 0, "algorithm": {"name": "ditto"}}
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
    "algorithm", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
def test_other_algorithms_survive_too(worker, algorithm, tmp_path):
    settings = {**SETTINGS, "algorithm": {"name": algorithm}}
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


# --- extended, stopped, refused


def test_a_longer_run_goes_on_from_a_shorter_one(worker, expected, tmp_path):
    """Models and records are those of the long run, but for the evaluation that ended the short one."""
    folder = tmp_path / "run"
    for rounds in (5, 12):
        assert worker.run({**SETTINGS, "rounds": rounds}, folder)[0] == 0
    found = files(folder)
    for name in ("models/global.safetensors", "models/personal.safetensors", "checkpoint/round-000012.safetensors"):
        assert found[name] == expected[name]
    long = [json.loads(line) for line in expected["rounds.jsonl"].splitlines()]
    extended = [json.loads(line) for line in found["rounds.jsonl"].splitlines()]
    assert "personal_accuracy" in extended[4] and "personal_accuracy" not in long[4]
    extended[4] = {key: extended[4][key] for key in long[4]}
    assert extended == long


def wait_for(condition, process):
    """How long is the test's own limit. (Not tests/waiting.py, as this file is also run as a program.)"""
    while not condition():
        assert process.poll() is None
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGTERM, 143, False),
        pytest.param(signal.SIGTERM, 143, True, id="SIGTERM, with SIGINT ignored"),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(worker, tmp_path, number, code, ignored):
    settings = {**SETTINGS, "rounds": 50, "checkpoint_every": 40, "local": {"lr": 0.1, "steps": 40}}
    worker.run({**settings, "seed": 3}, tmp_path / "whole")
    config, folder = write_config(tmp_path / "a config.toml", settings), tmp_path / "run"
    rounds = folder / "rounds.jsonl"
    process = subprocess.Popen(
        [*PERSONAFL, "run", str(config), "-s", "seed=3", "-s", "model.hidden=[16]", "--out", str(folder)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler),
    )  # fmt: skip
    wait_for(lambda: rounds.exists() and rounds.read_text().count("\n") >= 2, process)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == code and "Traceback" not in told
    done = rounds.read_text().count("\n")
    assert done < 40 and (folder / "checkpoint" / f"round-{done:06d}.json").exists()
    again = shlex.split(told.strip().splitlines()[-1].split("Continue with: ")[1])
    assert again[0] == "personafl" and again[-1] == "--resume"
    resumed = command_line(*again[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert_same(folder, {**files(tmp_path / "whole"), **leftover_checkpoints(folder, tmp_path / "whole")})


@pytest.mark.parametrize("command", ["compare", "demo"])
def test_a_comparison_that_is_terminated_keeps_what_is_done(tmp_path, command):
    folder = tmp_path / "runs"
    config = write_config(tmp_path / "config.toml", {**SETTINGS, "rounds": 400, "checkpoint_every": 0})
    words = [str(config), "-a", "fedavg,ditto", "--seeds", "1"] if command == "compare" else ["--rounds", "4000"]
    process = subprocess.Popen(
        [*PERSONAFL, command, *words, "--out", str(folder)], env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: any(path.stat().st_size for path in folder.glob("*/rounds.jsonl")), process)
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
        wait_for((folder / "run.toml").exists, first)
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


if __name__ == "__main__":
    serve()
