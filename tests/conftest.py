"""Tests run on tiny models, where a second thread costs more than it brings; they download nothing.

Several test processes share the cores. A thread of OpenMP that waits for another one sleeps, where by default it would
keep a core busy (four times the processor time of a small run in two threads). `auto` tries each engine once for each
number of clients, where by default it takes the best of up to ten times.

They do not depend on how pytest is started: what they start hears Ctrl-C even where pytest does not (`nohup`, the
background of a script), a test that hangs is stopped, and nothing that a test started outlives its file.
"""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
from uuid import uuid4

import pytest

from tests import left_behind
from tests.left_behind import MARK, Family

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded, here and in what is started from here

SLOW = 3600
"""Seconds that a slow test may take; the limit of all others is in pyproject.toml."""
LATER = 60
"""Seconds after its limit that a test which cannot be interrupted ends with all of pytest's process."""
PATIENCE = 60
"""Seconds that processes which were told to end may take."""
LONGEST = (
    "tests/backends/deploy/test_deployment.py",
    "tests/backends/ray/test_clients.py",
    "tests/study/test_ray_launcher.py",
    "tests/training/test_resume.py",
    "tests/modules/test_any_module.py",
    "tests/cli/test_cli.py",
    "tests/study/test_compare.py",
    "tests/papers/tables/test_selffl_synthetic.py",
    "tests/training/test_stopping.py",
    "tests/engines/test_agreement.py",
    "tests/algorithms/test_selffl_aug.py",
    "tests/report/test_figures.py",
    "tests/benchmarks/test_bench.py",
    "tests/study/test_processes.py",
    "tests/papers/tables/test_selffl_tables.py",
    "tests/papers/data/test_wakeword.py",
    "tests/backends/flower/test_hostile_sites.py",
    "tests/runs/test_trackers.py",
    "tests/runs/test_watch.py",
    "tests/backends/deploy/test_processes.py",
    "tests/papers/tables/test_fedamp_tables.py",
    "tests/backends/flower/test_faults.py",
    "tests/engines/test_gradients.py",
    "tests/report/test_browser.py",
    "tests/test_plugins.py",
    "tests/training/test_determinism.py",
    "tests/papers/tables/test_reproduce.py",
    "tests/papers/tables/test_selffl_wakeword.py",
    "tests/test_own_algorithm.py",
    "tests/algorithms/test_selffl.py",
    "tests/backends/flower/test_ledger.py",
    "tests/backends/flower/test_attacks.py",
    "tests/test_conftest.py",
    "tests/report/test_command.py",
    "tests/test_memory.py",
)
"""These files go first: a worker takes a file at a time, and one that begins a long file last is waited for."""
_stderr = pytest.StashKey[int]()


def pytest_make_parametrize_id(val, argname):
    """Bytes are not a name: what gzip wrote holds the time, and two processes must find the same tests."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Without doctest's import of test modules: it passes over import errors, and then a broken one counts as empty."""
    return [collector for collector in (yield) if type(collector).__name__ != "DoctestModule"]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays until the end: nothing looks through it again and again for what could be freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# --- time limits


def pytest_configure(config):
    config.stash[_stderr] = os.dup(2)  # later it is captured
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # else tests run elsewhere
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    files = {config.rootpath / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: files.get(item.path, len(files)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """pytest-timeout interrupts Python, so that a test's own `finally` runs; code in C may not let itself be."""
    faulthandler.dump_traceback_later(_limit(item) + LATER, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit(item):
    marker, asked = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout") if asked is None else asked)


# --- what is around every test


@pytest.fixture(scope="session", autouse=True)
def own_cache():
    """A cache that is empty at first and gone in the end: what is prepared of real data is large."""
    with tempfile.TemporaryDirectory(prefix="personafl-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_CACHE", folder)
        patch.setenv("PERSONAFL_OFFLINE", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def short_trials():
    """What `auto` finds out is not what tests are about, but for those in tests/engines/test_trials.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("personafl.engines.trials.REPEATS", 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def bytecode():
    """Many tests start Python, and without bytecode each of these processes takes four seconds more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c():
    """Ctrl-C is heard here, and so by what is started from here: `SIG_IGN` would be inherited, a handler is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def family(tmp_path_factory):
    """Everything that is started from here, which a guard ends if pytest is killed."""
    made = Family(uuid4().hex, os.getpid(), str(tmp_path_factory.getbasetemp()))
    if sys.platform != "linux":
        yield made
        return
    command = [sys.executable, "-I", "-S", left_behind.__file__, made.mark, str(made.pytest), made.folder]
    with pytest.MonkeyPatch.context() as patch:
        guard = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)
        patch.setenv(MARK, made.mark)
        yield made
        made.end()
        guard.kill()
        guard.wait()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(family):
    """A test that leaves a process running fails, by name, at the end of its file."""
    yield
    if sys.platform == "linux" and (found := family.ended(PATIENCE)):
        family.end()
        pytest.fail("\n".join(map(str, found)), pytrace=False)
