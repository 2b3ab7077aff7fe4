"""Tests do not depend on how pytest is started, are stopped when they hang, and leave no process behind."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import LONGEST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ROOT = Path(__file__).resolve().parents[1]
PYTEST = ("-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
FRAME = """
import ctypes, signal, subprocess, pytest
import tests.conftest as around

def start(tmp_path, name, *command):
    process = subprocess.Popen(["sh", "-c", f'echo $$ > "{tmp_path}/pid"; exec "$@"', "sh", *command])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\\n"):
        pass
    open(f"{FOLDER}/{name}", "w").write((tmp_path / "pid").read_text())
    return process
"""


def run(tmp_path, tests, *options):
    """pytest on a file of these tests, in a process that does not hear Ctrl-C, as `nohup` starts it."""
    file = tmp_path / "test_inner.py"
    file.write_text(f"FOLDER = {str(tmp_path)!r}\n{FRAME}\n{tests}")
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignoring, sys.executable, *PYTEST, f"--rootdir={tmp_path}"]
    own = ["--basetemp", str(tmp_path / "inner"), *options, str(file)]
    return subprocess.run([*command, *own], cwd=ROOT, capture_output=True, text=True)


def alive(file):
    try:
        return Path("/proc", file.read_text().strip(), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TESTS = """
def test_hears(tmp_path):
    process = start(tmp_path, "hears", "sleep", "300")
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT

def test_leaves(tmp_path):
    around.PATIENCE = 0
    start(tmp_path, "leaves", "env", "-i", "sleep", "300")

def test_leaves_a_marked_one(tmp_path):
    start(tmp_path, "marked", "setsid", "sleep", "301")

@pytest.mark.timeout(2)
def test_hangs():
    try:
        subprocess.run(["sleep", "302"])
    finally:
        open(f"{FOLDER}/tidied", "w")

@pytest.mark.slow
def test_slow(request):
    assert around._limit(request.node) == around.SLOW
"""


def test_signals_limits_and_processes_of_a_file(tmp_path):
    done = run(tmp_path, TESTS, "-m", "slow or not slow")
    assert dict(re.findall(r"^(FAILED|ERROR) \S+::(\w+)", done.stdout, re.M)) == {
        "FAILED": "test_hangs", "ERROR": "test_slow",  # the last one, at the end of the file
    }, done.stdout  # fmt: skip
    assert "Timeout" in done.stdout and (tmp_path / "tidied").exists()
    assert re.search(r"a test of this file left process \d+ running: sleep 300\n", done.stdout)
    assert re.search(r"test_inner.py::test_leaves_a_marked_one left process \d+ running: sleep 301\n", done.stdout)
    assert not any(alive(tmp_path / name) for name in ("hears", "leaves", "marked"))


STUCK = """
def test_before():
    around.LATER = 3

@pytest.mark.timeout(1)
def test_stuck_in_c(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    start(tmp_path, "stuck", "sleep", "300")
    ctypes.PyDLL(None).sleep(300)  # which keeps the interpreter to itself

def test_after():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_what_cannot_be_interrupted_ends_with_its_process_and_what_it_started(tmp_path, workers):
    done = run(tmp_path, STUCK, "-n", workers)
    assert "in test_stuck_in_c" in done.stderr and done.returncode
    if workers != "0":
        assert "crashed while running" in done.stdout and "2 passed" in done.stdout  # a new worker goes on
    deadline = time.monotonic() + 60
    while alive(tmp_path / "stuck"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_files_that_go_first_are_there():
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


def test_every_test_has_a_limit(request):
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert float(request.config.getini("timeout")) > 0
