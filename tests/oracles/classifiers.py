"""Three clients with few samples of three classes and a small network, and the same network in plain torch, float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from personafl.algorithms import Algorithm
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner

LR, STEPS, SIZES, CLASSES, WIDTH = 0.2, 3, (6, 12, 9), 3, 5


def data(m: int) -> tuple[np.ndarray, np.ndarray]:
    """Clients that are shifted; the first has no sample of class 2."""
    draw = np.random.default_rng(m)
    return draw.normal(m, 1, (SIZES[m], 4)).astype(np.float32), draw.integers(0, 2 if m == 0 else 3, SIZES[m])


def samples(m: int) -> tuple[Tensor, Tensor]:
    """The same in float64."""
    x, y = data(m)
    return torch.tensor(x).double(), torch.tensor(y)


def model() -> nn.Sequential:
    """A body of four layers and a head."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def net_at(theta: Tensor) -> nn.Sequential:
    """The network with these parameters."""
    net = model().double()
    nn.utils.vector_to_parameters(theta.clone(), net.parameters())
    return net


def vector(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def trained(
    algorithm: Algorithm, folder: Path, rounds: int = 3, activity: float = 1.0, net: nn.Module | None = None,
    loss: str = "cross_entropy", engine: str = "stacked", fed: Federation | None = None, **local,
) -> Runner:  # fmt: skip
    """Full batches; the runner holds the states afterwards."""
    fed = fed or Federation.from_clients({f"c{m}": {"train": data(m)} for m in range(3)}, classes=CLASSES)
    settings = Local(**{"lr": LR, "batch_size": 0, "steps": STEPS} | local)
    task = trained_task(algorithm, Task(net or model(), loss))
    made = ENGINES[engine](task, fed, settings, seed=0, threads=1)
    schedule = Schedule(rounds=10**6, activity=activity, eval_every=0)
    runner = Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})
    for _ in range(rounds):
        runner.step()
    return runner


def cohorts(runner: Runner, rounds: int) -> list[list[int]]:
    """Who is active in the next rounds."""
    return [sorted(runner.schedule.cohort(0, runner.round + r, 3).tolist()) for r in range(1, rounds + 1)]


def personal(runner: Runner) -> np.ndarray:
    """The personalized models of all clients (M, P)."""
    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    return torch.cat([part.theta for part in parts]).double().numpy()


def assert_close(found, expected, scale: float = 1.0) -> None:
    """As alike as float32 and float64 are after some steps."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=2e-5 * scale)
