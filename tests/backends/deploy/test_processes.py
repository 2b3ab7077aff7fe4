"""Processes of a rehearsal: found with all that they start, heard, and gone in the end."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.deploy.processes import Process, accepts, free_ports, listening
from personafl.backends.deploy.rehearsal import _interrupted_after, _undisturbed
from personafl.errors import RunError
from tests.backends.deploy.live import write_data
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start(tmp_path, script, name="program"):
    return Process(name, ["sh", "-c", script], tmp_path / f"{name}.log", {"WORD": "hello"})


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_left_its_session_and_its_parent_is_ended_too(tmp_path):
    process = start(tmp_path, "setsid sh -c 'sleep 300 & echo $!; exit 0' & wait; sleep 300")
    until(lambda: process.output().strip())
    orphan = int(process.output())
    assert alive(orphan) and os.getsid(orphan) != process.pid
    assert {orphan, process.pid} <= set(process.pids())
    process.kill()
    assert not alive(orphan) and process.code is not None and not process.pids()


def test_a_process_without_its_environment_is_found_by_its_session(tmp_path):
    process = start(tmp_path, "env -i sleep 300 & echo $!; wait")
    until(lambda: process.output().strip())
    bare = int(process.output())
    assert bare in process.pids()
    process.kill()
    assert not alive(bare)


def test_processes_of_others_are_left_alone(tmp_path):
    mine, other = start(tmp_path, "sleep 300", "mine"), start(tmp_path, "sleep 300", "other")
    try:
        mine.kill()
        assert other.code is None and alive(other.pid)
    finally:
        other.kill()


def test_a_process_that_does_not_listen_is_killed(tmp_path):
    process = start(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    until(lambda: "ready" in process.output())
    process.stop(seconds=0.3)
    assert process.code == -signal.SIGKILL


def test_a_process_that_ends_too_early_is_an_error_with_its_last_words(tmp_path):
    process = start(tmp_path, "printf '\\033[91mno such\\033[0m luck\\n'; exit 7")
    with pytest.raises(RunError, match=r"program ended with code 7 before it listened; the end of .*: no such luck$"):
        process.wait_until(lambda: False, 600, "listened")


def test_a_process_that_takes_too_long_is_an_error(tmp_path):
    process = start(tmp_path, "sleep 300")
    with pytest.raises(RunError, match=re.escape("not seen to have listened within 0.2 seconds")):
        process.wait_until(lambda: False, 0.2, "listened")
    process.kill()


def test_a_second_process_does_not_tell_what_the_first_one_said(tmp_path):
    first = start(tmp_path, "echo first $WORD")
    until(lambda: first.code is not None)
    second = start(tmp_path, "echo second")
    until(lambda: second.code is not None)
    assert (first.output().splitlines()[0], second.output()) == ("first hello", "second\n")


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(RunError, match="ghost cannot be started: No such file or directory"):
        Process("ghost", [str(tmp_path / "nothing")], tmp_path / "log", {})


def test_where_a_process_listens_is_read_from_the_kernel():
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::", 0), family=socket.AF_INET6) as six,
        socket.create_server(("0.0.0.0", 0)) as every,
    ):
        expected = {("127.0.0.1", four.getsockname()[1]), ("::", six.getsockname()[1])}
        expected.add(("0.0.0.0", every.getsockname()[1]))
        assert expected <= listening([os.getpid()])
        assert accepts(four.getsockname()[1])
    assert not expected & listening([os.getpid()])


def test_a_connection_is_not_taken_for_a_listener():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert ("127.0.0.1", client.getsockname()[1]) not in listening([os.getpid()])


def test_free_ports_are_different_and_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20 and not any(accepts(port) for port in ports)


def test_nothing_outlives_a_program_that_forgets_to_stop_it(tmp_path):
    """A deployment that is not used as a context manager, in a program that ends by an error."""
    write_data(tmp_path / "data")
    program = f"""
from pathlib import Path
from personafl.backends.deploy import Deployment, init_federation
from personafl.backends.deploy.processes import Process
folder = Path({str(tmp_path)!r}) / "federation"
init_federation(folder)
deployment = Deployment(folder, data=Path({str(tmp_path / "data")!r}), proxy=False)
deployment.processes["superlink"] = Process("superlink", ["sleep", "300"], folder / "log", {{}})
print(deployment.processes["superlink"].pid, flush=True)
raise SystemExit("forgotten")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == "forgotten" and not alive(int(done.stdout))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_a_process_is_started_waits_until_it_is_known(tmp_path, hears, name):
    known = []
    with pytest.raises(KeyboardInterrupt), _interrupted_after():
        os.kill(os.getpid(), signal.Signals[name])
        known.append(start(tmp_path, "kill -INT $$; sleep 300"))
    until(lambda: known[0].code == -signal.SIGINT)  # and the process itself hears it as always


def test_no_signal_cuts_short_what_puts_things_in_order(hears):
    with _undisturbed():
        for name in hears:
            os.kill(os.getpid(), name)


@pytest.fixture
def hears():
    """All signals that end `deploy up` raise KeyboardInterrupt here, as they do there."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)
