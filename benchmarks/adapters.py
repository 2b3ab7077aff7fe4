"""LoRA of rank 8 on a pretrained BERT: a round of FedAvg on our engines and in Flower's simulator with peft, in turns.

    python benchmarks/adapters.py FOLDER [--clients 20] [--steps 10] [--repeat 3] [--threads 2] [--memory 1024]
                                  [--only stacked,loop,threaded,flower,flower-kept] [--json FILE]

FOLDER holds config.json and model.safetensors, such as those of all-MiniLM-L6-v2. A round is 20 clients with 10 steps
of 8 samples of 32 tokens. Every contestant is a process; they take turns of one round, so that other work on the
machine hits all alike. Printed are medians of wall and processor seconds and of the ratios within a turn, and the most
memory that a contestant's processes had. `flower` loads the pretrained model for every message, as Flower's examples
do; `flower-kept` keeps it in its actors. The mean training loss after the same number of rounds shows that all learn.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from personafl import Federation
from personafl.algorithms import FedAvg
from personafl.engines import make_engine
from personafl.jobs import module_task
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from personafl_bench.contest import _ADAPTERS, _ENVIRONMENT, Contestant, LeftOut
from personafl_bench.peers.lora import CLASSES, with_lora
from personafl_bench.peers.protocol import serve

BATCH, TOKENS, SAMPLES, LR = 8, 32, 40, 0.05
# Threads of OpenMP that wait for each other would otherwise burn the time that they wait, on a machine with other work.
ENVIRONMENT = {**_ENVIRONMENT, "OMP_WAIT_POLICY": "passive"}
OWN, PEERS = ("stacked", "loop", "threaded"), {"flower": "loaded", "flower-kept": "kept"}


def write_job(folder: Path, weights: Path, clients: int, steps: int, threads: int, memory: int) -> None:
    """Random tokens, as many for everybody: times do not depend on what they mean. Labels follow from them."""
    draws = np.random.default_rng(0)
    x = draws.integers(1000, 20_000, (clients * SAMPLES, TOKENS))
    y = (x[:, 1] > 10_500).astype(np.int64)
    starts = np.arange(clients) * SAMPLES
    arrays = {"x": x, "y": y, "train": np.stack([starts, starts + SAMPLES], 1), "theta0": np.zeros(1, np.float32)}
    for name, value in arrays.items():
        np.save(folder / f"{name}.npy", value)
    settings = {
        "weights": str(weights.resolve()), "clients": clients, "steps": steps, "threads": threads, "memory": memory,
        "batch": BATCH, "lr": LR,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(settings))


def federation(folder: Path) -> Federation:
    x, y, train = (np.load(folder / f"{name}.npy") for name in ("x", "y", "train"))
    data = {
        f"c{k:02d}": ({"input_ids": x[a:b], "attention_mask": np.ones_like(x[a:b])}, y[a:b])
        for k, (a, b) in enumerate(train.tolist())
    }
    return Federation.from_clients(data, splits=(1, 0, 0), classes=CLASSES)


def job_task(data: Federation, settings: dict[str, Any]) -> Task:
    return module_task(data, with_lora(settings["weights"]), None, None, None)


def own(engine: str, folder: Path) -> None:
    """A contestant that is personafl: rounds as a run does them, without evaluation and checkpoints."""
    settings = json.loads((folder / "job.json").read_text())
    data = federation(folder)
    task = job_task(data, settings)
    local = Local(lr=settings["lr"], batch_size=settings["batch"], steps=settings["steps"])
    asked = EngineSettings(engine, settings["threads"], settings["memory"])
    made, _ = make_engine(asked, task, data, local, 0)
    loaded = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    if engine != "loop":
        task.way(made._gather(torch.arange(9))[0])
    torch.set_num_threads(made.threads)
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        schedule = Schedule(rounds=10**6, eval_every=0, checkpoint_every=0)
        runner = Runner(FedAvg(), LocalClients(made), schedule, RunFolder(Path(out)), {})

        def model() -> Any:
            theta = FedAvg().global_model(runner.server)
            assert theta is not None
            return theta.numpy()

        serve(runner.step, model, setting=f"threads: {made.threads}", loaded=loaded)


def loss_of(task: Task, data: Federation, theta: torch.Tensor) -> float:
    """The mean over all training samples."""
    with torch.no_grad():
        parts = [(task.predict(theta, x), y) for x, y in (data.client(c)["train"] for c in data.ids)]
        return float(sum(F.cross_entropy(outputs, y, reduction="sum") for outputs, y in parts)) / len(data.y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1024, help="engine.memory, in MiB")
    parser.add_argument("--only", default=",".join((*OWN, *PEERS)))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.own:
        own(asked.own, asked.folder)
        return
    with tempfile.TemporaryDirectory() as place:
        write_job(Path(place), asked.folder, asked.clients, asked.steps, asked.threads, asked.memory)
        found = race(Path(place), asked.only.split(","), asked.repeat)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))


def race(folder: Path, names: list[str], repeat: int) -> dict[str, Any]:
    commands = {name: [sys.executable, __file__, "--own", name] for name in names if name in OWN}
    commands |= {
        name: [sys.executable, str(_ADAPTERS / "with_flower_peft.py"), PEERS[name]] for name in names if name in PEERS
    }
    data = federation(folder)
    task = job_task(data, json.loads((folder / "job.json").read_text()))
    frozen = sum(p.nbytes for p in task.template.parameters() if not p.requires_grad)
    start = loss_of(task, data, task.theta0)
    print(f"{task.size:,} trained numbers; the frozen part is {frozen / 1e6:.0f} MB; loss {start:.4f}", flush=True)
    entered: list[Contestant] = []
    out: dict[str, Any] = {"frozen_mb": frozen / 1e6, "loss_before": start, "contestants": {}}
    try:
        for name, command in commands.items():
            contestant = Contestant(name, command, folder, ENVIRONMENT)
            entered.append(contestant)
            contestant.introduce()
        for turn in range(repeat + 1):  # the first one is a warm-up
            for contestant in entered:
                contestant.turn(1)
                seconds, cpu = contestant.seconds[-1], contestant.cpu[-1]
                what = f"turn {turn}" if turn else "warm-up"
                print(f"{what}: {contestant.name} {seconds:.1f} s, processor {cpu:.1f} s", flush=True)
        for contestant in entered:
            out["contestants"][contestant.name] = described(contestant, entered[0], task, data, folder)
    except LeftOut as reason:
        sys.exit(f"{entered[-1].name}: {reason}")
    finally:
        for contestant in entered:
            contestant.end()
    for name, each in out["contestants"].items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in each.items()), flush=True)
    return out


def described(contestant: Contestant, first: Contestant, task: Task, data: Federation, folder: Path) -> dict[str, Any]:
    """Medians over the turns; ratios to the first contestant are taken turn by turn."""
    wall, cpu = np.array(contestant.seconds[1:]), np.array(contestant.cpu[1:])
    contestant.ask(save=str(folder / "theta.npy"))
    peak = contestant.memory() or 0
    return {
        "wall": round(float(np.median(wall)), 2),
        "processor": round(float(np.median(cpu)), 2),
        "wall_ratio": round(float(np.median(wall / np.array(first.seconds[1:]))), 3),
        "processor_ratio": round(float(np.median(cpu / np.array(first.cpu[1:]))), 3),
        "peak_mb": round(peak / 1e6),
        "more_than_loaded_mb": round((peak - contestant.about["loaded"]) / 1e6)
        if "loaded" in contestant.about
        else None,
        "loss": round(loss_of(task, data, torch.from_numpy(np.load(folder / "theta.npy"))), 4),
        "setting": contestant.about["setting"],
    }


if __name__ == "__main__":
    main()
