"""Contestants of `personafl bench` that are personafl itself or a reference.

python -m personafl_bench.own NAME FOLDER
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from personafl.algorithms import Algorithm, Ditto, FedAvg, SelfFL
from personafl.algorithms.base import Sent
from personafl.engines import Engine, Work, make_engine
from personafl.engines.machine import cores, reuse_memory
from personafl.settings import EngineSettings, Schedule
from personafl.storage.folder import RunFolder
from personafl.streams import generator
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from personafl.version import __version__
from personafl_bench import references
from personafl_bench.jobs import JOBS, Job
from personafl_bench.peers.protocol import Array, faster, serve

ALGORITHMS: dict[str, Algorithm] = {
    "personafl": FedAvg(), "fedavg": FedAvg(), "ditto": Ditto(), "selffl": SelfFL(use_steps=False),
}  # fmt: skip
REFERENCES: dict[str, references.Reference] = {
    "hand-written": references.by_hand, "plain vmap": references.plain_vmap, "tight loop": references.tight_loop,
}  # fmt: skip


WITH_KIND: dict[str, tuple[str, ...]] = {
    "mlp": tuple(REFERENCES), "cnn": tuple(REFERENCES),
    "lstm": ("tight loop",), "gru": ("tight loop",), "lora": ("tight loop",),
}  # fmt: skip
"""The references that can do a job's network: vmap has no rule for recurrent layers, the frozen part is none of its."""


def contestants(job: Job) -> list[str]:
    """Who takes part in a job beside other libraries; the first is what the others are compared with."""
    if job.what == "personalized":
        return ["fedavg", "ditto", "selffl"]
    if job.what == "evaluation":
        return ["personafl", "plain vmap"]
    return ["personafl", *WITH_KIND.get(job.kind, ("plain vmap", "tight loop"))]


def main(name: str, folder: str) -> None:
    settings = json.loads(Path(folder, "job.json").read_text())
    job, threads = JOBS[settings["key"]], settings["threads"]
    if job.what == "evaluation":
        _evaluation(name, job, threads)
    elif name in ALGORITHMS:
        _rounds(ALGORITHMS[name], job, threads)
    else:
        _reference(REFERENCES[name], job, threads)


def _engine(job: Job, threads: int) -> Engine:
    """As users get it: `auto` tries engines and thread counts on this job."""
    asked = None if threads == cores() else threads
    engine, _ = make_engine(
        EngineSettings("auto", asked), job.task(), job.federation(), job.local, 0, cohort=job.active
    )
    torch.set_num_threads(engine.threads)
    return engine


def _rounds(algorithm: Algorithm, job: Job, threads: int) -> None:
    engine = _engine(job, threads)
    schedule = Schedule(rounds=10**6, activity=job.active / job.clients, eval_every=0, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        runner = Runner(algorithm, LocalClients(engine), schedule, RunFolder(Path(out)), {})

        def model() -> Array:
            theta = algorithm.global_model(runner.server)
            assert theta is not None
            return theta.numpy()

        serve(runner.step, model, version=__version__, setting=f"engine {engine.name}, threads: {engine.threads}")


def _reference(reference: references.Reference, job: Job, threads: int) -> None:
    """The same cohort again and again; what comes out is compared with the engine's once."""
    task, federation = job.task(), job.federation()
    engine, _ = make_engine(EngineSettings("loop"), task, federation, job.local, 0)
    ids = Schedule(activity=job.active / job.clients).cohort(0, 1, job.clients)
    sent = Sent({"theta": task.theta0})
    first = FedAvg().new_client(task.theta0, sent.one(0))
    own = {n: v.expand(len(ids), *v.shape).clone() for n, v in first.items()}
    work = Work(FedAvg(), 1, "train", ids, own, sent)
    plan = engine._plan(work, engine._keys(work), job.local.default_steps(federation.sizes("train")[ids]))
    index = torch.from_numpy(plan.positions)
    reuse_memory()

    def step() -> Tensor:
        return reference(job, task, federation, index)

    theta = engine.run(work).up["theta"]
    # Rounding decides at a few kinks of ReLU and max-pooling, so single weights may differ by more.
    error = float((step() - theta).norm() / (theta - task.theta0).norm())
    if error > 0.01:
        raise RuntimeError(f"it does not compute what the engine computes: steps differ by {error:.1%}")
    chosen = faster(step, torch.set_num_threads, [1, threads])
    serve(step, task.theta0.numpy, setting=f"threads: {chosen}")


def _evaluation(name: str, job: Job, threads: int) -> None:
    engine = _engine(job, threads)
    task, federation = engine.task, engine.federation
    noise = torch.from_numpy(generator(0, "bench personal models").standard_normal((job.clients, task.size)))
    theta = task.theta0 + 0.01 * noise.float()
    ids = Schedule().cohort(0, 1, job.clients)

    def ours() -> Tensor:
        return torch.from_numpy(engine.evaluate(theta, ids, "test")["correct"]).float()

    def plain() -> Tensor:
        return references.evaluate_by_vmap(task, federation, theta)

    torch.testing.assert_close(ours(), plain(), atol=1.0, rtol=0.0)  # a tie may fall either way
    step: Callable[[], Tensor] = ours if name == "personafl" else plain
    serve(step, task.theta0.numpy, setting=f"threads: {faster(step, torch.set_num_threads, [1, threads])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
