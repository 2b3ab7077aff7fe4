"""Runs in processes are the runs of one process."""

import pytest

from personafl.study import processes
from personafl.study.launch import run_plan
from personafl.study.plan import plan
from personafl.study.processes import Processes

TABLES = {
    "rounds": 2, "eval_every": 1, "splits": [0.5, 0.2, 0.3], "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4}, "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "steps": 2, "batch_size": 10}, "engine": {"name": "stacked", "threads": 1},
    "methods": {"fedavg": {}, "separate": {}, "wild": {"algorithm": {"name": "ditto"}, "local": {"lr": 1e30}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    planned = plan(TABLES, ["fedavg", "separate", "wild"], seeds=2)
    alone = run_plan(planned, folder / "alone")
    with Processes(at_once=2) as launcher:
        together = run_plan(planned, folder / "together", launcher=launcher)
    return alone, together


def test_the_folders_and_what_is_in_them_are_the_same(both):
    alone, together = both
    assert {m: set(runs) for m, runs in alone.methods.items()} == {m: set(runs) for m, runs in together.methods.items()}
    for method in ("fedavg", "separate"):
        for seed, run in together.methods[method].items():
            twin = alone.methods[method][seed]
            assert run.path.name == twin.path.name
            for file in ("clients.parquet", "rounds.jsonl", "models/personal.safetensors"):
                assert (run.path / file).read_bytes() == (twin.path / file).read_bytes(), file


def test_a_run_that_breaks_down_is_told_and_the_others_go_on(both):
    alone, together = both
    assert [(m, seed) for m, seed, _ in together.failures] == [("wild", 0), ("wild", 1)]
    assert together.failures == alone.failures


def test_runs_of_the_same_data_share_it_in_a_process():
    planned = plan(TABLES, ["fedavg", "separate"], seeds=2)
    [alike, other, next_seed] = [planned.job(*job).config for job in (("fedavg", 0), ("separate", 0), ("fedavg", 1))]
    first = processes._federation(alike)
    assert processes._federation(other) is first
    second = processes._federation(next_seed)
    assert second is not first and (second.y[:50] != first.y[:50]).any()
    assert processes._federation(alike) is not first, "one at a time is kept"


@pytest.mark.parametrize(("at_once", "threads"), [(1, 6), (2, 3), (5, 1), (9, 1), (None, 1)])
def test_cores_are_shared_out(monkeypatch, at_once, threads):
    monkeypatch.setattr("personafl.study.processes.cores", lambda: 6)
    assert Processes(at_once).threads == threads


@pytest.mark.slow  # another process that loads torch
def test_a_run_that_has_all_cores_is_the_same(both, tmp_path, monkeypatch):
    monkeypatch.setattr("personafl.study.processes.cores", lambda: 2)
    free = {**TABLES, "engine": {"name": "stacked"}}
    with Processes(1) as launcher:
        runs = run_plan(plan(free, ["fedavg"], seeds=1), tmp_path, launcher=launcher).methods["fedavg"]
    assert runs[0].manifest["resolved"]["threads"] == 2
    twin = both[0].methods["fedavg"][0]
    assert (runs[0].path / "clients.parquet").read_bytes() == (twin.path / "clients.parquet").read_bytes()
