"""Clients with quadratic losses, whose optima and linear maps are known exactly.

Client m does linear regression on its own data: F_m(w) = mean (x·w − y)², so ∇F_m(w) = A_m (w − z_m) with
A_m = 2 XᵀX / n. Everything here is float64 numpy and shares no code with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from personafl.algorithms import Algorithm
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner

Array = np.ndarray


@dataclass(frozen=True)
class Quadratics:
    """Hessians A (M, d, d), optima z (M, d), sample counts n (M,), and the federation that has them."""

    A: Array
    z: Array
    n: Array
    federation: Federation

    @property
    def weights(self) -> Array:
        return self.n / self.n.sum()


def quadratics(
    clients: int = 4, d: int = 3, seed: int = 0, alike: bool = False, validation: bool = False
) -> Quadratics:
    """Well-conditioned clients of different sizes; `alike` gives everybody the same data."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(8, 20, clients) if not alike else np.full(clients, 12)
    data, hessians, optima = {}, [], []
    for m in range(clients):
        if m == 0 or not alike:
            x = draw.standard_normal((sizes[m], d)).astype(np.float32)
            y = (x @ draw.standard_normal(d) * 2 + 0.1 * draw.standard_normal(sizes[m])).astype(np.float32)
        parts = {"train": (x, y), "test": (x, y)}
        if validation:
            parts["val"] = (x, y)
        data[f"client-{m}"] = parts
        exact = x.astype(np.float64)
        hessians.append(2 * exact.T @ exact / len(x))
        optima.append(np.linalg.lstsq(exact, y.astype(np.float64), rcond=None)[0])
    federation = Federation.from_clients(data)
    return Quadratics(np.array(hessians), np.array(optima), sizes.astype(float), federation)


def train(
    problem: Quadratics, algorithm: Algorithm, folder: Path, rounds: int, lr: float = 0.02, steps: int = 5,
    start: Array | None = None, activity: float = 1.0, engine: str = "stacked", **local: float,
) -> Runner:  # fmt: skip
    """Run an algorithm with full batches unless `batch_size` is given; the runner holds the states afterwards."""
    d = problem.z.shape[1]
    module = nn.Linear(d, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.zeros(1, d) if start is None else torch.tensor(start, dtype=torch.float32)[None])
    settings = Local(lr=lr, steps=steps, **{"batch_size": 0, **local})  # type: ignore[arg-type]
    made = ENGINES[engine](trained_task(algorithm, Task(module, "mse")), problem.federation, settings, seed=0)
    schedule = Schedule(rounds=10**9, activity=activity, eval_every=0, checkpoint_every=0)
    runner = Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})
    for _ in range(rounds):
        runner.step()
    return runner


def states(runner: Runner) -> dict[str, Array]:
    """The clients' states as float64 arrays, a row for each; who was never active begins with what is sent now."""
    from personafl.training.client_states import states

    clients, everybody = runner.clients, np.arange(len(runner.clients.engine.federation))
    sent = runner.snapshot(False).send(everybody)
    found = states(clients.algorithm, clients.engine, clients.store, runner.theta0, everybody, sent)
    return {name: value.double().numpy() for name, value in found.items()}


def server(runner: Runner, name: str = "theta") -> Array:
    return runner.server[name].double().numpy()


def personal(runner: Runner) -> Array:
    """The personalized models of all clients, (M, d)."""
    from personafl.training.evaluation import personal_models

    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    return torch.cat([part.theta for part in parts]).double().numpy()


def fixed_point(linear: Callable[[Array], Array], d: int) -> Array:
    """The w with linear(w) = w, for an affine map given as a function."""
    shift = linear(np.zeros(d))
    matrix = np.stack([linear(column) - shift for column in np.eye(d)], axis=1)
    return np.linalg.solve(np.eye(d) - matrix, shift)


def clustered(centres: Array, members: Array, spread: float = 0.0, seed: int = 0) -> Quadratics:
    """Clients in groups: client m's optimum is `centres[members[m]]`, or within `spread` of it."""
    draw = np.random.default_rng(seed)
    optima = np.asarray(centres, float)[members] + spread * draw.standard_normal((len(members), len(centres[0])))
    sizes, data, hessians = draw.integers(8, 20, len(members)), {}, []
    for m, z in enumerate(optima):
        x = draw.standard_normal((sizes[m], len(z))).astype(np.float32)
        pair = x, (x @ z).astype(np.float32)
        data[f"client-{m}"] = {"train": pair, "test": pair}
        exact = x.astype(np.float64)
        hessians.append(2 * exact.T @ exact / len(x))
    return Quadratics(np.array(hessians), optima, sizes.astype(float), Federation.from_clients(data))


def losses(problem: Quadratics, w: Array) -> Array:
    """F_m(w) of all clients, from their samples."""
    x, y = problem.federation.x.double().numpy(), problem.federation.y.double().numpy().reshape(-1)
    squares = (x @ w - y) ** 2
    return np.array([squares[start:end].mean() for start, end in problem.federation.bounds[:, :2]])
