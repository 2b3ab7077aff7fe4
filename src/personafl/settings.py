"""Settings of a run: the tables of a config that are not data, model or algorithm, each checked when it is made."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from personafl.checks import check, check_types, table_without_unused
from personafl.errors import ConfigError
from personafl.local_settings import Local
from personafl.registry import require_known_name
from personafl.states import Ints
from personafl.streams import generator

__all__ = [
    "BACKEND_NAMES",
    "ENGINE_NAMES",
    "EngineSettings",
    "Local",
    "RaySettings",
    "Schedule",
    "check",
    "require_ray",
]

ENGINE_NAMES = ("stacked", "threaded", "loop")
"""Engines: how one process computes the work of its clients. `auto` chooses among them."""
BACKEND_NAMES = ("ray", "flower-sim")
"""Backends other than this process: where clients are. A config names them in place of an engine."""


def require_ray(what: str = "engine = 'ray'") -> None:
    """Say what to install, where Ray is not."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{what} needs Ray, which is not installed: pip install 'personafl[ray]'")


@dataclass(frozen=True)
class Schedule:
    """How long, how many, how often.

    Parameters
    ----------
    rounds
        Communication rounds.
    activity
        Share C of the clients that are active in a round: max(⌊C·M⌋, 1) of M.
    eval_every, checkpoint_every
        Rounds between evaluations (the last round is always evaluated) and between checkpoints; 0 for only at the end.
    eval_clients
        How many clients are evaluated: a sample that follows from the seed, the same at every evaluation, the last one
        included. clients.parquet and predictions.parquet then have only their rows. 0 for all clients.
    patience
        Evaluations without a better score on validation data after which the run ends, as if it were the last round.
        Left out, it goes on to the last round. Test data is never looked at.
    min_delta
        By how much a score has to be better to count.
    models_mb
        Megabytes up to which the personalized models of all clients are written. Above it, only the models of clients
        that were ever active are; the others share one, where the algorithm makes no model from a client's data
        before evaluation.
    """

    rounds: int = 100
    activity: float = 1.0
    eval_every: int = 10
    checkpoint_every: int = 10
    eval_clients: int = 0
    models_mb: int = 1024
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_types("", self)
        check("rounds", self.rounds, self.rounds >= 1, "at least 1")
        check("activity", self.activity, 0 < self.activity <= 1, "in (0, 1]: the share of clients active in a round")
        check("eval_every", self.eval_every, self.eval_every >= 0, "at least 0 (0: only after the last round)")
        check("checkpoint_every", self.checkpoint_every, self.checkpoint_every >= 0, "at least 0 (0: only at the end)")
        check("eval_clients", self.eval_clients, self.eval_clients >= 0, "at least 0 (0: all clients)")
        check("models_mb", self.models_mb, self.models_mb >= 0, "at least 0 megabytes")
        check("patience", self.patience, self.patience is None or self.patience >= 1, "at least 1, or left out")
        check("patience", self.patience, self.patience is None or self.eval_every > 0, "with eval_every above 0")
        check("min_delta", self.min_delta, self.min_delta >= 0, "at least 0")

    def table(self) -> dict[str, Any]:
        """As a config has it."""
        return table_without_unused(self, "patience")

    def cohort_size(self, clients: int) -> int:
        """How many of so many clients are active in a round, at least one."""
        # The small addition makes 0.29 × 100 the 29 that was meant.
        return max(int(self.activity * clients + 1e-9), 1)

    def cohort(self, seed: int, round: int, clients: int) -> Ints:
        """Who is active in a round: uniform, without replacement, a function of (seed, round)."""
        size = self.cohort_size(clients)
        if size == clients:
            return np.arange(clients)
        drawn = generator(seed, "cohort", round).choice(clients, size, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)

    def evaluated(self, seed: int, clients: int) -> Ints:
        """Who is evaluated: everybody, or a sample that is a function of the seed."""
        if not 0 < self.eval_clients < clients:
            return np.arange(clients)
        drawn = generator(seed, "evaluated").choice(clients, self.eval_clients, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)


@dataclass(frozen=True)
class EngineSettings:
    """Which engine or backend runs the clients, and what it may use: the `[engine]` table of a config.

    Parameters
    ----------
    name
        An engine of this process (`stacked`, `threaded`, `loop`), or `auto`, which times these on this model and
        machine and takes the fastest. Or a backend that has the clients elsewhere: `ray`, a cluster, see
        `RaySettings`, and `flower-sim`, Flower's simulator.
    threads
        torch threads; left out, the engine's own choice. With `ray` they are the driver's.
    memory
        Megabytes that clients worked on at once may take.
    device
        Where tensors live: `cpu`, `cuda`, `cuda:1`, …
    state_memory
        Megabytes of what clients keep between rounds that are kept in memory; more are memory-mapped files in the run
        folder. Only clients that were ever active count.
    precision
        Of the forward and backward pass: `float32`, or `bf16` (torch's autocast), where parameters, updates and losses
        stay float32. Every processor takes bf16, but most are slower with it; it is meant for GPUs and processors with
        AMX.
    """

    name: str = "auto"
    threads: int | None = None
    memory: int = 1024
    device: str = "cpu"
    state_memory: int = 1024
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_types("engine.", self)
        require_known_name("engine", self.name, ("auto", *ENGINE_NAMES, *BACKEND_NAMES))
        if self.name == "ray":
            require_ray()
            check("engine.device", self.device, self.device == "cpu", "cpu for ray: GPUs are ray.gpus_per_actor")
        check("engine.precision", self.precision, self.precision in ("float32", "bf16"), "float32 or bf16")
        if self.precision == "bf16":
            in_process = self.name not in BACKEND_NAMES
            check("engine.precision", self.precision, in_process, f"float32 on {self.name}")
        check("engine.threads", self.threads, self.threads is None or self.threads >= 1, "at least 1")
        check("engine.memory", self.memory, self.memory >= 1, "at least 1 megabyte")
        check("engine.state_memory", self.state_memory, self.state_memory >= 0, "at least 0 megabytes")
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"engine.device = {self.device!r}: {str(error).splitlines()[0]}") from None
        if self.precision == "bf16" and not has_bf16(self.device):
            raise ConfigError(f"engine.precision = 'bf16': the device {self.device!r} does not have it; use 'float32'")


def has_bf16(device: str) -> bool:
    """Whether a device can multiply bf16 numbers."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        one = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
        torch.mm(one, one)
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True)
class RaySettings:
    """Where the engine `ray` finds its actors, and what each may use: the `[ray]` table of a config.

    Parameters
    ----------
    address
        Of a cluster, such as `10.0.0.1:6379`, or `auto` for the one that this machine belongs to. Left out, a Ray is
        started on this machine for the run, unless the environment names a cluster (RAY_ADDRESS).
    actors
        Processes that share the clients; left out, as many as there are CPUs (or GPUs) for.
    cpus_per_actor
        CPUs, and torch threads, of each. Left out, one; or what there is, where there are fewer actors on one machine.
    gpus_per_actor
        GPUs of each, such as 1, or 0.5 for two actors on each GPU; actors then compute there.
    data
        The folder of a saved federation (`Federation.save`) that all machines can read: actors map it, and no data is
        sent to them.
    """

    address: str | None = None
    actors: int | None = None
    cpus_per_actor: int | None = None
    gpus_per_actor: float = 0.0
    data: str | None = None

    def __post_init__(self) -> None:
        check_types("ray.", self)
        check("ray.actors", self.actors, self.actors is None or self.actors >= 1, "at least 1")
        cpus = self.cpus_per_actor
        check("ray.cpus_per_actor", cpus, cpus is None or cpus >= 1, "at least 1")
        gpus = self.gpus_per_actor
        whole = 0 <= gpus < 1 or gpus == int(gpus)
        check("ray.gpus_per_actor", gpus, gpus >= 0 and whole, "0, a share of one GPU, or a whole number")
