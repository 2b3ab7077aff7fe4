"""A federation of real processes that is kept for many runs, and what the same runs give in one process."""

import os
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.torch import load_file

from personafl.backends.deploy import Deployment, init_federation
from personafl.backends.deploy.rehearsal import find_nginx
from personafl.backends.deploy.tasks import prepare
from personafl.config import parse
from personafl.engines.loop import LoopEngine
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.runs.run import Run
from personafl.settings import Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.rounds import Origin, run_rounds

SITES = ("north", "south", "west")
ORIGIN = Origin(resolved={"clients": len(SITES), "fingerprint": "", "loss": "", "parameters": 1})
SETTINGS = {
    "seed": 3, "rounds": 3, "eval_every": 0, "checkpoint_every": 1, "model": {"name": "mlp", "hidden": [16]},
    "local": {"steps": 10, "batch_size": 8, "lr": 0.05},
}  # fmt: skip
PATIENCE = 900.0
"""Seconds after which something that is waited for will not come, however busy the machine is."""
FEDERATION = {"min_answers": 1, "round_timeout": 600.0, "patience": 600.0, "max_weight": 1.0}
"""Without a limit on weights, so that two sites of three give what the loop engine does."""
FEATURES, CLASSES = 6, 3


def write_data(folder: Path) -> None:
    """A file for each site, with samples whose every value is unlike all others."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    for m, name in enumerate(SITES):
        arrays = {}
        for split, count in {"train": 24 + 8 * m, "val": 9, "test": 12}.items():
            x = rng.uniform(-1, 1, (count, FEATURES)).astype(np.float32)
            # Each site has a rule of its own, so that personalized models differ.
            y = (x[:, m] > 0).astype(np.int64) + (x[:, m + 1] > 0.3)
            arrays |= {f"x_{split}": x, f"y_{split}": y}
        np.savez(folder / f"{name}.npz", **arrays)


def showing_certificate(site: Path) -> ssl.SSLContext:
    """TLS as a site speaks it, which shows the certificate that the operator gave it."""
    if not (site / "runtime" / "node.pem").exists():
        prepare(site / "runtime")
    context = ssl.create_default_context(cafile=str(site / "ca.crt"))
    context.load_cert_chain(site / "node.crt", site / "runtime" / "node.pem")
    return context


class Live:
    """SuperLink, nginx where it is installed, and three sites; one run after another."""

    def __init__(self, folder: Path) -> None:
        write_data(folder / "data")
        init_federation(folder / "federation", SITES)
        self.deployment = Deployment(folder / "federation", data=folder / "data", proxy=find_nginx() is not None)
        self.federation: Federation = self.deployment.federation
        for name in SITES:  # Self-FL takes single steps here, of 8 samples
            with open(self.deployment.layout.site(name) / "site.toml", "a", encoding="utf-8") as file:
                file.write("\nleast_samples = 8\n")
        self._runs = 0
        self._seen: dict[str, int] = {}

    # --- runs ------------------------------------------------------------------------------------------------

    def begin(self, algorithm: str, joint: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Start a run with sites that have nothing on their disks but data."""
        deployment = self.deployment
        self._abandon()
        for name in SITES:
            if deployment.processes[name].code is not None:
                deployment.restart_site(name, PATIENCE)
            for what in ("state", "models"):
                shutil.rmtree(deployment.layout.site(name) / what, ignore_errors=True)
        if deployment.run_folder.exists():
            self._runs += 1
            deployment.run_folder.rename(deployment.layout.folder / f"run-{self._runs}")
        self.settings = {**SETTINGS, **settings, "algorithm": algorithm}
        shape = {"clients": list(SITES), "input_shape": [FEATURES], "classes": CLASSES}
        tables = {**self.settings, "federation": {**FEDERATION, **shape, **(joint or {})}}
        (deployment.layout.folder / "federation.toml").write_text(tomli_w.dumps(tables))
        self._seen = {name: len(deployment.processes[name].output()) for name in SITES}
        deployment.start_run()

    def _abandon(self) -> None:
        """End what a test that failed has left running."""
        run = self.deployment.processes.get("run")
        if run is not None and run.code is None:
            self.deployment.kill("run")
            self.deployment.kill("superlink")
        if self.deployment.processes["superlink"].code is not None:
            self.deployment.start_superlink()

    def end(self) -> Run:
        """Wait for the end of the run."""
        self.deployment.wait(seconds=PATIENCE)
        return Run(self.deployment.run_folder)

    # --- what happens meanwhile ------------------------------------------------------------------------------

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds while the run goes on."""
        run, end = self.deployment.processes["run"], time.monotonic() + PATIENCE
        while not holds():
            if run.code is not None or time.monotonic() > end:
                pytest.fail(f"not seen: {what}; {run.failed('has this log')}")
            time.sleep(0.1)

    def until_round(self, round: int) -> None:
        """Wait for the end of a round."""
        self.until(f"the end of round {round}", lambda: len(self.deployment.rounds()) >= round)

    def until_training(self, name: str, round: int) -> None:
        """Wait until a site has got its message of a round; it will take a while to answer."""

        def has_message() -> bool:
            said = self.deployment.processes[name].output()[self._seen[name] :]
            return "Received successfully" in said.partition(f"ROUND {round}]")[2]

        self.until(f"round {round} at {name}", has_message)

    def signal(self, name: str, number: signal.Signals, *pids: int) -> None:
        """Send a signal to all processes of a site, or to some of them."""
        for pid in pids or self.deployment.processes[name].pids():
            os.kill(pid, number)

    def loading(self, name: str) -> list[int]:
        """Processes of a site that have a message and are about to answer it: they have begun to load torch."""
        return [pid for pid in self.deployment.processes[name].pids() if _loads_torch(pid)]

    def states(self, name: str) -> list[int]:
        """The rounds of which a site has a state on its disk."""
        return sorted(self._states(name))

    def state(self, name: str) -> dict[str, Any]:
        """What a site has kept last."""
        files = self._states(name)
        return load_file(files[max(files)])

    def _states(self, name: str) -> dict[int, Path]:
        found = self.deployment.layout.site(name).rglob("state/*/round-*.safetensors")
        return {int(path.stem[6:]): path for path in found}

    def dropped(self) -> dict[int, dict[str, str]]:
        """Who was left out in which round, and why."""
        return {record["round"]: record["dropped"] for record in self.deployment.rounds() if "dropped" in record}

    def model(self, name: str) -> dict[str, Any]:
        """The personalized model on a site's disk."""
        (file,) = self.deployment.layout.site(name).rglob("models/personal.safetensors")
        return load_file(file)


def _loads_torch(pid: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return False


class Watched(LocalClients):
    """Clients whose uploads and states are remembered, by the client's name."""

    def train(self, round, ids, sent):
        answers = super().train(round, ids, sent)
        if round == 1:
            self.uploads, self.states = ({name: [] for name in self.client_index.ids} for _ in range(2))
        for k, i in enumerate(answers.uploads.ids.tolist()):
            self.uploads[self.client_index.ids[i]].append({n: v[k].clone() for n, v in answers.uploads.values.items()})
        for k, i in enumerate(ids):
            self.states[self.client_index.ids[i]].append({n: v[k].clone() for n, v in self.store.get(ids).items()})
        return answers


def in_one_process(
    live: Live, folder: Path, absent: Mapping[int, Collection[str]] | None = None
) -> tuple[Run, Watched]:
    """The present run of a federation on the loop engine, with some clients not in the cohort of some rounds."""
    config, data = parse(live.settings), live.federation
    left_out = absent or {}

    class Cohorts(Schedule):
        def cohort(self, seed, round, clients):
            drawn = super().cohort(seed, round, clients)
            return drawn[[data.ids[i] not in left_out.get(round, ()) for i in drawn]]

    task = Task(initialize(config.model, (FEATURES,), CLASSES, config.seed))
    clients = Watched(LoopEngine(task, data, config.local, config.seed, threads=1))
    place = RunFolder(folder)
    with place.lock():
        run_rounds(place, clients, config.algorithm, Cohorts(**asdict(config.schedule)), ORIGIN)
    return Run(folder, algorithm=config.algorithm, task=task), clients
