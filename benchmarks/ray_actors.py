"""What actors bring, and what they cost: rounds on Ray beside rounds on the stacked engine.

    python benchmarks/ray_actors.py [--rounds 20] [--repeat 3] [--jobs c b] [--json]

Two jobs of `personafl bench`: the CNN (20 of 100 clients active, 20 steps each), which is worth spreading, and the
logistic regression on MNIST (100 of 1,000), whose rounds are so short that it is not. Each is trained by FedAvg with
one and with two actors of one CPU each, and by the stacked engine in this process with one thread and with two, in
turn, so that a noisy machine disturbs all alike; of several repetitions the smallest time counts.

A round's time is that of the clients' work and the aggregation: without evaluation, checkpoints, and the start of Ray
and its actors, which is shown apart. Bytes are those of a round between driver and actors, and what they should be: the
model once down; a mean of models up from each actor; a few numbers for each active client; and the states of clients
that are trained by an actor that does not own them.

The target is 1.6 times the speed with two actors on the CNN.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from personafl.algorithms import FedAvg
from personafl.bench.jobs import JOBS, Job
from personafl.clients import Clients, LocalClients
from personafl.cluster import RayClients
from personafl.config import EngineSettings, RaySettings
from personafl.engines.base import torch_threads
from personafl.engines.batches import Ints
from personafl.engines.stacked import StackedEngine
from personafl.folder import RunFolder
from personafl.runner import Runner, Schedule

TARGET = 1.6
WARM = 2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--jobs", nargs="+", choices=["b", "c"], default=["c", "b"])
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    logging.getLogger("personafl").setLevel(logging.ERROR)
    results = {key: measure(JOBS[key], given.rounds, given.repeat) for key in given.jobs}
    print(json.dumps(results) if given.json else "\n\n".join(table(JOBS[key], found) for key, found in results.items()))


def measure(job: Job, rounds: int, repeat: int) -> dict[str, dict[str, float]]:
    """Seconds of a round by who does it, the best of several repetitions; bytes where they are moved."""
    ways = {"stacked, 1 thread": ("stacked", 1), "stacked, 2 threads": ("stacked", 2),
            "ray, 1 actor": ("ray", 1), "ray, 2 actors": ("ray", 2)}  # fmt: skip
    found: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for name, (engine, many) in ways.items():
            now = timed(job, engine, many, rounds)
            before = found.setdefault(name, now)
            found[name] = now | {"seconds": min(now["seconds"], before["seconds"])}
    return found


def timed(job: Job, engine: str, many: int, rounds: int) -> dict[str, float]:
    federation, task = job.federation(), job.task()
    schedule = Schedule(WARM + rounds + 1, job.active / job.clients, eval_every=0, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as name:
        folder, begun = RunFolder(Path(name)), time.perf_counter()
        clients: Clients
        if engine == "ray":
            settings = EngineSettings("ray", threads=1), RaySettings(actors=many, cpus_per_actor=1)
            clients = RayClients(federation, task, job.local, 0, folder, *settings)
        else:
            clients = LocalClients(StackedEngine(task, federation, job.local, 0, threads=many))
        runner = Runner(FedAvg(), clients, schedule, folder, {})
        out = {"start": time.perf_counter() - begun}
        with torch_threads(clients.threads), torch.no_grad():
            for _ in range(WARM):
                runner.step()
            if isinstance(clients, RayClients):
                clients.shards.moved.clear()
            begun = time.perf_counter()
            for _ in range(rounds):
                runner.step()
            out["seconds"] = (time.perf_counter() - begun) / rounds
        if isinstance(clients, RayClients):
            out |= bytes_of(clients, job, [schedule.cohort(0, WARM + 1 + r, job.clients) for r in range(rounds)])
        clients.close()
    return out


def bytes_of(clients: RayClients, job: Job, cohorts: list[Ints]) -> dict[str, float]:
    """What a round moved, and should have."""
    shards, size, row, rounds = clients.shards, 4 * clients.task.size, clients.row_bytes, len(cohorts)
    trainers = [shards.trainers(cohort) for cohort in cohorts]
    busy = np.mean([len(np.unique(trainer)) for trainer in trainers])
    guests = np.mean([(trainer != shards.owner[ids]).sum() for trainer, ids in zip(trainers, cohorts, strict=True)])
    out = {way: sum(many for name, many in shards.moved.items() if name.endswith(f"_{way}")) for way in ("down", "up")}
    # Down: the model, and numbers of clients. Up: these, their steps, and a mean, with its samples and clients, of each
    # actor. Guests are named, and their rows go from their owners to the driver, to those who help, and back.
    return {
        "down": out["down"] / rounds,
        "down_predicted": size + 8 * job.active + guests * (3 * 8 + 2 * row),
        "up": out["up"] / rounds,
        "up_predicted": busy * (size + 16) + 16 * job.active + guests * 2 * row,
    }


def table(job: Job, found: dict[str, dict[str, float]]) -> str:
    lines = [
        job.about,
        "",
        "| | round, ms | start, s | bytes down | predicted | bytes up | predicted |",
        "|-" * 7 + "|",
    ]
    for name, now in found.items():
        cells = [f"{1e3 * now['seconds']:.1f}", f"{now['start']:.1f}"]
        cells += [f"{now[key]:,.0f}" if key in now else "" for key in ("down", "down_predicted", "up", "up_predicted")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    seconds = {name: now["seconds"] for name, now in found.items()}
    gain = seconds["ray, 1 actor"] / seconds["ray, 2 actors"]
    kept = f": the target of {TARGET:g} is {'kept' if gain >= TARGET else 'missed'}" if job.kind == "cnn" else ""
    over = seconds["ray, 1 actor"] - seconds["stacked, 1 thread"]
    lines += ["", f"Two actors against one: {gain:.2f} times the speed{kept}."]
    lines += [f"One actor against the stacked engine with one thread: {1e3 * over:+.1f} ms a round."]
    best = min(seconds[name] for name in found if name.startswith("stacked"))
    lines += [
        f"Two actors against the stacked engine at its best: {best / seconds['ray, 2 actors']:.2f} times the speed."
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
