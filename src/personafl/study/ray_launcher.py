"""The runs of a comparison side by side on Ray, each an ordinary simulation in a process of its own.

Runs and the driver meet in the comparison's folder alone: there the driver sees how far a run is, and finds it when it
has ended. So on several machines that folder has to be on a disk that they share, which is checked first.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from personafl.backends.ray.start import connect
from personafl.config import Config
from personafl.engines import ENGINES
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.files import disk_errors
from personafl.jobs import train_config
from personafl.runs.run import Run
from personafl.runs.watch import Lines
from personafl.settings import require_ray
from personafl.storage.folder import RunFolder
from personafl.storage.schemas import Round
from personafl.study.launch import Launcher, Listeners, PendingRun
from personafl.training.events import Listener
from personafl.version import __version__

log = logging.getLogger("personafl")

LOOK_EVERY = 0.3  # seconds


@contextmanager
def on_ray(folder: Path, address: str | None = None, at_once: int | None = None) -> Iterator[Launcher]:
    """Ray as a launcher of runs: `run_plan(planned, folder, launcher=launcher)`.

    Each run takes one CPU and one torch thread, or as many as `engine.threads` says, and a GPU if `engine.device` is
    one.
    A run whose process dies is started again once, and goes on after its last checkpoint. The listeners of a run hear
    of its start, its rounds (without their times) and its end.

    Parameters
    ----------
    folder
        The comparison's folder.
    address
        An existing cluster's, see `backends.ray.start.connect`; left out, Ray is started here.
    at_once
        How many runs may go on at a time; left out, as many as there are CPUs.
    """
    require_ray("--on ray")
    if at_once is not None and at_once < 1:
        raise ConfigError(f"at-once = {at_once}: must be at least 1")
    with connect(address):
        check_machines(folder.absolute())
        yield partial(_side_by_side, at_once)


def _side_by_side(
    at_once: int | None, due: Iterator[PendingRun], listeners: Listeners
) -> Generator[tuple[PendingRun, str | None]]:
    import ray

    going_on: dict[Any, _Watched] = {}
    sent = _Sent()
    try:
        while True:
            # As many wait as go on: enough for a cluster that grows with what waits, without all federations in memory.
            most = at_once or 2 * max(1, cpus())
            while len(going_on) < most and (one := next(due, None)) is not None:
                going_on[sent.start(one)] = _Watched(one, listeners)
            if not going_on:
                return
            ended, _ = ray.wait(list(going_on), timeout=LOOK_EVERY)
            for run in going_on.values():
                run.look()
            for ref in ended:
                run = going_on.pop(ref)
                died, why = _outcome(ref, run.due)
                if died and not run.died:
                    log.warning("%s with seed %d: %s; it is started again", run.due.job.method, run.due.job.seed, why)
                    run.died = True
                    going_on[sent.start(run.due)] = run
                else:
                    run.ended()
                    yield run.due, why
    finally:
        stop_tasks(list(going_on))


class _Sent:
    """Hands runs to Ray. Runs on the same federation, which come one after another, share one copy."""

    def __init__(self) -> None:
        import ray

        self._cpus = int(max((node["Resources"].get("CPU", 0) for node in _machines(ray)), default=0))
        self._federation: tuple[Federation, Any] | None = None

    def start(self, one: PendingRun) -> Any:
        import ray

        if self._federation is None or self._federation[0] is not one.federation:
            self._federation = (one.federation, ray.put(one.federation))
        threads, device = self._threads(one), one.job.config.engine.device
        gpus = int(device.startswith("cuda"))
        # A run sees only the GPU that it is given, so whatever its number is here, it is the first one there.
        engine = replace(one.job.config.engine, threads=threads, device="cuda" if gpus else device)
        task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0, name=one.path.name)(_make)
        return task.remote(replace(one.job.config, engine=engine), one.path.absolute(), Path.cwd(), self._federation[1])

    def _threads(self, one: PendingRun) -> int:
        """What the config says; else what a run began with, because its last bits depend on it; else one."""
        asked = one.job.config.engine
        if asked.name not in ("auto", *ENGINES):
            raise ConfigError(
                f"engine = {asked.name!r} spreads the clients of one run, --on ray spreads runs: use one of them"
            )
        if asked.threads is not None and 0 < self._cpus < asked.threads:
            raise ConfigError(
                f"engine.threads = {asked.threads}: no machine of this Ray has more than {self._cpus} CPUs"
            )
        if asked.threads is not None:
            return asked.threads
        folder = RunFolder(one.path)
        begun = folder.begun_manifest().get("resolved", {}) if folder.exists else {}
        same = asked.name in ("auto", begun.get("engine"))
        return min(begun.get("threads", 1), max(1, self._cpus)) if same else 1


class _Watched:
    """A run that goes on elsewhere; what its folder shows is told to its listeners."""

    def __init__(self, due: PendingRun, listeners: Listeners) -> None:
        self.due, self.died = due, False
        self._folder, self._lines = RunFolder(due.path), Lines(due.path / "rounds.jsonl", Round)
        self._ask, self._listeners = listeners, list[Listener]()
        self._begun, self._before = False, self._manifest_file()

    def look(self) -> None:
        """Read what is new."""
        if not self._begun:
            # A run that goes on writes its manifest too, when it has dropped what came after its checkpoint.
            if self._manifest_file() == self._before:
                return
            self._begun = True
            self._listeners = list(self._ask(self.due.job, False))
            _, records = self._lines.new()
            for listener in self._listeners:
                listener.started(self._folder.manifest(), records[-1]["round"] if records else 0)
        _, records = self._lines.new()
        for record in records:
            for listener in self._listeners:
                listener.round_ended(record, {})

    def ended(self) -> None:
        """It is over."""
        self.look()
        if not self._begun:  # it failed before its first round, and counts all the same
            self._ask(self.due.job, False)
        for listener in self._listeners:
            listener.ended()

    def _manifest_file(self) -> tuple[int, int] | None:
        try:
            about = (self.due.path / "run.toml").stat()
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns


def _outcome(ref: Any, due: PendingRun) -> tuple[bool, str | None]:
    """Whether the process of a run died, and why the run failed, if it did."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        error, warnings = ray.get(ref)
    except RayTaskError as broken:
        return False, f"{type(broken.cause).__name__}: {line(broken.cause)}"
    except RayError as broken:
        return True, f"its process died ({type(broken).__name__}: {line(broken)})"
    for warning in warnings:
        log.warning("%s with seed %d: %s", due.job.method, due.job.seed, warning)
    if isinstance(error, RunError):
        raise error  # the disk, or a folder in use: the next run would fail too
    if error is None and not (RunFolder(due.path).exists and Run(due.path).complete):
        raise RunError(f"{due.path} was trained but is not here: {_SHARED}")
    return False, None if error is None else str(error)


def stop_tasks(refs: Sequence[Any]) -> None:
    """End runs after their rounds, with a checkpoint."""
    if not refs:
        return
    import ray

    log.warning("stopping after the rounds that are going on (Ctrl-C again to stop at once)")
    for ref in refs:
        ray.cancel(ref)
    try:
        left = list(refs)
        while left:
            _, left = ray.wait(left, num_returns=len(left), timeout=LOOK_EVERY)
    except KeyboardInterrupt:
        for ref in refs:
            ray.cancel(ref, force=True)
        raise


# --- the machines ----------------------------------------------------------------------------------------------------

_SHARED = "on several machines, --out must name a folder on a disk that all of them share"


def _machines(ray: Any) -> list[dict[str, Any]]:
    """The nodes on which runs can be; the head of a cluster often has no CPUs to give."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def cpus() -> int:
    """The CPUs of the cluster."""
    import ray

    return int(ray.cluster_resources().get("CPU", 1))


def check_machines(folder: Path) -> None:
    """Every machine must have this personafl, and see and change what is in the folder."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with disk_errors(folder, "creating"):
        folder.mkdir(parents=True, exist_ok=True)
    answers = []
    for node in _machines(ray):
        token = folder / f".seen-{secrets.token_hex(8)}"
        with disk_errors(token, "writing"):
            token.touch()
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        answers.append((node, token, ray.remote(num_cpus=0, scheduling_strategy=there)(_take_away).remote(token)))
    try:
        for node, _, answer in answers:
            name = node["NodeManagerHostname"]
            try:
                version, taken = ray.get(answer)
            except RayError as error:
                reason = line(getattr(error, "cause", error))
                raise RunError(f"{name} cannot run personafl ({reason}): install {__version__} there") from None
            if version != __version__:
                raise RunError(f"{name} has personafl {version}, here it is {__version__}: install the same one there")
            if not taken:
                raise RunError(f"{name} does not see the files in {folder}, or may not change them: {_SHARED}")
    finally:
        for _, token, _ in answers:
            token.unlink(missing_ok=True)


def line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), "no reason given")


# --- what runs there -------------------------------------------------------------------------------------------------


def _take_away(token: Path) -> tuple[str, bool]:
    try:
        token.unlink()
    except OSError:
        return __version__, False
    return __version__, True


def _make(config: Config, path: Path, home: Path, federation: Federation) -> tuple[PersonaflError | None, list[str]]:
    """Train one run; what went wrong, and the warnings."""
    if home.is_dir():  # so that relative paths in the config mean the same
        os.chdir(home)
    torch.set_num_threads(config.engine.threads or 1)
    with _collected_warnings() as warnings:
        try:
            train_config(config, path, True, (), federation)
        except PersonaflError as error:
            return error, warnings
    return None, warnings


@contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """The warnings that are given inside."""
    said: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    collector = Collector(logging.WARNING)
    log.addHandler(collector)
    try:
        yield said
    finally:
        log.removeHandler(collector)
