"""How time and memory grow with the number of clients, when as many as ever are active.

    python benchmarks/growth.py [--clients 1000 10000 100000 1000000] [--algorithm ditto] [--repeat 3] [--json]

Logistic regression on 784 features (7,850 parameters), 100 clients active in each of 101 rounds, 20 steps of batch 10,
a checkpoint every 10 rounds; at the end 1,000 clients are evaluated and the models written. With a million clients,
10,000 are ever active. Each run is a `pf.train` in a process of its own, sizes in turn, so that a noisy machine
disturbs all alike.

The features are a memory-mapped file, as `Federation.load` maps it: 10 training samples and a test sample for every
client, 34 GB for a million. Only the samples of clients that take part are written, the rest of the file is a hole that
takes no room on the disk and that nobody reads; training would notice no difference but for the disk's own speed.
Hashing 34 GB of zeros to fingerprint them is left out.

A round's time is from the end of the round before to its end, checkpoint included: the median of rounds 21 to 100, and
the mean, which counts the checkpoints (the first rounds meet every client for the first time, the last evaluates). Of
several repetitions the smallest counts. Memory is the most that the process ever had resident, Python, torch and mapped
pages included, and the most of it that was anonymous: mapped pages the kernel may drop at any time. The targets are 1.3
times the time that a round takes with the fewest clients, and 2 GB.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ACTIVE, ROUNDS, EVALUATED, SEED = 100, 101, 1_000, 0
TRAIN, TEST, FEATURES, CLASSES = 10, 1, 784, 10
WARM = 20
RATIO, GIGABYTES = 1.3, 2.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--clients", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    arguments.add_argument("--algorithm", default="ditto")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=1, help="torch threads; one is disturbed less by others")
    arguments.add_argument("--json", action="store_true", help="print JSON alone")
    arguments.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.clients[0], given.algorithm, given.threads)))
        return
    found: dict[int, list[dict[str, float]]] = {clients: [] for clients in given.clients}
    with tempfile.TemporaryDirectory() as folder:
        for clients in given.clients:
            write_features(Path(folder, f"{clients}.npy"), clients)
        for _ in range(given.repeat):
            for clients in given.clients:
                path = Path(folder, f"{clients}.npy")
                found[clients].append(in_a_new_process(path, clients, given.algorithm, given.threads))
    results = {clients: best(runs) for clients, runs in found.items()}
    print(json.dumps(results) if given.json else table(results))


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """The smallest times of several runs, and the most memory."""
    return {key: (max if key.endswith("megabytes") else min)(run[key] for run in runs) for key in runs[0]}


def table(results: dict[int, dict[str, float]]) -> str:
    first = next(iter(results.values()))
    lines = ["| clients | ever active | median round, ms | ratio | mean round, ms | ratio | processor, ms | ratio "
             "| resident, MB | anonymous, MB | start, s | end, s |", "|-" * 12 + "|"]  # fmt: skip
    for clients, run in results.items():
        times = (f"{run[key]:.1f} | {run[key] / first[key]:.2f}" for key in ("median", "mean", "processor"))
        memory = (f"{run[key]:.0f}" for key in ("resident_megabytes", "anonymous_megabytes"))
        ends = (f"{run[key]:.1f}" for key in ("start_seconds", "end_seconds"))
        lines.append(f"| {clients:,} | {run['ever_active']:.0f} | " + " | ".join([*times, *memory, *ends]) + " |")
    last = list(results.values())[-1]
    slow = max(last[key] / first[key] for key in ("median", "mean"))
    kept = slow <= RATIO and last["resident_megabytes"] < 1e3 * GIGABYTES
    lines.append(f"target of {RATIO:g} times the round and {GIGABYTES:g} GB: {'kept' if kept else 'missed'}")
    return "\n".join(lines)


def schedule(clients: int):
    from personafl.settings import Schedule

    activity = ACTIVE / clients
    return Schedule(ROUNDS, activity, eval_every=0, checkpoint_every=10, eval_clients=min(EVALUATED, clients))


def write_features(path: Path, clients: int) -> None:
    """A file of features that is as long as for all clients, and has samples where they are going to be read."""
    plan = schedule(clients)
    cohorts = [plan.cohort(SEED, round, clients) for round in range(1, ROUNDS + 1)]
    used = np.unique(np.concatenate([plan.evaluated(SEED, clients), *cohorts]))
    shape = (clients * (TRAIN + TEST), FEATURES)
    np.lib.format.open_memmap(path, "w+", np.float32, shape).flush()
    begin = path.stat().st_size - 4 * shape[0] * shape[1]
    rng = np.random.default_rng(0)
    with open(path, "r+b") as file:
        for client in used.tolist():
            file.seek(begin + 4 * client * (TRAIN + TEST) * FEATURES)
            file.write(rng.standard_normal((TRAIN + TEST, FEATURES), np.float32).data)


def in_a_new_process(path: Path, clients: int, algorithm: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", path, "--clients", str(clients)]
    command += ["--algorithm", algorithm, "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def measure(path: Path, clients: int, algorithm: str, threads: int) -> dict[str, float]:
    import torch

    import personafl as pf
    from personafl.algorithms import ALGORITHMS
    from personafl.federation import Federation
    from personafl.federation.folders import map_array
    from personafl.models import MCLR, initialize
    from personafl.training.events import Listener

    class Mapped(Federation):
        fingerprint = "not computed: a saved federation has its own"

    class Clock(Listener):
        def __init__(self) -> None:
            self.ends: list[float] = []
            self.processor: list[float] = []

        def round_ended(self, record: dict, seconds: dict) -> None:
            self.ends.append(time.perf_counter())
            self.processor.append(time.process_time())

    begun, clock, plan = time.perf_counter(), Clock(), schedule(clients)
    with Anonymous() as anonymous, tempfile.TemporaryDirectory(dir=path.parent) as folder:
        starts = np.arange(clients)[:, None] * (TRAIN + TEST)
        federation = Mapped(
            x=torch.from_numpy(map_array(path)),
            y=torch.arange(clients * (TRAIN + TEST)) % CLASSES,
            bounds=starts + np.array([0, TRAIN, TRAIN, TRAIN + TEST]),
            ids=tuple(f"client-{m}" for m in range(clients)),
            classes=CLASSES,
            scanned=True,
        )
        run = pf.train(
            federation, initialize(MCLR(), (FEATURES,), CLASSES, SEED), ALGORITHMS[algorithm](), seed=SEED,
            rounds=plan.rounds, activity=plan.activity, eval_every=plan.eval_every, eval_clients=plan.eval_clients,
            checkpoint_every=plan.checkpoint_every, local=pf.Local(lr=0.03, batch_size=10, steps=20),
            engine="stacked", threads=threads, out=Path(folder, "run"), progress=False, listeners=[clock],
        )  # fmt: skip
        ended, resident = time.perf_counter(), 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for client in (federation.ids[0], federation.ids[-1]):
            run.personal(client)  # everybody has one
    rounds, processor = (1e3 * np.diff(times)[WARM - 1 : -1] for times in (clock.ends, clock.processor))
    cohorts = [plan.cohort(SEED, round, clients) for round in range(1, ROUNDS + 1)]
    return {
        "median": float(np.median(rounds)),
        "mean": float(rounds.mean()),
        "processor": float(processor.mean()),
        "resident_megabytes": resident / 1e6,
        "anonymous_megabytes": anonymous.most / 1e6,
        "start_seconds": clock.ends[0] - begun,
        "end_seconds": ended - clock.ends[-2],
        "ever_active": len(np.unique(np.concatenate(cohorts))),
    }


class Anonymous:
    """The most anonymous memory of this process, looked up every ten milliseconds."""

    def __enter__(self) -> "Anonymous":
        self.most, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.done.wait(0.01):
            lines = Path("/proc/self/status").read_text().splitlines()
            self.most = max(self.most, 1024 * int(next(x for x in lines if x.startswith("RssAnon:")).split()[1]))

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()


if __name__ == "__main__":
    main()
