"""A small network of three layers for algorithms that treat its parts differently, and what plain torch makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personafl.algorithms import Algorithm
from personafl.engines import ENGINES
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner

LR, STEPS, SIZES = 0.3, 4, (5, 12, 8)
PARAMETERS = {"0.weight": 30, "0.bias": 5, "2.weight": 20, "2.bias": 4, "4.weight": 12, "4.bias": 3}
EVERYTHING = sum(PARAMETERS.values())
HEAD = ("4.weight", "4.bias")
BODY = tuple(name for name in PARAMETERS if name not in HEAD)
HEAD_SIZE = sum(PARAMETERS[name] for name in HEAD)

Weights = dict[str, Tensor]


def data(m: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(m)
    return draw.standard_normal((SIZES[m % 3], 6)).astype(np.float32), draw.integers(0, 3, SIZES[m % 3])


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def start(
    algorithm: Algorithm, folder: Path, clients: int = 3, activity: float = 1.0, batch_size: int = 0,
    engine: str = "stacked", net: nn.Module | None = None, samples: Callable = data, **local: object,
) -> Runner:  # fmt: skip
    """A runner with full batches, unless they are asked for; clients validate and test on what they train on."""
    parts = {f"c{m}": dict.fromkeys(("train", "val", "test"), samples(m)) for m in range(clients)}
    settings = Local(**{"lr": LR, "batch_size": batch_size, "steps": STEPS, **local})  # type: ignore[arg-type]
    task, federation = Task(net or model()), Federation.from_clients(parts, classes=3)
    made = ENGINES[engine](task, federation, settings, seed=0, threads=1)
    schedule = Schedule(rounds=10**6, activity=activity, eval_every=0)
    return Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})


def trained(algorithm: Algorithm, folder: Path, rounds: int = 3, **options: object) -> Runner:
    runner = start(algorithm, folder, **options)  # type: ignore[arg-type]
    for _ in range(rounds):
        runner.step()
    return runner


def personal(runner: Runner) -> np.ndarray:
    """The personalized models of all clients (M, P)."""
    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    return torch.cat([part.theta for part in parts]).numpy()


def vector(state: Weights) -> np.ndarray:
    return torch.cat([state[name].flatten() for name in PARAMETERS]).numpy()


def vectors(states: Sequence[Weights]) -> np.ndarray:
    return np.stack([vector(state) for state in states])


# --- in float64, with ordinary modules


def initial() -> Weights:
    return {name: value.detach().double() for name, value in model().named_parameters()}


def gradient(at: Weights, m: int, loss: Callable = F.cross_entropy) -> Weights:
    """The gradient of a client's mean loss."""
    net = model().double()
    net.load_state_dict(at)
    x, y = data(m)
    loss(net(torch.tensor(x).double()), torch.tensor(y)).backward()
    return {name: value.grad for name, value in net.named_parameters()}


def descended(
    at: Weights, m: int, names: Collection[str] = tuple(PARAMETERS), steps: int = STEPS, lr: float = LR
) -> Weights:
    """After so many steps of SGD on these parameters, the others as they are."""
    for _ in range(steps):
        slope = gradient(at, m)
        at = {name: value - lr * slope[name] if name in names else value for name, value in at.items()}
    return at


def mean(found: Sequence[Weights], weighted: bool) -> Weights:
    """The clients' average, by their numbers of samples or not."""
    p = np.array(SIZES) / sum(SIZES) if weighted else np.full(len(SIZES), 1 / len(SIZES))
    return {name: sum(w * one[name] for w, one in zip(p, found, strict=True)) for name in found[0]}
