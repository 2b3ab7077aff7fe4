"""A federation on loopback, with the processes, scripts, keys and certificates of the real thing.

A rehearsal takes place in a folder of its own, `rehearsal-1`, `rehearsal-2`, …, beside what `deploy init` wrote: the
same files with free ports of this machine, and data for each site. What is handed out to sites is not touched.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import tomli_w

from personafl.backends.deploy.keys import write_private
from personafl.backends.deploy.layout import Layout, Material, split_address, write_federation
from personafl.backends.deploy.processes import Process, accepts, free_ports, listening
from personafl.backends.deploy.rehearsal_data import deal
from personafl.backends.flower.secure.settings import LEAST
from personafl.config import read_tables
from personafl.errors import ConfigError, RunError
from personafl.federation import Federation
from personafl.inputs import shape_of, written_shape
from personafl.models import LoRA
from personafl.pretrained.loading import BackboneSettings
from personafl.registry import checked
from personafl.runs.watch import WatchedRun

START, JOIN, RETURN = 120.0, 120.0, 180.0
"""Seconds that a server may take to start, a site to join, and a site that crashed to be let in again."""


class Deployment:
    """Processes of a federation on loopback. As a context manager, it leaves none behind.

    Parameters
    ----------
    folder : Path
        What `deploy init` wrote.
    sites : int or sequence of str, optional
        Which of its sites take part: the first few, or these. Left out, all.
    data : Path, optional
        A folder of `.npz` files, a site each; left out, handwritten digits are dealt to the sites.
    proxy
        Sites reach the SuperLink by way of nginx, as they will; False: directly.
    settings : mapping, optional
        Tables that replace those of federation.toml key by key, such as `{"rounds": 2}`.

    Examples
    --------
    ::

        with Deployment(Path("federation"), settings={"rounds": 2}) as deployment:
            deployment.start()
            deployment.start_run()
            deployment.wait(print)
    """

    def __init__(
        self,
        folder: Path,
        sites: int | Sequence[str] | None = None,
        *,
        data: Path | None = None,
        proxy: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        given = Layout.read(folder)
        if proxy and find_nginx() is None:
            raise RunError(
                "nginx is not installed: apt install nginx, or leave it out of the rehearsal with --no-proxy"
            )
        chosen = _chosen(given.sites, sites)
        material = Material.read(given)
        public, private, *runtime = free_ports(2 + len(chosen))
        self.proxy = proxy
        self.layout = Layout(
            _next_folder(folder),
            chosen,
            f"127.0.0.1:{public if proxy else private}",
            f"127.0.0.1:{private}",
            dict(zip(chosen, runtime, strict=True)),
        )
        with tempfile.TemporaryDirectory() as dealt:
            self.federation, length = deal(chosen, data, lambda name: Path(dealt) / f"{name}.npz")
            tables = _merged(read_tables(folder / "federation.toml"), settings or {})
            weights = _weights(tables, folder)
            vectors = _vectors(tables, folder)
            backbone = _backbone(tables)
            if backbone is not None:
                self.federation = self.federation.through(backbone.load(), progress=False)
            tables = _fitted(tables, self.federation)
            kept = {name: material.site_keys[name] for name in chosen}
            write_federation(self.layout, replace(material, site_keys=kept), tomli_w.dumps(tables))
            for name in chosen:
                write_private(self.layout.site(name) / "data.npz", (Path(dealt) / f"{name}.npz").read_bytes())
                with open(self.layout.site(name) / "site.toml", "a", encoding="utf-8") as file:
                    file.write("" if length is None else f"\nlength = {length}\n")
                    file.write("" if weights is None else "\n" + tomli_w.dumps({"weights": weights}))
                    file.write("" if vectors is None else "\n" + tomli_w.dumps({"vectors": {"path": vectors}}))
                    file.write("" if backbone is None else "\n" + tomli_w.dumps({"backbone": _at_site(backbone)}))
        self.logs = self.layout.folder / "logs"
        self.logs.mkdir(0o700)
        self.processes: dict[str, Process] = {}
        atexit.register(self.stop)

    # --- where things are ----------------------------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites."""
        return self.layout.sites

    @property
    def run_folder(self) -> Path:
        """Where the run goes."""
        return self.layout.folder / "run"

    def model(self, name: str) -> Path:
        """Where a site's personal model is in the end."""
        return self.layout.site(name) / "models" / "personal.safetensors"

    def rounds(self) -> list[dict[str, Any]]:
        """The records of rounds.jsonl so far."""
        watched = WatchedRun(self.run_folder)
        watched.look()
        return watched.records

    def listening(self) -> set[tuple[str, int]]:
        """Every address and port on which a process of this federation listens now."""
        return listening(pid for process in self.processes.values() for pid in process.pids())

    # --- processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything but the run: SuperLink, nginx, keys, sites."""
        self.start_superlink()
        if self.proxy:
            self.start_proxy()
        self.register()
        self.start_sites()

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again with the database it has, and wait until it answers."""
        process = self._operator("superlink", "start-superlink.sh")
        _, port = split_address(self.layout.private)
        process.wait_until(lambda: accepts(port), START, "listened")

    def start_proxy(self) -> None:
        """Start nginx and wait until it answers."""
        process = self._operator("proxy", "start-proxy.sh")
        _, port = split_address(self.layout.address)
        process.wait_until(lambda: accepts(port), START, "listened")

    def register(self, *names: str) -> None:
        """Tell the SuperLink the keys of these sites; of all, if none is named."""
        process = self._begin("register", [_script(self.layout.operator, "register-sites.sh"), *names])
        process.wait_until(lambda: process.code == 0, START, "registered the sites")

    def start_site(self, name: str, wait: bool = True) -> None:
        """Start a site's SuperNode, and wait until the SuperLink has let it in."""
        process = self._begin(name, [_script(self.layout.site(name), "start.sh")])
        if wait:
            process.wait_until(lambda: has_joined(process), JOIN, "joined")

    def start_sites(self) -> None:
        """Start all sites at once, and wait for them."""
        for name in self.sites:
            self.start_site(name, wait=False)
        for name in self.sites:
            process = self.processes[name]
            process.wait_until(lambda process=process: has_joined(process), JOIN, "joined")  # type: ignore[misc]

    def restart_site(self, name: str, seconds: float = RETURN) -> None:
        """Start a site again that crashed, as often as it takes until the SuperLink lets it in, as systemd would."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.start_site(name)
            except RunError:
                if time.monotonic() > end:
                    raise
                time.sleep(5.0)

    def start_run(self) -> None:
        """Start a run, or let the one that was cut short go on."""
        self._operator("run", "start-run.sh")

    def wait(self, tell: Callable[[dict[str, Any]], None] | None = None, seconds: float = 3600.0) -> None:
        """Wait until the run has ended, and tell each round's record as it comes."""
        watched, run, end = WatchedRun(self.run_folder), self.processes["run"], time.monotonic() + seconds
        going = True
        while going:
            going = run.code is None
            watched.look()
            for record in watched.news() if tell else ():
                tell(record)  # type: ignore[misc]
            for name in ("superlink", "proxy"):
                if going and name in self.processes and self.processes[name].code is not None:
                    raise self.processes[name].failed("has stopped while the run was going on")
            if time.monotonic() > end:
                raise run.failed(f"is not over after {seconds:g} seconds")
            time.sleep(0.2 if going else 0.0)
        if not self.complete:
            raise run.failed("is over, but not complete")

    @property
    def complete(self) -> bool:
        """Whether the run was trained to its end, and the sites were told."""
        return (self.run_folder / "models" / "elsewhere.json").is_file()

    def kill(self, name: str) -> None:
        """End a process (`superlink`, `proxy`, `run`, or a site by its name) at once, as a power cut would."""
        self.processes[name].kill()

    def stop(self, *names: str) -> None:
        """Ask processes to end, sites first; all, if none is named. What does not listen is killed."""
        order = sorted(names or self.processes, key=lambda name: {"run": 0, "proxy": 2, "superlink": 3}.get(name, 1))
        with _undisturbed():
            # All sites at once: each says goodbye to the SuperLink, which takes a second or two.
            for name in (name for name in order if name in self.sites):
                self.processes[name].terminate()
            for name in order:
                self.processes[name].stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()
        atexit.unregister(self.stop)

    def _operator(self, name: str, script: str) -> Process:
        return self._begin(name, [_script(self.layout.operator, script)])

    def _begin(self, name: str, command: Sequence[str]) -> Process:
        old = self.processes.get(name)
        if old is not None and old.code is None:
            raise RunError(f"{name} is running already")
        if old is not None:
            old.kill()  # what it left behind
        paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        # On one machine, processes with many threads each would only be in each other's way.
        environment = {"PATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with _interrupted_after():
            self.processes[name] = Process(name, ["sh", *command], self.logs / f"{name}.log", environment)
        return self.processes[name]


def find_nginx() -> str | None:
    """Where nginx is; Debian keeps it where only root looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/sbin")


def has_joined(process: Process) -> bool:
    """Whether the SuperLink has let a site in."""
    return "SuperNode ID:" in process.output()


def _chosen(known: tuple[str, ...], sites: int | Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(sites, int):
        if not 1 <= sites <= len(known):
            raise ConfigError(f"--sites {sites}: this federation has {len(known)}: {', '.join(known)}")
        return known[:sites]
    for name in sites or ():
        if name not in known:
            raise ConfigError(f"there is no site {name!r} in this federation: it has {', '.join(known)}")
    return tuple(sites or known)


def _fitted(tables: dict[str, Any], federation: Federation) -> dict[str, Any]:
    """A config with what the sites' data looks like."""
    own = tables.get("federation", {})
    own |= {"clients": list(federation.ids), "input_shape": written_shape(shape_of(federation.x))}
    own["min_answers"] = min(int(own.get("min_answers", 1)), len(federation))
    for key in ("classes", "outputs", "sites"):
        own.pop(key, None)
    outputs = federation.y.shape[1] if federation.y.ndim > 1 else 1
    own |= {"outputs": outputs} if federation.classes is None else {"classes": federation.classes}
    if len(federation) < LEAST:
        tables |= {"robust": {}} if tables.pop("secure", None) is not None else {}
    return {**tables, "federation": own}


def _backbone(tables: Mapping[str, Any]) -> BackboneSettings | None:
    """The backbone of a rehearsal, whose weights all sites have in the same place."""
    found: BackboneSettings | None = checked(BackboneSettings | None, "backbone", tables.get("backbone"))
    if found is not None and found.path is None:
        raise ConfigError("a rehearsal needs backbone.path in federation.toml: its sites have their weights from there")
    return found


def _at_site(backbone: BackboneSettings) -> dict[str, Any]:
    table = asdict(replace(backbone, path=str(Path(str(backbone.path)).expanduser().resolve())))
    return {key: value for key, value in table.items() if value is not None}


def _weights(tables: dict[str, Any], folder: Path) -> str | None:
    """The folder that adapters are to, if any, which all sites of a rehearsal share with the operator."""
    model = tables.get("model")
    if not isinstance(model, dict) or model.get("name") != LoRA.name or not model.get("path"):
        return None
    model["path"] = str(folder.resolve() / Path(str(model["path"])).expanduser())
    return str(model["path"])


def _vectors(tables: dict[str, Any], folder: Path) -> str | None:
    """The file of word vectors, if any, which all sites of a rehearsal share with the operator."""
    table = tables.get("vectors")
    if not isinstance(table, dict) or not isinstance(table.get("path"), str):
        return None
    table["path"] = str(folder.resolve() / Path(table["path"]).expanduser())
    return str(table["path"])


def _merged(tables: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(dict(tables))
    for key, value in more.items():
        inner = out.get(key)
        out[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return out


def _next_folder(folder: Path) -> Path:
    return next(path for k in count(1) if not (path := folder / f"rehearsal-{k}").exists())


def _script(folder: Path, name: str) -> str:
    return str((folder / name).resolve())


def stopping_signals() -> list[signal.Signals]:
    """Ctrl-C, the end that others ask for, and a terminal that is closed, unless that is to be outlived (`nohup`)."""
    known = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        known.append(signal.SIGHUP)
    return known


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal cuts short what puts things in order."""
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _interrupted_after() -> Iterator[None]:
    """Signals wait for the end of this, so that nothing is started that nobody knows of."""
    heard: list[int] = []
    # Not SIG_IGN, which the started process would inherit.
    with _handling(lambda number, _: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(heard[0])


@contextlib.contextmanager
def _handling(handler: Any) -> Iterator[None]:
    """Another handler for the signals that stop this process; Python hears them in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
