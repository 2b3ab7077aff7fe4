"""The most memory that some jobs have resident, each in a process of its own, beside what they were allowed.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--job persfl fedamp mnist]

- `persfl`: distillation of 100 clients, 15 students each, a network of 62,010 parameters, `engine.memory` 256 MB.
- `fedamp`: two server steps of 10,000 clients × 62,006 parameters, 100 active. The models themselves are 2.48 GB.
- `mnist`: three rounds of job (b) of `personafl bench`.

What Python and torch take before anything is made is told apart. `extra` is what came on top of that and of the data.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path


def resident() -> float:
    """Megabytes of this process, now."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def persfl() -> tuple[float, float]:
    """Data and allowance, in MB."""
    import numpy as np
    import torch
    from torch import nn

    from personafl.algorithms import PersFL
    from personafl.algorithms.base import Sent
    from personafl.engines import Work, make_engine
    from personafl.federation import Federation
    from personafl.kernels.task import Task
    from personafl.settings import EngineSettings, Local

    rng = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(count, 64)).astype(np.float32), rng.integers(0, 10, count)

    data = {f"c{k}": {"train": split(20), "val": split(5), "test": split(5)} for k in range(100)}
    federation = Federation.from_clients(data, classes=10)
    task = Task(nn.Sequential(nn.Linear(64, 826), nn.ReLU(), nn.Linear(826, 10)))
    settings = EngineSettings("stacked", 1, memory=256)
    engine, _ = make_engine(settings, task, federation, Local(lr=0.1, batch_size=10, steps=2), 0)
    algorithm, sent = PersFL(distill_epochs=1), Sent({"theta": task.theta0})
    first = algorithm.new_client(task.theta0, sent.shared)
    own = {name: value.expand(67, *value.shape).clone() for name, value in first.items()}
    program = algorithm.evaluation_program(True)
    assert program is not None
    with torch.no_grad():
        engine.run(Work(program, 1, "evaluation", np.arange(67), own, sent))
    return federation.x.nbytes / 2**20, 256


def fedamp() -> tuple[float, float]:
    import torch

    from personafl.algorithms import FedAMP
    from personafl.algorithms.base import Uploads

    algorithm = FedAMP()
    server = algorithm.new_server(torch.randn(62_006), 10_000)
    ids = torch.arange(0, 10_000, 100)
    for _ in range(2):
        sent = algorithm.send(server, ids)
        up = {"theta": sent.each["u"] + 0.01 * torch.randn(len(ids), 62_006)}
        server = algorithm.aggregate(server, Uploads(ids, torch.ones(len(ids)), up, algorithm.uplink))
    algorithm.report_server(server)
    return server["models"].nbytes / 2**20, 1024


def mnist() -> tuple[float, float]:
    import tempfile

    import torch

    from personafl.algorithms import FedAvg
    from personafl.engines import make_engine
    from personafl.inputs import tensors
    from personafl.settings import EngineSettings, Schedule
    from personafl.storage.folder import RunFolder
    from personafl.training.clients import LocalClients
    from personafl.training.runner import Runner
    from personafl_bench.jobs import JOBS

    job = JOBS["b"]
    federation = job.federation()
    engine, _ = make_engine(EngineSettings("stacked", 1), job.task(), federation, job.local, 0, cohort=job.active)
    schedule = Schedule(rounds=10**6, activity=job.active / job.clients, eval_every=1, checkpoint_every=1)
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        runner = Runner(FedAvg(), LocalClients(engine), schedule, RunFolder(Path(out)), {})
        for _ in range(3):
            runner.step()
    data = sum(part.nbytes for part in (*tensors(federation.x), federation.y)) / 2**20
    return data, data


JOBS = {"persfl": persfl, "fedamp": fedamp, "mnist": mnist}


def measure(name: str) -> dict[str, float]:

    import personafl.jobs  # noqa: F401

    begun = resident()
    data, allowed = JOBS[name]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"libraries": begun, "peak": peak, "data": data, "extra": peak - begun - data, "allowed": allowed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--measure", choices=JOBS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    print("job: MB at most | libraries | data or models | extra | allowed")
    for name in asked.job:
        found = json.loads(subprocess.check_output([sys.executable, __file__, "--measure", name], text=True))
        cells = (found[column] for column in ("peak", "libraries", "data", "extra", "allowed"))
        print(f"{name}: " + " | ".join(f"{cell:.0f}" for cell in cells))


if __name__ == "__main__":
    main()
