"""What actors bring, and what they cost: rounds on Ray beside rounds on the stacked engine.

    python benchmarks/ray_actors.py [--rounds 20] [--jobs c b] [--json]

Two jobs of `personafl bench`: the CNN (20 of 100 clients active, 20 steps each), which is worth spreading, and the
logistic regression on MNIST (100 of 1,000), whose rounds are so short that it is not. Each is trained by FedAvg with
one and with two actors of one CPU each, and by the stacked engine in this process with one thread and with two. They
take turns round by round, so that a noisy machine disturbs all alike; the median counts, and the least is shown beside.

A round's time is that of the clients' work and the aggregation: without evaluation, checkpoints, and the start of Ray
and its actors, which is shown apart. Bytes are those of a round between driver and actors, and what they should be: the
model once down; a mean of models up from each actor; a few numbers for each active client; and the states of clients
that are trained by an actor that does not own them.

The target is 1.6 times the speed with two actors on the CNN. What two cores of a machine can do at all is measured
beside it: two processes that never talk, with half of the clients each.
"""

import argparse
import json
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import ray
import torch

from personafl.algorithms import FedAvg
from personafl.backends.ray.clients import RayClients
from personafl.backends.ray.start import _only_here
from personafl.engines.machine import torch_threads
from personafl.engines.stacked import StackedEngine
from personafl.settings import EngineSettings, RaySettings, Schedule
from personafl.states import Ints
from personafl.storage.folder import RunFolder
from personafl.training.clients import Clients, LocalClients
from personafl.training.job import Job as TrainingJob
from personafl.training.runner import Runner
from personafl_bench.jobs import JOBS, Job

TARGET = 1.6
WARM = 2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--jobs", nargs="+", choices=["b", "c"], default=["c", "b"])
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    with _only_here(True):  # three actors, of which one or two work at a time
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    results = {key: measure(JOBS[key], given.rounds) for key in given.jobs}
    print(json.dumps(results) if given.json else "\n\n".join(table(JOBS[key], found) for key, found in results.items()))


def measure(job: Job, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of a round by who does it; bytes where they are moved."""
    ways = {"stacked, 1 thread": ("stacked", 1), "stacked, 2 threads": ("stacked", 2),
            "ray, 1 actor": ("ray", 1), "ray, 2 actors": ("ray", 2)}  # fmt: skip
    halves = f"two processes, {job.active // 2} clients each"
    schedule = Schedule(WARM + rounds + 1, job.active / job.clients, eval_every=0, checkpoint_every=0)
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        found, runners = {}, {}
        for name, (engine, many) in ways.items():
            begun = time.perf_counter()
            clients = clients_of(job, engine, many, folder)
            stack.callback(clients.close)
            runners[name] = Runner(FedAvg(), clients, schedule, folder, {})
            found[name] = {"start": time.perf_counter() - begun}
        begun = time.perf_counter()
        pipes = [stack.enter_context(half(job.key, WARM + rounds + 1)) for _ in range(2)]
        found[halves] = {"start": time.perf_counter() - begun}
        times: dict[str, list[float]] = {name: [] for name in found}
        for now in range(WARM + rounds):
            for name, runner in runners.items():
                if now == WARM and isinstance(runner.clients, RayClients):
                    runner.clients.shards.moved.clear()
                with torch_threads(runner.clients.threads), torch.no_grad():
                    begun = time.perf_counter()
                    runner.step()
                    times[name].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            for pipe in pipes:
                pipe.send("step")
            for pipe in pipes:
                pipe.recv()
            times[halves].append(time.perf_counter() - begun)
        cohorts = [schedule.cohort(0, WARM + 1 + r, job.clients) for r in range(rounds)]
        for name, taken in times.items():
            found[name] |= {"seconds": float(np.median(taken[WARM:])), "least": min(taken[WARM:])}
        for name, runner in runners.items():
            if isinstance(runner.clients, RayClients):
                found[name] |= bytes_of(runner.clients, job, cohorts)
    return found


@contextmanager
def half(key: str, rounds: int) -> Iterator[Connection]:
    """A process that does a round of half of the clients whenever it is sent a word."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_half, args=(key, rounds, there), daemon=True)
    process.start()
    here.recv()
    yield here
    process.terminate()
    process.join()


def _half(key: str, rounds: int, pipe: Connection) -> None:
    job = JOBS[key]
    clients = LocalClients(StackedEngine(job.task(), job.federation(), job.local, 0, threads=1))
    schedule = Schedule(rounds, job.active / 2 / job.clients, eval_every=0, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as name, torch_threads(1), torch.no_grad():
        runner = Runner(FedAvg(), clients, schedule, RunFolder(Path(name)), {})
        pipe.send("ready")
        while pipe.recv():
            runner.step()
            pipe.send("done")


def clients_of(job: Job, engine: str, many: int, folder: RunFolder) -> Clients:
    federation, task = job.federation(), job.task()
    if engine == "stacked":
        return LocalClients(StackedEngine(task, federation, job.local, 0, threads=many))
    settings = EngineSettings("ray", threads=1), RaySettings(actors=many, cpus_per_actor=1)
    planned = TrainingJob(federation, task, FedAvg(), local=job.local, engine=settings[0], ray=settings[1])
    return RayClients(planned, folder)


def bytes_of(clients: RayClients, job: Job, cohorts: list[Ints]) -> dict[str, float]:
    """What a round moved, and should have."""
    shards, size, row, rounds = clients.shards, 4 * clients.task.size, clients.row_bytes, len(cohorts)
    trainers = [shards.trainers(cohort) for cohort in cohorts]
    busy = np.mean([len(np.unique(trainer)) for trainer in trainers])
    borrowed = np.mean([(trainer != shards.owner[ids]).sum() for trainer, ids in zip(trainers, cohorts, strict=True)])
    out = {way: sum(many for name, many in shards.moved.items() if name.endswith(f"_{way}")) for way in ("down", "up")}
    # Down: the model, and numbers of clients. Up: these, their steps, and a mean, with its samples and clients, of each
    # actor. Borrowed clients are named, and their rows go from their owners to the driver, to those who help, and back.
    return {
        "down": out["down"] / rounds,
        "down_predicted": size + 8 * job.active + borrowed * (3 * 8 + 2 * row),
        "up": out["up"] / rounds,
        "up_predicted": busy * (size + 16) + 16 * job.active + borrowed * 2 * row,
    }


def table(job: Job, found: dict[str, dict[str, float]]) -> str:
    lines = [
        job.about,
        "",
        "| | round, ms | least | start, s | bytes down | predicted | bytes up | predicted |",
        "|-" * 8 + "|",
    ]
    for name, now in found.items():
        cells = [f"{1e3 * now['seconds']:.1f}", f"{1e3 * now['least']:.1f}", f"{now['start']:.1f}"]
        cells += [f"{now[key]:,.0f}" if key in now else "" for key in ("down", "down_predicted", "up", "up_predicted")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    seconds = {name: now["seconds"] for name, now in found.items()}
    gain = seconds["ray, 1 actor"] / seconds["ray, 2 actors"]
    kept = f": the target of {TARGET:g} is {'kept' if gain >= TARGET else 'missed'}" if job.kind == "cnn" else ""
    over = seconds["ray, 1 actor"] - seconds["stacked, 1 thread"]
    lines += ["", f"Two actors against one: {gain:.2f} times the speed{kept}."]
    lines += [f"One actor against the stacked engine with one thread: {1e3 * over:+.1f} ms a round."]
    bound = seconds["stacked, 1 thread"] / next(s for name, s in seconds.items() if name.startswith("two processes"))
    lines += [f"Two processes that share nothing against one that does it all: {bound:.2f} times the speed."]
    best = min(seconds[name] for name in found if name.startswith("stacked"))
    lines += [
        f"Two actors against the stacked engine at its best: {best / seconds['ray, 2 actors']:.2f} times the speed."
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
