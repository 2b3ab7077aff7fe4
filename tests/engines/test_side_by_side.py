"""Models that are trained side by side for a client are made, trained and picked from within `engine.memory`."""

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.algorithms import PersFL
from personafl.algorithms.base import Sent
from personafl.engines import Work, make_engine
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local


@pytest.fixture(scope="module")
def job():
    rng = np.random.default_rng(0)

    def split(count):
        return rng.normal(size=(count, 20)).astype(np.float32), rng.integers(0, 3, count)

    data = {f"c{k}": {"train": split(6 + k), "val": split(4), "test": split(1)} for k in range(5)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 3))
    return Task(model), pf.Federation.from_clients(data, classes=3)


def distilled(job, name, memory):
    """The states of five clients after distillation, and how many models were worked on at once, at most."""
    task, federation = job
    engine, _ = make_engine(EngineSettings(name, 2), task, federation, Local(lr=0.1, steps=2, batch_size=4), 0)
    workers = getattr(engine, "_workers", [engine])
    rows, algorithm = [], PersFL(distill_epochs=1, temperatures=(1.0, 5.0), imitations=(0.0, 0.5, 1.0))
    for worker in workers:
        worker.memory = memory

        def counted(work, chunk=worker._run_chunk):
            rows.append(len(work.ids))
            return chunk(work)

        worker._run_chunk = counted
    sent = Sent({"theta": task.theta0})
    own = {n: v.expand(5, *v.shape).clone() for n, v in algorithm.new_client(task.theta0, sent.shared).items()}
    result = engine.run(Work(algorithm.evaluation_program(True), 1, "evaluation", np.arange(5), own, sent))
    return result, rows


@pytest.mark.parametrize("name", ["loop", "stacked", "threaded"])
def test_chunks_of_clients_and_of_copies_give_the_same(job, name):
    whole, rows = distilled(job, name, 1024)
    assert sum(rows) == 25 and len(rows) == (2 if name == "threaded" else 1)
    for memory, most in ((3, 12), (1, 3)):  # two clients with their five models; half of a client's
        parts, rows = distilled(job, name, memory)
        assert sum(rows) == 25 and max(rows) <= most
        assert set(parts.own) == {"teacher", "student", "loss", "round", "imitation", "temperature"}
        for key, value in whole.own.items():
            torch.testing.assert_close(parts.own[key], value)
        assert torch.equal(parts.gradients, whole.gradients) and torch.equal(parts.steps, whole.steps)
    assert len(set(whole.own["imitation"].tolist())) > 1 or len(set(whole.own["temperature"].tolist())) > 1
