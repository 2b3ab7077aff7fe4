"""The engine `ray` when its driver is killed, and when a whole machine is."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from safetensors.torch import load_file

from personafl.config import parse
from personafl.engines.stacked import StackedEngine
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.backends.ray.test_clients import assert_close, assert_same_runs
from tests.linux_processes import descendants, listening
from tests.waiting import until

PERSONAFL = (sys.executable, "-c", "from personafl.cli import main; main()")
CONFIG = {
    "rounds": 8, "activity": 0.5, "eval_every": 4, "checkpoint_every": 1,
    "partition": {"name": "dirichlet", "clients": 12, "alpha": 0.5},
    "model": {"name": "mclr"},  # convex: thousands of steps do not make much of the last bits
    "local": {"lr": 0.1, "steps": 300},
    "algorithm": {"name": "ditto"},
}  # fmt: skip


LONG = CONFIG["local"] | {"steps": 2000}


def write_config(path: Path, **more) -> Path:
    path.write_text(tomli_w.dumps(CONFIG | more))
    return path


def rounds_of(folder: Path) -> int:
    return len(RunFolder(folder).rounds())


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nothing_and_is_resumed(tmp_path):
    pytest.importorskip("ray")
    config = write_config(tmp_path / "ray.toml", engine={"name": "ray"}, ray={"actors": 2})
    command = [*PERSONAFL, "run", config, "--out", tmp_path / "ray"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: rounds_of(tmp_path / "ray") >= 3, driver)
    processes = descendants(driver.pid)
    assert {address for _, address in listening(processes)} == {"127.0.0.1"}
    driver.kill()
    driver.wait()
    # Ray's agents take a minute to see that they are alone.
    until(lambda: not any(Path(f"/proc/{process}/exe").exists() for process in processes))
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    stacked = write_config(tmp_path / "stacked.toml", engine={"name": "stacked", "threads": 1})
    subprocess.run([*PERSONAFL, "run", stacked, "--out", tmp_path / "stacked"], check=True, capture_output=True)
    for folder in ("ray", "stacked"):
        (tmp_path / folder / "run.toml").unlink()
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")


class Machines:
    """Machines of a private network, as network namespaces of this one: 10.77.0.1, 10.77.0.2, …

    Each has a Ray node. They share this machine's disk, but for the folder where Ray keeps its things.
    """

    def __init__(self, folder: Path, cpus: list[int]) -> None:
        self.folder, self.names = folder, [f"pfl{os.getpid()}-{n}" for n in range(len(cpus))]
        self.nodes: list[subprocess.Popen] = []
        for n, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if n == 0:  # the bridge is the first machine's own address too
                ip("-n", name, "link", "add", "bridge", "type", "bridge")
                ip("-n", name, "addr", "add", "10.77.0.1/24", "dev", "bridge")
                ip("-n", name, "link", "set", "bridge", "up")
                continue
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{n}", "netns", self.names[0])
            ip("-n", name, "addr", "add", f"10.77.0.{n + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", self.names[0], "link", "set", f"port{n}", "master", "bridge", "up")
        for n, count in enumerate(cpus):
            own = ["--head", "--port=6379", "--include-dashboard=false"] if n == 0 else ["--address=10.77.0.1:6379"]
            start = [
                Path(sys.executable).with_name("ray"), "start", *own, f"--node-ip-address=10.77.0.{n + 1}",
                f"--num-cpus={count}", "--object-store-memory=100000000", "--disable-usage-stats", "--block",
            ]  # fmt: skip
            self.nodes.append(self.popen(n, start))
            if n == 0:
                until(lambda: self.answers("10.77.0.1", 6379), self.nodes[0])

    def popen(self, n: int, command: list) -> subprocess.Popen:
        own = self.folder / str(n)
        own.mkdir(exist_ok=True)
        inside = ["ip", "netns", "exec", self.names[n], "unshare", "--mount"]
        inside += ["sh", "-c", f'mount --bind {own} /tmp/ray && exec "$@"', "sh", *command]
        return subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def answers(self, host: str, port: int) -> bool:
        knock = f"import socket; socket.create_connection(({host!r}, {port}), 1)"
        process = self.popen(0, [sys.executable, "-c", knock])
        process.communicate()
        return process.returncode == 0

    def kill(self, n: int) -> None:
        """All processes of a machine at once."""
        for process in ip("netns", "pids", self.names[n]).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)

    def close(self) -> None:
        for n, name in enumerate(self.names):
            self.kill(n)
            ip("netns", "del", name)
        for node in self.nodes:
            node.communicate()


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def machines(tmp_path):
    pytest.importorskip("ray")
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("machines are network namespaces: needs root, and ip of iproute2")
    Path("/tmp/ray").mkdir(exist_ok=True)
    try:
        made = Machines(tmp_path, [1, 2, 1])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr}")
    yield made
    made.close()


class Absent(LocalClients):
    """Clients of whom some do not answer in some rounds."""

    absent: dict[int, list[str]]

    def train(self, round, ids, sent):
        stays = ~np.isin(ids, [self.client_index.ids.index(name) for name in self.absent.get(round, ())])
        return super().train(round, ids[stays], sent)


@pytest.mark.slow
def test_a_machine_that_is_killed(machines, tmp_path):
    """Its clients are missing from the round, and from nothing else: each round has a checkpoint."""
    config = write_config(
        tmp_path / "ray.toml", local=LONG, engine="ray", ray={"address": "10.77.0.1:6379", "actors": 3}
    )
    command = [*PERSONAFL, "run", config, "--out", tmp_path / "ray"]
    time.sleep(5)  # all have joined
    driver = machines.popen(0, list(map(str, command)))
    saved = tmp_path / "ray" / "checkpoint" / "round-000003.json"
    until(saved.exists, driver)
    time.sleep(0.2)  # in the fourth round
    machines.kill(2)
    said, _ = driver.communicate()
    assert driver.returncode == 0, said
    records = RunFolder(tmp_path / "ray").rounds()
    absent = {record["round"]: list(record["dropped"]) for record in records if "dropped" in record}
    assert len(absent) == 1, said
    settings = parse(CONFIG | {"local": LONG})
    fed = settings.federation()
    task = Task(initialize(settings.model, fed.x.shape[1:], fed.classes, settings.seed))
    clients = Absent(StackedEngine(task, fed, settings.local, settings.seed, threads=1))
    clients.absent = absent
    expected = Runner(settings.algorithm, clients, settings.schedule, RunFolder(tmp_path / "here"), {})
    expected.folder.create({})
    expected.run()
    for name in ("global", "personal"):
        found, model = (load_file(tmp_path / folder / f"models/{name}.safetensors") for folder in ("ray", "here"))
        assert_close(found, model, name)
