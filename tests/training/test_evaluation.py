"""What is measured does not depend on which clients are taken together, or on who shares a model."""

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import all_models, measure, personal_models
from personafl.training.runner import Runner
from tests.archetypes import archetypes

CLIENTS = 50


def trained(folder, algorithm, engine="stacked"):
    rng = np.random.default_rng(0)
    data = {}
    for client in range(CLIENTS):
        sizes = {"train": 6, "val": client % 3, "test": client % 4}
        data[client] = {s: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for s, n in sizes.items() if n}
    torch.manual_seed(0)
    local = Local(lr=0.1, batch_size=4, steps=2)
    task = trained_task(ALGORITHMS[algorithm](), Task(nn.Linear(4, 3)))
    made = ENGINES[engine](task, Federation.from_clients(data, classes=3), local, seed=1, threads=1)
    runner = Runner(
        ALGORITHMS[algorithm](),
        LocalClients(made),
        Schedule(9, 0.1, eval_every=0, checkpoint_every=0),
        RunFolder(folder),
        {},
    )
    for _ in range(3):
        runner.step()
    return runner


def state(runner):
    return runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(False)


SENT_THEIR_MODEL = {"cfl", "pfedhn"}
"""Their servers send each client a model of its own, active or not."""


@pytest.mark.parametrize("algorithm", archetypes())
def test_clients_that_share_a_model_are_measured_as_if_each_had_its_own(algorithm, tmp_path):
    runner = trained(tmp_path, algorithm)
    parts = list(all_models(*state(runner), np.arange(CLIENTS)))
    own = torch.cat([part.theta for part in personal_models(*state(runner))])
    for part in parts:
        assert torch.allclose(part.theta.expand(len(part.ids), -1), own[part.ids], atol=1e-6)
    shared = [part for part in parts if part.theta.dim() == 1]
    programmed = runner.algorithm.evaluation_program(False) is not None
    assert len(shared) == (0 if programmed or algorithm in SENT_THEIR_MODEL else 1)
    found = measure(*state(runner))
    for split, tag in (("test", "personal_"), ("val", "personal_val_")):
        for name, values in runner.clients.engine.evaluate(own, np.arange(CLIENTS), split).items():
            np.testing.assert_allclose(found[f"{tag}{name}"], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("algorithm", ["selffl", "fedavg-ft"])
def test_some_clients_are_measured_as_among_all(algorithm, tmp_path):
    runner = trained(tmp_path, algorithm)
    everybody, ids = measure(*state(runner)), np.array([3, 4, 17, 41])
    for name, values in measure(*state(runner), ids).items():
        np.testing.assert_allclose(values, everybody[name][ids], rtol=1e-5, atol=1e-6, err_msg=name)
