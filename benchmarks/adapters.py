"""LoRA of rank 8 on a pretrained BERT: a round on the stacked engine and in the loop, and its memory.

    OMP_NUM_THREADS=1 python benchmarks/adapters.py FOLDER [--clients 20] [--steps 10] [--repeat 1] [--memory 1024]

FOLDER holds config.json and model.safetensors, such as those of all-MiniLM-L6-v2. A round is 20 clients with 10 steps
of 8 samples of 32 tokens, on one thread; the engines take turns. Processor seconds, because the machine may have other
things to do; memory is the most that the process has during a turn above what it had before the first one.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from personafl import Federation
from personafl.algorithms.base import Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines import Work, make_engine
from personafl.engines.machine import torch_threads
from personafl.jobs import module_task
from personafl.settings import EngineSettings, Local

BATCH, TOKENS, CLASSES, RANK = 8, 32, 2, 8


def with_lora(folder: Path) -> nn.Module:
    """The model in a folder with adapters in its attention and a classifier."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=CLASSES, local_files_only=True)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=16, lora_dropout=0.0, target_modules=["query", "value"]
    )
    made: nn.Module = get_peft_model(net, config)
    return made.train()


def federation(clients: int) -> Federation:
    """Random tokens, as many for everybody: times do not depend on what they mean."""
    draws = np.random.default_rng(0)

    def split(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        ids = draws.integers(1000, 20_000, (count, TOKENS))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}, draws.integers(0, CLASSES, count)

    data = {f"c{k:02d}": {"train": split(40), "val": split(2), "test": split(2)} for k in range(clients)}
    return Federation.from_clients(data, classes=CLASSES)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def watched(found: dict[str, float], before: int) -> Iterator[None]:
    """Notes processor seconds and the most memory above what there was before."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            found["memory"] = max(found.get("memory", 0.0), resident() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    begun = time.process_time()
    try:
        yield
    finally:
        found["seconds"] = min(found.get("seconds", np.inf), time.process_time() - begun)
        done.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--memory", type=int, default=1024, help="engine.memory, in MiB")
    asked = parser.parse_args()
    data, net = federation(asked.clients), with_lora(asked.folder)
    task = module_task(data, net, None, None, None)
    frozen = sum(p.nbytes for p in net.parameters() if not p.requires_grad)
    print(f"{task.size:,} trained numbers; the frozen part is {frozen / 1e6:.0f} MB", flush=True)
    local = Local(lr=0.05, steps=asked.steps, batch_size=BATCH)
    work = Work(FineTune(asked.steps), 1, "train", np.arange(asked.clients), {}, Sent({"theta": task.theta0}))
    engines = {
        kind: make_engine(EngineSettings(kind, 1, asked.memory), task, data, local, 0)[0]
        for kind in ("loop", "stacked")
    }
    seen: dict[str, dict[str, float]] = {kind: {} for kind in engines}
    thetas = {}
    with torch_threads(1):
        before = resident()
        print(f"way: {task.way(engines['stacked']._gather(torch.arange(9))[0]).way}", flush=True)
        for _ in range(asked.repeat):
            for kind, engine in engines.items():
                with watched(seen[kind], before):
                    thetas[kind] = engine.run(work).own["theta"]
                print(f"{kind}: {seen[kind]['seconds']:.1f} s, {seen[kind]['memory'] / 1e6:.0f} MB more", flush=True)
    moved = (thetas["loop"] - task.theta0).norm()
    print(f"stacked / loop: {seen['stacked']['seconds'] / seen['loop']['seconds']:.2f}")
    print(f"they differ by {float((thetas['stacked'] - thetas['loop']).norm() / moved):.1e} of what was learned")


if __name__ == "__main__":
    main()
