"""The actors of a run: who owns which clients, how they are asked, and what happens when one of them dies."""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from personafl.backends.ray.actor import Shard, ShardRequest, Worker, WorkerConfig
from personafl.backends.ray.start import connect
from personafl.engines.machine import cores
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.inputs import tensors
from personafl.settings import Local
from personafl.states import Ints
from personafl.version import __version__

if TYPE_CHECKING:
    from personafl.settings import RaySettings

log = logging.getLogger("personafl")

ON_THE_WAY = 512 * 2**20
"""Bytes of samples that may be on their way to actors at once."""
DEATHS = 3
"""How often in a row the actor of a shard may die before the run gives up."""

Messages = Mapping[int, tuple[Any, ...]]


class Shards:
    """The shards of a federation, by number, each on an actor.

    Where an actor dies, a new one takes its shard; or, where Ray has no room for one within `patience` seconds, one of
    those that are left takes it besides its own.

    Parameters
    ----------
    config
        What the actors are to know; memory and state memory are shared by all actors of a machine.
    bring_back
        Called with the numbers of shards that have a new actor, to give their clients states; says which, in words.

    Attributes
    ----------
    ids, owner
        The numbers of the clients of each shard, and the shard of each client.
    moved
        Bytes that went between driver and actors, by what they were for: `train_down`, `train_up`, `measure_down`, …
        What goes to all actors counts once: Ray moves it once to each machine.
    """

    patience = 30.0
    worth = 20_000_000  # samples × parameters: where two actors have less between them, help costs more than it brings
    share = 0.6  # of Ray's memory, for samples that all actors of one machine read there; the rest is for messages

    def __init__(
        self,
        federation: Federation,
        config: WorkerConfig,
        settings: RaySettings,
        bring_back: Callable[[list[int]], str],
    ) -> None:
        self._federation, self._config, self._settings, self._bring_back = federation, config, settings, bring_back
        self.ids: list[Ints] = []
        self.moved: Counter[str] = Counter()
        self.workers: list[Any] = []  # of each shard; a worker may have several
        self._told_soon: list[Any] = []
        self._connection = ExitStack()

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.ids)))

    def open(self) -> None:
        """Connect to Ray, start the actors and send them their shards, unless that was done."""
        if self.workers:
            return
        import ray

        ours = self._connection.enter_context(connect(self._settings.address))
        count, cpus = self._size(ray, ours)
        beside = -(-count // max(1, sum(node["Alive"] for node in ray.nodes())))
        config = replace(
            self._config,
            threads=cpus,
            memory=max(64, self._config.memory // beside),
            state_memory=self._config.state_memory // beside,
            device="cuda" if self._settings.gpus_per_actor else "cpu",
        )
        self._told = ray.put(config)
        self._actor = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=self._settings.gpus_per_actor, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._parameters = sum(parameter.numel() for parameter in config.module.parameters())
        self._work = work(config.local, self._federation.sizes("train"))
        self.ids = deal(self._work, self._federation.sizes("train"), count)
        self.owner = np.zeros(len(self._federation), np.int64)
        for n, ids in enumerate(self.ids):
            self.owner[ids] = n
        self._deaths = [0] * count
        self.workers = [self._new_worker() for _ in range(count)]
        self._wait_for_actors(ray)
        self._everybody = self._in_one_memory(ray)
        self._send(list(self))

    def places(self, ids: Ints) -> dict[int, Ints]:
        """Which of these clients each shard owns: their places among `ids`."""
        return by_value(self.owner[ids])

    def trainers(self, ids: Ints) -> Ints:
        """The shard that is to train each of these clients.

        That is its own, but where actors can read everybody's data, those who own fewer of a cohort help the others.
        """
        owner = self.owner[ids]
        if self._everybody is None and self._settings.data is None:
            return owner
        first = {worker: n for n, worker in reversed(list(enumerate(self.workers)))}  # an actor may have several shards
        home = np.array([first[worker] for worker in self.workers])
        trainer = rebalance(home[owner], self._work[ids], list(first.values()), self.worth / self._parameters)
        return np.where(trainer == home[owner], owner, trainer)

    def put(self, purpose: str, value: Any) -> Any:
        """What goes to all actors: written to the object store once."""
        import ray

        self.moved[f"{purpose}_down"] += message_bytes(value)
        return ray.put(value)

    def ask(self, method: str, messages: Messages) -> dict[int, Any]:
        """Have shards do something. One whose actor dies is asked again, in the state that it was brought back to."""
        found, gone = self.answers(method, messages)
        while gone:
            more, gone = self.answers(method, {n: messages[n] for n in gone})
            found |= more
        return {n: found[n] for n in messages}

    def answers(self, method: str, messages: Messages) -> tuple[dict[int, Any], dict[int, str]]:
        """What shards answer, and why those do not whose actor has died; these have a new one then."""
        import ray

        asked = {n: getattr(self.workers[n], method).remote(n, *message) for n, message in messages.items()}
        found: dict[int, Any] = {}
        gone: dict[int, str] = {}
        for n, answer in asked.items():
            try:
                found[n] = ray.get(answer)
                self._deaths[n] = 0
            except _lost() as error:
                gone[n] = _reason(error)
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
        self._check_told(ray)
        self.moved[f"{method}_down"] += message_bytes([messages[n] for n in found])
        self.moved[f"{method}_up"] += message_bytes(list(found.values()))
        if gone:
            self._replace(gone)
        return found, gone

    def tell(self, method: str, messages: Messages) -> None:
        """Have shards do something that has no answer; an error if an actor dies."""
        import ray

        try:
            ray.get([getattr(self.workers[n], method).remote(n, *message) for n, message in messages.items()])
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from None

    def tell_soon(self, method: str, messages: Messages) -> None:
        """Have shards do something before whatever they are asked next; one whose actor dies will not have done it."""
        self._told_soon += [getattr(self.workers[n], method).remote(n, *message) for n, message in messages.items()]
        self.moved[f"{method}_down"] += message_bytes(list(messages.values()))

    def _check_told(self, ray: Any) -> None:
        told, self._told_soon = self._told_soon, []
        for done in told:
            try:
                ray.get(done)
            except _lost():
                continue  # it will be noticed when it is asked for something
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None

    def close(self) -> None:
        """End the actors, and the Ray that was started for them; a cluster goes on."""
        if self.workers:
            import ray

            for worker in set(self.workers):
                ray.kill(worker)
            log.info("bytes between driver and actors: %s", dict(sorted(self.moved.items())))
        self.workers = []
        self._connection.close()

    # --- at the start ----------------------------------------------------------------------------------------

    def _size(self, ray: Any, ours: bool) -> tuple[int, int]:
        """How many actors, and how many CPUs each has: all that are free, and never more than there are."""
        asked, cpus, gpus = self._settings.actors, self._settings.cpus_per_actor, self._settings.gpus_per_actor
        free = ray.cluster_resources() | {"CPU": float(cores())} if ours else ray.available_resources()
        room = int(free.get("CPU", 0) // (cpus or 1))
        if gpus:
            room = min(room, int(free.get("GPU", 0) // gpus))
        if ours and (asked or 1) > room:
            raise ConfigError(
                f"ray.actors = {asked or 1} with {cpus or 1} CPUs and {gpus:g} GPUs each: this machine has "
                f"{free['CPU']:g} CPUs and {free.get('GPU', 0):g} GPUs, enough for {room}"
            )
        count = min(asked or max(room, 1), len(self._federation))
        return count, cpus or (max(1, int(free["CPU"]) // count) if ours else 1)

    def _wait_for_actors(self, ray: Any) -> None:
        starting = waiting = [worker.version.remote() for worker in self.workers]
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=self.patience)
            if waiting:
                missing = f"{len(waiting)} of {len(starting)} actors"
                log.warning("waiting for %s to start: does the cluster have free CPUs or GPUs for them?", missing)
        try:
            versions = set(ray.get(starting))
        except _lost() as error:
            raise RunError(f"an actor could not start ({_reason(error)}): is personafl on every machine?") from None
        if versions != {__version__}:
            found = ", ".join(sorted(versions))
            raise RunError(f"the cluster has personafl {found}, and here is {__version__}: install one and the same")

    def _in_one_memory(self, ray: Any) -> Any:
        """Everybody's samples in the memory of the one machine that there is, if there is room for them."""
        size = sum(part.nbytes for part in (*tensors(self._federation.x), self._federation.y))
        room = size <= self.share * ray.available_resources().get("object_store_memory", 0)
        one = sum(node["Alive"] for node in ray.nodes()) == 1
        if self._settings.data is not None or self._settings.gpus_per_actor or not (room and one):
            return None
        fields = Shard.of(self._federation, np.arange(len(self._federation)), None).fields
        self.moved["take_down"] += message_bytes(fields)
        return ray.put(fields)

    def _send(self, numbers: list[int]) -> None:
        """Send shards to their actors."""
        import ray

        if self._everybody is not None:
            self.tell("take", {n: (Shard(self.ids[n]), self._everybody) for n in numbers})
            return
        waiting: dict[int, tuple[Any, ...]] = {}
        many = 0
        for n in numbers:
            shard = Shard.of(self._federation, self.ids[n], self._settings.data)
            self.moved["take_down"] += message_bytes(shard)
            many += message_bytes(shard)
            waiting[n] = (ray.put(shard),)
            if many > ON_THE_WAY or n == numbers[-1]:
                self.tell("take", waiting)
                waiting, many = {}, 0

    # --- when actors die -------------------------------------------------------------------------------------

    def _replace(self, gone: Mapping[int, str]) -> None:
        """Give the shards of actors that died to others."""
        import ray

        for n, why in gone.items():
            self._deaths[n] += 1
            if self._deaths[n] >= DEATHS:
                raise RunError(f"the actor of {len(self.ids[n])} clients died {DEATHS} times in a row ({why})")
        dead = {self.workers[n] for n in gone}
        for worker in dead:
            ray.kill(worker)  # it may be out of reach only, and must not come back
        lost = [n for n in self if self.workers[n] in dead]
        left = [worker for worker in dict.fromkeys(self.workers) if worker not in dead]
        successors = {worker: self._successor(left) for worker in dead}
        self.workers = [successors.get(worker, worker) for worker in self.workers]
        try:
            self._send(lost)
            now = self._bring_back(lost)
        except _lost():
            return  # it will be noticed when they are asked for something
        many, why = sum(len(self.ids[n]) for n in lost), next(iter(gone.values()))
        log.warning("%s: another has its %d clients now, %s", why, many, now)

    def _new_worker(self) -> Any:
        return self._actor.remote(self._told)

    def _successor(self, left: list[Any]) -> Any:
        """A new actor; or, where there is no room for one, that with the fewest shards of those that are left."""
        import ray

        new = self._new_worker()
        started, _ = ray.wait([new.version.remote()], timeout=self.patience if left else None)
        if started:
            return new
        ray.kill(new)
        log.warning("Ray has no room for a new actor: one that is left does its work too")
        return min(left, key=self.workers.count)


def work(local: Local, samples: Ints) -> Ints:
    """On how many samples clients train in a round."""
    if local.epochs is not None:
        return samples
    return local.default_steps(samples) * np.minimum(samples, local.batch_sizes(samples))


def deal(work: Ints, samples: Ints, count: int) -> list[Ints]:
    """Who goes to which shard, so that all train on equally many samples in a round, and hold equally many.

    >>> [ids.tolist() for ids in deal(np.array([50, 10, 20, 20]), np.array([50, 10, 20, 20]), 2)]
    [[0], [1, 2, 3]]
    """
    shards: list[list[int]] = [[] for _ in range(count)]
    least = [(0, 0, n) for n in range(count)]
    for i in np.lexsort((-samples, -work)).tolist():
        done, held, n = least[0]
        heapq.heapreplace(least, (done + int(work[i]), held + int(samples[i]), n))
        shards[n].append(i)
    return [np.sort(np.array(ids, np.int64)) for ids in shards]


def rebalance(owner: Ints, work: Ints, workers: list[int], worth: float = 0) -> Ints:
    """Who trains each client: its owner, but for as few as it takes to give all workers about the same work.

    About: to a twentieth, or to `worth` if that is more.

    >>> rebalance(np.array([0, 0, 0, 0, 1]), np.array([5, 5, 5, 5, 5]), [0, 1]).tolist()
    [1, 0, 0, 0, 1]
    """
    trainer = owner.copy()
    load = {n: int(work[owner == n].sum()) for n in workers}
    while True:
        most, least = max(load, key=load.__getitem__), min(load, key=load.__getitem__)
        gap = load[most] - load[least]
        theirs = np.flatnonzero((trainer == most) & (work > 0) & (work < gap))
        if not len(theirs) or gap < max(0.05 * load[most], worth):
            return trainer
        i = theirs[np.argmin(np.abs(work[theirs] - gap / 2))]
        trainer[i] = least
        load[most] -= int(work[i])
        load[least] += int(work[i])


def by_value(numbers: Ints) -> dict[int, Ints]:
    """The places of each number."""
    return {int(n): np.flatnonzero(numbers == n) for n in np.unique(numbers)}


def message_bytes(value: Any) -> int:
    """The bytes of all arrays in a message."""
    if isinstance(value, np.ndarray | pa.Table):
        return int(value.nbytes)
    if isinstance(value, ShardRequest | Shard):
        return message_bytes(vars(value))
    if isinstance(value, Mapping):
        return sum(message_bytes(part) for part in value.values())
    return sum(message_bytes(part) for part in value) if isinstance(value, list | tuple) else 0


def _lost() -> tuple[type[Exception], ...]:
    """What Ray raises where an actor, its process or its machine is gone."""
    from ray import exceptions as ray

    return ray.RayActorError, ray.ObjectLostError, ray.WorkerCrashedError, ray.NodeDiedError, ray.OutOfMemoryError


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"its actor died: {shorten(lines[-1], 160)}" if lines else "its actor died"


def _cause(error: Any) -> Exception:
    """A problem that one line explains, as such; anything else with the actor's stack trace."""
    return error.cause if isinstance(error.cause, PersonaflError) else error
