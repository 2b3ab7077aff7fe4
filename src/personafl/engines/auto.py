"""Which engine, and how many threads: measured on this model, this data and this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from personafl.algorithms.base import Local, Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines.base import Engine, Work, cores, torch_threads
from personafl.engines.loop import LoopEngine
from personafl.engines.stacked import StackedEngine
from personafl.engines.threaded import ThreadedEngine
from personafl.errors import ConfigError, ModelError
from personafl.federation import Federation
from personafl.task import Task

ENGINES: dict[str, type[Engine]] = {"stacked": StackedEngine, "threaded": ThreadedEngine, "loop": LoopEngine}


@dataclass(frozen=True)
class Choice:
    """An engine's name and thread count, and why: milliseconds of each candidate, or a reason in words."""

    engine: str
    threads: int
    reason: str


def make_engine(
    name: str,
    task: Task,
    federation: Federation,
    local: Local,
    seed: int,
    memory: int = 1024,
    threads: int | None = None,
    device: str = "cpu",
    cohort: int = 16,
) -> tuple[Engine, Choice]:
    """Build the engine that is asked for; `auto` times the others and takes the fastest.

    Raises
    ------
    ModelError
        `stacked` is asked for by name and the model cannot be stacked.
    """
    x, y = federation.x[:2].to(device), federation.y[:2].to(device)
    task.check(x, y)
    if name not in (*ENGINES, "auto"):
        raise ConfigError(f"engine = {name!r}: known engines are auto, {', '.join(ENGINES)}")
    why_not = task.unstackable(x, y) if name != "loop" else None
    if why_not is not None and name in ("stacked", "threaded"):
        raise ModelError(
            f"{type(task.template).__name__} cannot run on the {name} engine ({why_not}): use engine = 'loop'"
        )
    if name != "auto":
        choice = Choice(name, ENGINES[name].default_threads if threads is None else threads, "asked for")
    elif why_not is not None:
        choice = Choice("loop", 1 if threads is None else threads, f"the model does not stack: {why_not}")
    else:
        choice = _measure(task, federation, local, seed, memory, threads, device, cohort)
    engine = ENGINES[choice.engine](task, federation, local, seed, memory, choice.threads, device)
    return engine, choice


def _measure(
    task: Task, federation: Federation, local: Local, seed: int, memory: int, threads: int | None, device: str,
    cohort: int,
) -> Choice:  # fmt: skip
    """Time a few steps of SGD for a few clients on every candidate."""
    counts = sorted({1, cores()}) if threads is None else [threads]
    # Clients of middling size stand for all; a few are enough to see what stacking brings.
    by_size = np.argsort(federation.sizes("train"), kind="stable")
    clients = min(len(by_size), max(1, cohort), 32)
    middle = len(by_size) // 2
    ids = np.sort(by_size[max(0, middle - clients // 2) :][:clients]).astype(np.int64)
    work = Work(FineTune(3), 1, "probe", ids, {}, Sent({"theta": task.theta0.to(device)}))
    times: dict[tuple[str, int], float] = {}
    for name, engine_type in ENGINES.items():
        for count in counts:
            if name == "threaded" and (count == 1 or device != "cpu"):
                continue
            engine = engine_type(task, federation, local, seed, memory, count, device)
            with torch_threads(count):
                times[name, count] = min(_seconds(engine, work) for _ in range(3))
    name, count = min(times, key=lambda key: times[key])
    measured = ", ".join(f"{n} with {c} threads {1e3 * t:.1f} ms" for (n, c), t in times.items())
    return Choice(name, count, f"{len(ids)} clients, 3 steps: {measured}")


def _seconds(engine: Engine, work: Work) -> float:
    begun = time.perf_counter()
    engine.run(work)
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun
