import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from personafl.algorithms.base import Sent
from personafl.algorithms.fedavg import FineTune
from personafl.cli import app
from personafl.engines import Work, make_engine
from personafl.engines.machine import torch_threads
from personafl.errors import ConfigError, DataError
from personafl.settings import EngineSettings
from personafl_bench import contest, machine, references
from personafl_bench.jobs import CNN_JOB, EVALUATION, JOBS, LSTM, MNIST_JOB, SMALL, Job
from personafl_bench.own import REFERENCES, contestants
from personafl_bench.picture import draw
from personafl_bench.run import find_peers, tables
from tests.waiting import until

PEERS = Path(contest.__file__).parent / "peers"


@pytest.fixture(autouse=True)
def made_up_data_and_one_thread(monkeypatch):
    monkeypatch.delenv("PERSONAFL_DATA", raising=False)
    with torch_threads(1):
        yield


def few_batches(job: Job, clients: int = 3) -> tuple[Job, torch.Tensor]:
    """A job with fewer steps, and the samples of some clients' steps."""
    job, federation, draw = replace(job, steps=2), job.federation(), np.random.default_rng(0)
    starts, sizes = federation.starts("train"), federation.sizes("train")
    index = [[starts[k] + draw.permutation(sizes[k])[: job.batch] for _ in range(job.steps)] for k in range(clients)]
    return job, torch.from_numpy(np.array(index))


@pytest.mark.parametrize(
    "job", [SMALL, pytest.param(MNIST_JOB, marks=pytest.mark.slow), CNN_JOB], ids=lambda job: job.name
)
def test_the_references_do_the_same_arithmetic(job):
    job, index = few_batches(job)
    task, federation = job.task(), job.federation()
    plain = references.tight_loop(job, task, federation, index)
    assert (plain - task.theta0).abs().max() > 1e-3
    for other in (references.by_hand, references.plain_vmap):
        torch.testing.assert_close(other(job, task, federation, index), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("job", [SMALL, MNIST_JOB, CNN_JOB], ids=lambda job: job.name)
def test_the_least_operations_are_those_that_torch_counts(job):
    job, index = few_batches(job, clients=1)
    with FlopCounterMode(display=False) as counted:
        references.tight_loop(job, job.task(), job.federation(), index)
    assert replace(job, active=1).least[0] == counted.get_total_flops()


def test_the_least_operations_of_the_lstm_are_those_of_its_products():
    """torch's counter does not look into nn.LSTM, so the products are written out."""
    x = torch.zeros(1, *LSTM.shape)
    first, second = nn.LSTM(100, 256), nn.LSTM(256, 256)
    total = 0
    with FlopCounterMode(display=False) as counted:
        h = torch.zeros(25, 256)
        for layer, inputs in ((first, x[0]), (second, h)):
            inputs @ layer.weight_ih_l0.T
            h @ layer.weight_hh_l0.T
        torch.zeros(1, 256) @ torch.zeros(256, 2)
    total = counted.get_total_flops()
    no_gradient = 2 * 25 * 4 * 256 * 100  # of the first layer's inputs
    assert replace(LSTM, active=1, steps=1, batch=1).least[0] == 3 * total - no_gradient


@pytest.mark.parametrize("key", "ghijk")
def test_engines_and_references_agree_on_networks_that_users_bring(key):
    """Two clients, a step each."""
    job = replace(JOBS[key], clients=3, active=2, steps=1, batch=3)
    task, federation, ids = job.task(), job.federation(), np.arange(2)
    sent = Sent({"theta": task.theta0})
    found, plan = {}, None
    for name in ("loop", "stacked"):
        engine, _ = make_engine(EngineSettings(name, 1), task, federation, job.local, 0)
        work = Work(FineTune(1), 1, "train", ids, {}, sent)
        found[name] = engine.run(work).own["theta"]
        plan = engine._plan(work, engine._keys(work), np.ones(2, np.int64))
    for name in contestants(job)[1:]:
        found[name] = REFERENCES[name](job, task, federation, torch.from_numpy(plan.positions))
    step = found["loop"] - task.theta0
    assert step.norm() > 0
    for name, theta in found.items():
        assert (theta - task.theta0 - step).norm() < 0.01 * step.norm(), name


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_every_batch_of_a_job_is_full(job):
    assert not (job.federation().sizes("train") % job.batch).any()


def test_evaluation_by_vmap_counts_what_plain_predictions_get_right():
    task, federation = EVALUATION.task(), EVALUATION.federation()
    theta = task.theta0 + 0.01 * torch.randn(len(federation), task.size, generator=torch.Generator().manual_seed(0))
    correct = references.evaluate_by_vmap(task, federation, theta)
    for k in (0, 17, 999):
        x, y = federation.client(str(k))["test"]
        assert correct[k] == (task.predict(theta[k], x).argmax(-1) == y).sum()


def test_peers_learn_the_model_and_the_samples_that_personafl_has(tmp_path):
    """In an interpreter that imports the peers' side as they do: the same outputs, and batches that use all samples."""
    code = (
        f"import sys; sys.path.insert(0, {str(PEERS)!r})\n"
        "import numpy as np, torch, protocol, torch_models\n"
        "for folder in sys.argv[1:]:\n"
        "    job = protocol.Given.load(folder)\n"
        "    with torch.no_grad():\n"
        "        np.save(folder + '/out.npy', torch_models.build(job)(torch.from_numpy(job.x[:5])))\n"
        "    x, y = torch_models.clients(folder)[3]\n"
        "    size = job.settings['batch']\n"
        "    seen = list(torch_models.Batches(x, y, 7, size))\n"
        "    assert len(seen) == 7 and {len(a) for a, _ in seen} == {size}\n"
        "    epoch = torch.cat([a for a, _ in seen[:5]]).flatten(1).sum(1).sort().values\n"
        "    assert torch.equal(epoch, x.flatten(1).sum(1).sort().values)\n"
        "assert 'personafl' not in sys.modules\n"
    )
    jobs = {tmp_path / job.name: job for job in (SMALL, CNN_JOB, LSTM, *(JOBS[key] for key in "ghijk"))}
    for folder, job in jobs.items():
        folder.mkdir()
        job.save(folder, threads=1)
    subprocess.run([sys.executable, "-c", code, *map(str, jobs)], check=True)
    for folder, job in jobs.items():
        with torch.no_grad():
            expected = job.task().predict(job.task().theta0, job.federation().x[:5])
        np.testing.assert_allclose(np.load(folder / "out.npy"), expected, rtol=1e-4, atol=1e-5)


def test_processor_time_and_memory_include_what_a_process_starts():
    burn = "import time\nheld = b'x' * 50_000_000\nwhile time.process_time() < 0.5: pass\ntime.sleep(3600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: machine.cpu_seconds(machine.family(process.pid)) >= 0.5, process)
        family = machine.family(process.pid)
        assert len(family) == 2
        assert machine.cpu_seconds(family) >= 0.5 > machine.cpu_seconds([process.pid])
        assert machine.peak_memory(family) > 50_000_000
    finally:
        for member in machine.family(process.pid)[::-1]:
            subprocess.run(["kill", "-9", str(member)], check=False)
        process.wait()


@pytest.mark.slow
def test_bench_prints_json_alone():
    """The command itself compares what references compute with what the engine does, and leaves out who differs."""
    done = CliRunner().invoke(app, ["bench", "--jobs", "a", "--repeat", "1", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    (job,) = results["jobs"]
    assert job["left_out"] == {}
    assert set(job["contestants"]) == {"personafl", "hand-written", "plain vmap", "tight loop"}
    assert job["contestants"]["personafl"]["loss"] < job["loss_before"]
    for entry in job["contestants"].values():
        assert 0 < entry["min_ms"] <= entry["median_ms"] and entry["cpu_ms"] > 0 and entry["peak_mb"] > 10
    least = max(1e3 * job["least_gflop"] / results["gflops"], job["least_mb"] / results["gb_per_s"])
    assert job["limit_ms"] == pytest.approx(least)
    assert len(tables(results)) == 1


def results_of(**times: float) -> dict:
    entries = {
        name: {
            "min_ms": ms, "median_ms": ms, "cpu_ms": ms, "peak_mb": 100.0, "loss": 1.0, "learns": name != "odd",
            "ratio": ms / times["personafl"], "median_ratio": 1.0, "version": None, "setting": "1 threads", "rounds": 1,
        }
        for name, ms in times.items()
    }  # fmt: skip
    job = {
        "job": "a", "name": "small", "about": "a job", "data": "made up", "limit_ms": 1.0, "least_gflop": 1.0,
        "least_mb": 1.0, "loss_before": 2.0, "rounds_before_loss": 5, "compared_with": "personafl",
        "contestants": entries, "left_out": {"absent": "[it] failed"},
    }  # fmt: skip
    return {"threads": 2, "repeat": 1, "gflops": 100.0, "gb_per_s": 10.0, "jobs": [job]}


def test_the_picture_and_the_table_show_everybody(tmp_path, capsys):
    from rich.console import Console

    results = results_of(personafl=2.0, odd=30.0, pfl=40.0)
    draw(results, tmp_path / "bench.svg")
    assert "<svg" in (tmp_path / "bench.svg").read_text()
    Console(width=100).print(tables(results)[0])
    shown = capsys.readouterr().out
    assert "20" in shown and "1.000 !" in shown and "absent left out: [it] failed" in shown
    with pytest.raises(DataError, match="nothing to draw"):
        draw({**results, "jobs": []}, tmp_path / "bench.svg")
    with pytest.raises(DataError, match=r"\.png, \.pdf, \.svg"):
        draw(results, tmp_path / "bench.txt")


def test_a_contestant_that_fails_is_left_out_with_its_last_words(tmp_path):
    failing = contest.Contestant("x", [sys.executable, "-c", "raise ValueError('no such thing')"], tmp_path, {})
    with pytest.raises(contest.LeftOut, match="ValueError: no such thing"):
        failing.introduce()
    failing.end()


def test_peers_that_are_not_installed_are_named():
    found, missing = find_peers(sys.executable)
    assert set(found) | set(missing) == set(contest.PEERS) and not set(found) & set(missing)
    with pytest.raises(ConfigError, match="cannot be run"):
        find_peers("/there/is/no/python")


def test_unknown_jobs_and_pictures_are_refused():
    for arguments, words in (
        (["--jobs", "a,z"], "known jobs"),
        (["--picture", "x.txt"], ".png"),
        (["--repeat", "0"], "at least 1"),
    ):
        done = CliRunner().invoke(app, ["bench", *arguments])
        assert done.exit_code != 0 and words in str(done.exception)
