"""The same config and seed give the same answer; nothing that should not matter matters."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tomli_w
import torch
from scipy import stats
from torch import nn

from personafl.algorithms import FedAvg, Sent
from personafl.config import parse
from personafl.engines import ENGINES, Work
from personafl.federation import Federation
from personafl.jobs import train_config
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.settings import Local, Schedule

SETTINGS = {
    "rounds": 3,
    "activity": 0.4,
    "eval_every": 2,
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [12], "dropout": 0.2},
    "local": {"lr": 0.05, "epochs": 1, "batch_size": 20},
}


def with_engine(name, **changes):
    return {**SETTINGS, "engine": {"name": name, "threads": 1}, **changes}


def result(folder):
    names = ("rounds.jsonl", "clients.parquet", "models/global.safetensors", "models/personal.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


RUNS = """
import sys
from typer.testing import CliRunner
from personafl.cli import app
for name in sys.argv[2:]:
    words = ["run", f"{sys.argv[1]}/{name}.toml", "--out", f"{sys.argv[1]}/{name}"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Runs of a process with another hash seed, by engine."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for engine in ENGINES:
        (folder / f"{engine}.toml").write_text(tomli_w.dumps(with_engine(engine)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", RUNS, str(folder), *ENGINES]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("engine", list(ENGINES))
def test_two_processes_agree_in_every_bit(engine, elsewhere, tmp_path):
    """One of them has another hash seed, another folder and has trained something else before."""
    torch.manual_seed(99)
    np.random.seed(99)
    train_config(parse(with_engine(engine, seed=5)), tmp_path / "other")
    train_config(parse(with_engine(engine)), tmp_path / "two")
    one, two, other = map(result, (elsewhere / engine, tmp_path / "two", tmp_path / "other"))
    assert one == two
    assert all(one[name] != other[name] for name in one)


def samples_used(engine, ids, round=3, seed=0, **local):
    """Which samples each client trains on, seen from outside: sample i is the i-th unit vector, so that a step on it
    moves the i-th weight and no other."""
    sizes = {"ann": 12, "bob": 7, "eve": 20, "zoe": 5}
    ends = np.cumsum(list(sizes.values()))
    unit = np.eye(ends[-1], dtype=np.float32)
    data = {
        name: {"train": (unit[end - size : end], np.ones(size, np.float32))}
        for (name, size), end in zip(sizes.items(), ends, strict=True)
    }
    federation = Federation.from_clients(data)
    task = Task(nn.Linear(len(unit), 1, bias=False), "mse")
    theta = torch.zeros(task.size)
    first = FedAvg().new_client(theta, {"theta": theta})
    own = {k: v.expand(len(ids), *v.shape).clone() for k, v in first.items()}
    work = Work(FedAvg(), round, "train", np.array(ids), own, Sent({"theta": theta}))
    up = ENGINES[engine](task, federation, Local(batch_size=5, **local), seed, threads=1).run(work).up["theta"]
    return {client: tuple(np.flatnonzero(row).tolist()) for client, row in zip(ids, up.numpy(), strict=True)}


def test_batches_do_not_depend_on_the_engine_or_on_company():
    alone = {client: samples_used("loop", [client], steps=2)[client] for client in range(4)}
    for engine in ENGINES:
        for ids in ([0, 1, 2, 3], [1, 3], [0, 2, 3]):
            assert samples_used(engine, ids, steps=2) == {client: alone[client] for client in ids}


@pytest.mark.parametrize("engine", list(ENGINES))
def test_an_epoch_uses_every_sample_of_the_client_and_nobody_elses(engine):
    used = samples_used(engine, [0, 1, 2, 3], epochs=1)
    assert used == {0: (*range(12),), 1: (*range(12, 19),), 2: (*range(19, 39),), 3: (*range(39, 44),)}


def test_batches_differ_between_rounds_clients_and_seeds():
    drawn = [samples_used("loop", [2], steps=1, round=round, seed=seed)[2] for round in (1, 2) for seed in (0, 1)]
    assert len(set(drawn)) == 4 and all(len(batch) == 5 for batch in drawn)


def test_initial_weights_depend_on_the_seed_alone():
    config = parse(SETTINGS)

    def weights(seed):
        return Task(initialize(config.model, (64,), 10, seed)).theta0

    first = weights(0)
    before = torch.random.get_rng_state()
    torch.rand(5)
    assert weights(0).equal(first) and not weights(1).equal(first)
    torch.random.set_rng_state(before)
    weights(0)
    assert torch.random.get_rng_state().equal(before), "the user's own random numbers are left alone"


def test_engines_see_the_same_cohorts_and_steps(tmp_path):
    tables = []
    for name in ENGINES:
        run = train_config(parse(with_engine(name)), tmp_path / name)
        tables.append(run.clients().select(["client", "steps", "activations", "n_train"]).to_pylist())
        records = [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
        tables.append([(r["round"], r["active"], r["steps"], r["bytes_up"], r["bytes_down"]) for r in records])
    assert tables[0] == tables[2] == tables[4] and tables[1] == tables[3] == tables[5]


def test_a_cohort_does_not_depend_on_the_number_of_rounds():
    short, long = Schedule(rounds=5, activity=0.2), Schedule(rounds=5000, activity=0.2, eval_every=1)
    for round in range(1, 6):
        assert short.cohort(7, round, 100).tolist() == long.cohort(7, round, 100).tolist()


@pytest.mark.parametrize(
    ("activity", "clients", "size"),
    [(0.1, 100, 10), (0.29, 100, 29), (0.57, 100, 57), (0.1, 19, 1), (0.001, 10, 1), (0.999, 10, 9), (1.0, 7, 7)],
)
def test_cohort_size_is_the_floor_and_at_least_one(activity, clients, size):
    schedule = Schedule(activity=activity)
    cohort = schedule.cohort(0, 1, clients)
    assert schedule.cohort_size(clients) == size == len(cohort) == len(set(cohort.tolist()))
    assert cohort.min() >= 0 and cohort.max() < clients and cohort.tolist() == sorted(cohort.tolist())


def test_cohorts_are_uniform_and_independent_between_rounds():
    """Every client is drawn equally often, and every pair of clients too (χ², fixed seed)."""
    schedule, clients, rounds = Schedule(activity=0.3), 10, 4000
    member = np.zeros((rounds, clients))
    for round in range(rounds):
        member[round, schedule.cohort(0, round + 1, clients)] = 1
    # Draws without replacement within a round vary less than independent ones, by the factor (M-1)/(M-k).
    chi2 = ((member.sum(0) - 0.3 * rounds) ** 2).sum() / (0.3 * rounds) * (clients - 1) / (clients - 3)
    assert 0.001 < stats.chi2.sf(chi2, clients - 1) < 0.999
    pairs = (member.T @ member)[np.triu_indices(clients, 1)]
    assert np.abs(pairs / rounds - 3 * 2 / 90).max() < 0.02
    following = (member[1:] * member[:-1]).mean()
    assert abs(following - 0.09) < 0.01
