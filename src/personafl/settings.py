"""Settings of a run: the tables of a config that are not data, model or algorithm, each checked when it is made."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.registry import require_known_name
from personafl.states import Ints
from personafl.streams import generator

ENGINE_NAMES = ("stacked", "threaded", "loop")
"""Engines: how one process computes the work of its clients. `auto` chooses among them."""
BACKEND_NAMES = ("ray", "flower-sim")
"""Backends other than this process: where clients are. A config names them in place of an engine."""


def require_ray(what: str = "engine = 'ray'") -> None:
    """Say what to install, where Ray is not."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{what} needs Ray, which is not installed: pip install 'personafl[ray]'")


def check(key: str, value: Any, ok: bool, expected: str) -> None:
    """Raise a ConfigError that names the setting, its value and its range."""
    if not ok:
        raise ConfigError(f"{key} = {value!r}: must be {expected}")


@dataclass(frozen=True)
class Local:
    """How clients train: the `[local]` table of a config.

    Parameters
    ----------
    lr
        Learning rate η of plain SGD.
    batch_size
        Samples per step; 0 takes all of a client's training data at every step.
    steps, epochs
        Local work per round, as one or the other: a number of steps, or of passes over the client's data.
    momentum, weight_decay
        As in `torch.optim.SGD`; momentum starts anew in every round.
    lr_decay, lr_decay_every
        The learning rate is multiplied by `lr_decay` after every `lr_decay_every` rounds.
    held_back
        Share of each client's validation samples that algorithms do not see: scores on them (`personal_held_*`) can
        be compared between methods that choose something on validation data and methods that do not. Left out, they
        see all of it.
    """

    lr: float = 0.05
    batch_size: int = 10
    steps: int | None = None
    epochs: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    lr_decay_every: int = 1
    held_back: float | None = None

    def __post_init__(self) -> None:
        check("local.lr", self.lr, 0 < self.lr < 1e38, "above 0, and no more than float32 holds")
        check("local.batch_size", self.batch_size, self.batch_size >= 0, "at least 1, or 0 for all data at once")
        check("local.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("local.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        check("local.lr_decay", self.lr_decay, 0 < self.lr_decay <= 1, "in (0, 1]")
        check("local.lr_decay_every", self.lr_decay_every, self.lr_decay_every >= 1, "at least 1 round")
        held = self.held_back
        check("local.held_back", held, held is None or 0 < held < 1, "above 0 and below 1, or left out")
        for name, value in (("steps", self.steps), ("epochs", self.epochs)):
            check(f"local.{name}", value, value is None or value >= 1, "at least 1")
        check("local.epochs", self.epochs, None in (self.steps, self.epochs), "left out where local.steps is given")

    def rate(self, round: int) -> float:
        """The learning rate in a round (rounds count from 1)."""
        return self.lr * float(self.lr_decay ** ((round - 1) // self.lr_decay_every))

    def default_steps(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of steps of each client that does not choose its own (20 where nothing is said)."""
        if self.epochs is None:
            return np.full(len(samples), 20 if self.steps is None else self.steps, np.int64)
        size = np.maximum(samples, 1) if self.batch_size == 0 else np.full(len(samples), self.batch_size)
        return np.asarray(self.epochs * -(-samples // size), np.int64)


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

    def __post_init__(self) -> None:
        check("rounds", self.rounds, self.rounds >= 1, "at least 1")
        check("activity", self.activity, 0 < self.activity <= 1, "in (0, 1]: the share of clients active in a round")
        check("eval_every", self.eval_every, self.eval_every >= 0, "at least 0 (0: only after the last round)")
        check("checkpoint_every", self.checkpoint_every, self.checkpoint_every >= 0, "at least 0 (0: only at the end)")
        check("eval_clients", self.eval_clients, self.eval_clients >= 0, "at least 0 (0: all clients)")
        check("models_mb", self.models_mb, self.models_mb >= 0, "at least 0 megabytes")

    def cohort_size(self, clients: int) -> int:
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
    """

    name: str = "auto"
    threads: int | None = None
    memory: int = 1024
    device: str = "cpu"
    state_memory: int = 1024

    def __post_init__(self) -> None:
        require_known_name("engine", self.name, ("auto", *ENGINE_NAMES, *BACKEND_NAMES))
        if self.name == "ray":
            require_ray()
            check("engine.device", self.device, self.device == "cpu", "cpu for ray: GPUs are ray.gpus_per_actor")
        check("engine.threads", self.threads, self.threads is None or self.threads >= 1, "at least 1")
        check("engine.memory", self.memory, self.memory >= 1, "at least 1 megabyte")
        check("engine.state_memory", self.state_memory, self.state_memory >= 0, "at least 0 megabytes")
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"engine.device = {self.device!r}: {str(error).splitlines()[0]}") from None


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
        check("ray.actors", self.actors, self.actors is None or self.actors >= 1, "at least 1")
        cpus = self.cpus_per_actor
        check("ray.cpus_per_actor", cpus, cpus is None or cpus >= 1, "at least 1")
        gpus = self.gpus_per_actor
        whole = 0 <= gpus < 1 or gpus == int(gpus)
        check("ray.gpus_per_actor", gpus, gpus >= 0 and whole, "0, a share of one GPU, or a whole number")
