"""The backend `flower-sim`: the sites of a federation in Flower's simulator, on this machine.

The simulator's ServerApp lends its grid to the runner, which works as it does in a real federation, and each virtual
node is a site with its part of the data. Sites keep their states in the run folder, so a simulation can be resumed.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file

from personafl.algorithms import Algorithm
from personafl.backends.ray.start import connect
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.inputs import shape_of
from personafl.kernels.task import Task
from personafl.states import Ints, State
from personafl.storage.folder import RunFolder
from personafl.training.evaluation import ClientIndex, ServerSnapshot
from personafl.training.job import Job
from personafl.training.privacy import Noise, NoiseSource

if TYPE_CHECKING:
    from personafl.backends.flower.server import FlowerClients

PATIENCE = 300.0
HOURS = 12 * 3600.0


def require_flower() -> None:
    """Raise a ConfigError where the simulator is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("flwr", "ray")):
        raise ConfigError(
            "engine = 'flower-sim' needs Flower and Ray: pip install 'personafl[flower]' 'personafl[ray]'"
        )


def simulated_clients(job: Job, folder: Path) -> FlowerClients:
    """The clients of a federation, each at a virtual site of Flower's simulator.

    Parameters
    ----------
    folder
        The run folder: sites keep what is theirs in `sites/` there.
    """
    require_flower()
    from personafl.backends.flower.members import FederationSettings
    from personafl.backends.flower.nodes import Nodes, missing
    from personafl.backends.flower.server import FlowerClients

    class SimulatedClients(FlowerClients):
        """Sites on this machine: their models can be put together at the end."""

        secret_cohorts = True  # as on the other engines

        @property
        def server_noise(self) -> Noise:
            return NoiseSource(self.seed)

        def write(self, folder: RunFolder, snapshot: ServerSnapshot, ids: Ints) -> None:
            self._finish(snapshot)
            done = sorted(self._finished)

            def models() -> Iterator[State]:
                for i in done:
                    found = load_file(_place(folder.path, i) / "models" / "personal.safetensors")
                    yield {name: value[None] for name, value in found.items()}

            folder.write_personal([self.client_index.ids[i] for i in done], models())

        def close(self) -> None:
            simulator.close()

    federation = job.federation
    simulator = Simulator(federation, folder, (job.task, job.algorithm))
    try:
        settings = FederationSettings(
            input_shape=shape_of(federation.x),
            classes=federation.classes,
            outputs=int(np.prod(federation.y.shape[1:])),
            clients=federation.ids,
            round_timeout=HOURS,
            patience=PATIENCE,
            # Everybody is oneself here, and the answer is that of the other engines.
            max_weight=1.0,
            max_norm_factor=0.0,
        )
        nodes = Nodes(simulator.grid(), settings.check_site)
        if not nodes.look(lambda online: len(online) == len(federation), PATIENCE):
            raise missing(nodes, federation.ids, PATIENCE)
        client_index = ClientIndex.of(federation)
        client_index = ClientIndex(
            client_index.ids,
            client_index.groups,
            {s: n.copy() for s, n in client_index.sizes.items()},
            client_index.counted,
        )
        return SimulatedClients(
            nodes, client_index, settings, job.task, job.algorithm, job.local, job.seed, {}, job.privacy
        )
    except BaseException:
        simulator.close()
        raise


class Simulator:
    """Flower's simulator in a thread, with a node for each client of a federation."""

    def __init__(self, federation: Federation, folder: Path, own: tuple[Task, Algorithm]) -> None:
        self._stack = ExitStack()
        self._ended = threading.Event()
        self._grids: Queue[Any] = Queue()
        temporary = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="personafl-sites-"))
        data = Path(temporary) / "data"
        federation.save(data)
        self._stack.enter_context(connect())
        self._thread = threading.Thread(
            target=self._run, args=(str(data), str(folder.resolve()), federation.ids, own), daemon=True
        )
        self._thread.start()
        self._stack.callback(self._thread.join, 60.0)
        self._stack.callback(self._ended.set)

    def grid(self) -> Any:
        """The simulator's grid, as soon as there is one."""
        try:
            found = self._grids.get(timeout=PATIENCE)
        except Empty:
            raise RunError(f"Flower's simulator did not start within {PATIENCE:g} s") from None
        if isinstance(found, BaseException):
            raise RunError(f"Flower's simulator did not start: {found}") from found
        return found

    def close(self) -> None:
        """End the simulator and wait until it has ended."""
        self._stack.close()

    def _run(self, data: str, folder: str, ids: tuple[str, ...], own: tuple[Task, Algorithm]) -> None:
        from flwr.app import Context
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation

        from personafl.backends.flower.app import make_client_app

        def lend(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            # Python waits for Flower's threads before it exits: they must not wait for a run that nobody closes.
            while not self._ended.wait(1.0) and threading.main_thread().is_alive():
                pass

        def find(context: Context) -> Any:
            place = int(context.node_config["partition-id"])
            return _site(ids[place], data, str(_place(Path(folder), place)), own)

        server = ServerApp()
        server.main()(lend)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        try:
            resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
            run_simulation(server, make_client_app(find), len(ids), backend_config=resources)
        except BaseException as error:
            self._grids.put(error)


def _place(folder: Path, number: int) -> Path:
    """The folder of a simulated site; clients may have names that no folder can have."""
    return folder / "sites" / f"{number:06d}"


def _site(client: str, data: str, folder: str, own: tuple[Task, Algorithm]) -> Any:
    from personafl.backends.flower.site import Site
    from personafl.backends.flower.site_data import SiteSettings

    return Site(SiteSettings(client, data, folder), own)
