"""What evaluation, checkpoints and logging add to rounds at default settings, in processor time, for jobs of the bench.

    OMP_NUM_THREADS=1 python benchmarks/around_rounds.py [--jobs a b g] [--rounds 20]

One thread, stacked engine. Rounds are counted from after the first evaluation on, so that what is
prepared once does not count.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from personafl.algorithms import FedAvg
from personafl.engines import make_engine
from personafl.settings import EngineSettings, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.events import RunFiles
from personafl.training.runner import Runner
from personafl_bench.jobs import JOBS


def measure(key: str, rounds: int) -> tuple[float, float]:
    """Seconds of a round's training, and of what comes on top, on average."""
    job = JOBS[key]
    engine, _ = make_engine(EngineSettings("stacked", 1), job.task(), job.federation(), job.local, 0, cohort=job.active)
    trained = 0.0
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        folder = RunFolder(Path(out, "run"))
        folder.create({})
        schedule = Schedule(rounds=10**6, activity=job.active / job.clients)
        runner = Runner(FedAvg(), LocalClients(engine), schedule, folder, {}, [RunFiles(folder)])
        train = runner._train

        def timed(round: int) -> object:
            nonlocal trained
            begun = time.process_time()
            found = train(round)
            trained += time.process_time() - begun
            return found

        runner._train = timed  # type: ignore[method-assign, assignment]
        for _ in range(schedule.eval_every):
            runner.step()
        trained, begun = 0.0, time.process_time()
        for _ in range(rounds):
            runner.step()
        whole = time.process_time() - begun
    return trained / rounds, (whole - trained) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=["a", "b", "c", "d", "g", "h", "i", "j", "k"])
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("job: training of a round ms | evaluation, checkpoint, logging ms | share")
    for key in asked.jobs:
        trained, besides = measure(key, asked.rounds)
        print(f"{key}: {1e3 * trained:.1f} | {1e3 * besides:.2f} | {besides / trained:.1%}", flush=True)


if __name__ == "__main__":
    main()
