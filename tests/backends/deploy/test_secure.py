"""Secure aggregation with real processes: what the server's hold, and a site that is killed in a round."""

import threading
from pathlib import Path

import pytest
import torch

from personafl.backends.flower.secure.fixed_point import FixedPoint
from tests.backends.deploy.live import SITES, in_one_process

pytestmark = pytest.mark.slow

HALF = 1.5 * FixedPoint(16.0, 32, 3).step
"""How far off a mean over three sites can be; their weights add up to more than 1."""


class Memory(threading.Thread):
    """Looks for patterns in the memory of the server's processes, again and again."""

    def __init__(self, live, patterns):
        super().__init__(daemon=True)
        self.live, self.patterns = live, patterns
        self.found, self.looked, self.over = set(), 0, threading.Event()

    def run(self):
        while not self.over.wait(0.3):
            for name in ("run", "superlink"):
                for pid in self.live.deployment.processes[name].pids():
                    self.look(pid)

    def look(self, pid):
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                for line in lines:
                    where, rights, *_ = line.split()
                    if rights.startswith("rw") and "[v" not in line:
                        self.search(memory, *(int(part, 16) for part in where.split("-")))
            self.looked += 1
        except OSError:  # it has ended
            pass

    def search(self, memory, start, end):
        try:
            memory.seek(start)
            held = memory.read(end - start)
        except (OSError, ValueError, OverflowError):
            return
        self.found |= {name for name, pattern in self.patterns.items() if pattern in held}


def watched(live, tmp_path, **settings):
    """A run, the true updates of its first round by site, and where these were seen in the server's memory."""
    secure = settings.pop("secure", None)
    live.begin(
        "fedavg", {"round_timeout": 300.0}, rounds=2, **settings, **({} if secure is None else {"secure": secure})
    )
    live.settings.pop("secure", None)
    reference, clients = in_one_process(live, tmp_path / "loop")
    updates = {name: clients.uploads[name][0]["theta"].numpy() for name in SITES}
    memory = Memory(live, {name: theta[20:40].tobytes() for name, theta in updates.items()})
    memory.start()
    run = live.end()
    memory.over.set()
    memory.join()
    assert memory.looked > 4
    return run, reference, updates, memory.found


def test_no_process_of_the_server_holds_a_single_update(live, tap, tmp_path):
    run, reference, updates, found = watched(live, tmp_path, secure={})
    assert not live.dropped() and run.manifest["secure"]["bits"] == 32
    heard = b"\0".join(map(bytes, tap.connections))
    assert len(heard) > 6 * 4 * len(updates["north"])
    for name, theta in updates.items():
        assert theta[20:40].tobytes() not in heard, name
    assert not found
    ours, plain = (torch.cat([v.flatten() for v in r.global_model().state_dict().values()]) for r in (run, reference))
    assert (ours - plain).abs().max() <= 2 * HALF + 1e-6
    assert not list(live.deployment.layout.folder.rglob("secure.json"))


def test_without_it_they_do(live, tap, tmp_path):
    """So that the test above can fail."""
    _, _, updates, found = watched(live, tmp_path)
    heard = b"\0".join(map(bytes, tap.connections))
    assert all(theta[20:40].tobytes() in heard for theta in updates.values())
    assert found == set(SITES)


def test_a_site_that_is_killed_does_not_spoil_the_round(live, tmp_path):
    live.begin("ditto", {"round_timeout": 120.0, "patience": 300.0}, secure={})
    live.until_training("west", 2)
    live.deployment.kill("west")
    live.until_round(2)
    live.deployment.restart_site("west", 600.0)
    run = live.end()
    dropped = live.dropped()
    assert set(dropped) <= {2, 3} and dropped[2].keys() == {"west"}
    live.settings.pop("secure")
    absent = {round: list(names) for round, names in dropped.items()}
    reference, _ = in_one_process(live, tmp_path / "loop", absent)
    ours, plain = (torch.cat([v.flatten() for v in r.global_model().state_dict().values()]) for r in (run, reference))
    assert (ours - plain).abs().max() <= 3 * HALF + 1e-6


def test_self_fl_runs_without_anybody_seeing_a_model(live, tap, tmp_path):
    live.begin({"name": "selffl", "sums": True}, {"round_timeout": 300.0}, rounds=2, secure={})
    run = live.end()
    live.settings.pop("secure")
    reference, clients = in_one_process(live, tmp_path / "loop")
    heard = b"\0".join(map(bytes, tap.connections))
    for name in SITES:
        assert clients.uploads[name][0]["theta"][20:40].numpy().tobytes() not in heard
        mine, theirs = live.model(name), reference.personal(name).state_dict()
        assert mine.keys() == theirs.keys()
        assert all((mine[key] - value).abs().max() < 1e-5 for key, value in theirs.items())
    assert not live.dropped() and len(run.rounds()) == 2
