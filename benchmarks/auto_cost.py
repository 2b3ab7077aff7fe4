"""What it costs to choose an engine (`engine = "auto"`), beside a round on the loop and one on the engine it chose.

    OMP_NUM_THREADS=2 python benchmarks/auto_cost.py [--repeat 3] [--rounds 50]

Each job is a process of its own, because the first steps of a process prepare what later ones find. Times are processor
seconds of all threads; of several repetitions the median choice and the fastest rounds are told.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

from personafl import Federation
from personafl.algorithms.base import Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines import Work, make_engine
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, 10))


def image_cnn() -> nn.Module:
    """Two convolutions and a hidden layer, on images of 28 × 28."""
    convolutions = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def sensor_cnn() -> nn.Module:
    """Three convolutions in time, on windows of nine sensors: about 120,000 parameters."""
    convolutions = (
        nn.Conv1d(9, 64, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(64, 96, 5, padding=2), nn.ReLU(),
        nn.MaxPool1d(2), nn.Conv1d(96, 128, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
    )  # fmt: skip
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 40), nn.ReLU(), nn.Linear(40, 6))


JOBS = {
    # model, shape of a sample, classes, clients, steps, batch size
    "mlp": (small_mlp, (60,), 10, 100, 10, 10),
    "image-cnn": (image_cnn, (1, 28, 28), 10, 20, 20, 20),
    "sensor-cnn": (sensor_cnn, (9, 128), 6, 30, 12, 20),
}


def federation(shape: tuple[int, ...], classes: int, clients: int) -> Federation:
    rng = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, classes, count)

    data = {f"c{k:03d}": {"train": split(60), "val": split(4), "test": split(4)} for k in range(clients)}
    return Federation.from_clients(data, classes=classes)


def measure(name: str, rounds: int) -> dict[str, object]:
    """Processor seconds of choosing, of a round on the loop, and of a round on what was chosen."""
    build, shape, classes, clients, steps, batch_size = JOBS[name]
    torch.manual_seed(0)
    task, data = Task(build()), federation(shape, classes, clients)
    local = Local(lr=0.05, steps=steps, batch_size=batch_size)
    begun = time.process_time()
    engine, choice = make_engine(EngineSettings("auto"), task, data, local, 0, cohort=clients, rounds=rounds)
    found = {"choosing": time.process_time() - begun, "choice": f"{choice.engine}, {choice.threads}"}
    ids = np.arange(clients)
    work = Work(FineTune(steps), 1, "train", ids, {}, Sent({"theta": task.theta0}))
    for label, one in (("loop", make_engine(EngineSettings("loop"), task, data, local, 0)[0]), ("chosen", engine)):
        torch.set_num_threads(one.threads)
        one.run(work)
        times = []
        for _ in range(2):
            begun = time.process_time()
            one.run(work)
            times.append(time.process_time() - begun)
        found[label] = min(times)
    return {**found, "parameters": task.size, "reason": choice.reason}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the run that the choice is for")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(measure(asked.job, asked.rounds)))
        return
    print("job, parameters: choosing s | a round in the loop s | ratio | a round as chosen s | choices")
    for name in JOBS:
        command = [sys.executable, __file__, "--job", name, "--rounds", str(asked.rounds)]
        found = [json.loads(subprocess.check_output(command, text=True)) for _ in range(asked.repeat)]
        choosing = statistics.median(one["choosing"] for one in found)
        loop, chosen = (min(one[what] for one in found) for what in ("loop", "chosen"))
        choices = " / ".join(sorted({one["choice"] for one in found}))
        print(
            f"{name}, {found[0]['parameters']:,}: {choosing:.2f} | {loop:.3f} | {choosing / loop:.2f} | {chosen:.3f} | "
            f"{choices}"
        )
        print(f"    {found[-1]['reason']}")


if __name__ == "__main__":
    main()
