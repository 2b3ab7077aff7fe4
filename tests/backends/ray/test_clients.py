"""The engine `ray` on a real Ray: the same answers as the stacked engine, whatever dies on the way."""

import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from personafl.algorithms import ALGORITHMS, Algorithm, Ditto, Each, FedAvg, Mean, Uploads
from personafl.algorithms.extras import trained_task
from personafl.backends.ray.actor import Shard, Worker
from personafl.backends.ray.clients import RayClients
from personafl.backends.ray.shards import Shards, deal, rebalance, work
from personafl.backends.ray.start import _only_here, connect
from personafl.config import parse
from personafl.engines.stacked import StackedEngine
from personafl.errors import ConfigError, DataError, RunError
from personafl.federation import Federation
from personafl.jobs import train
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local, RaySettings, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.events import RunFiles
from personafl.training.job import Job
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust
from personafl.training.runner import Runner
from tests.archetypes import FOR_TWO_LAYERS, archetypes
from tests.linux_processes import descendants, listening

LOCAL = Local(lr=0.05, batch_size=4, epochs=1)
SEED = 5
CLIENTS = 7


def federation() -> Federation:
    """Clients from 3 to 40 samples, some smaller than a batch, some without validation or test data."""
    draw = np.random.default_rng(3)
    data = {}
    for m, size in enumerate([3, 40, 9, 17, 4, 26, 11]):
        x, y = draw.standard_normal((size, 12)).astype(np.float32), draw.integers(0, 3, size)
        cut = max(2, int(0.7 * size))
        data[f"c{m}"] = {"train": (x[:cut], y[:cut]), "val": (x[cut - 1 : cut + 1], y[cut - 1 : cut + 1])}
        if m != 4:
            data[f"c{m}"]["test"] = (x[cut:], y[cut:])
    return Federation.from_clients(data, classes=3)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


TASK = Task(model())


QUICK = {"prestart_worker_first_driver": False, "worker_niceness": 0}
"""Else Ray starts 12 processes at once, and lets its own wait for whatever else this machine does."""

# --- Ray, once for all tests; three actors that tests use one after another, because one takes seconds to start


@pytest.fixture(scope="module")
def cluster():
    """A Ray with more CPUs than this machine has, so that tests choose the number of actors."""
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        ray.shutdown()
    with _only_here(True):
        for chance in range(10):  # Ray gives its own processes 30 seconds to start, which a busy machine may not have
            try:
                ray.init(
                    address="local", num_cpus=12, include_dashboard=False, log_to_driver=False,
                    logging_level=logging.ERROR,
                    _system_config=QUICK,
                )  # fmt: skip
                break
            except Exception as error:
                ray.shutdown()
                if chance == 9 or "timed out during startup" not in str(error):
                    raise
    if ray.util.get_node_ip_address() != "127.0.0.1":
        ray.shutdown()
        pytest.skip("this Ray does not stay on the loopback address")
    Pooled.idle = []
    yield ray
    ray.shutdown()


class Pooled(Shards):
    """Takes actors that are idle before it starts new ones, makes them anew, and leaves them idle.

    A new process would take seconds to load torch.
    """

    idle: list = []  # noqa: RUF012 (shared on purpose)

    def _new_worker(self):
        if not self.idle:
            return super()._new_worker()
        worker = self.idle.pop()
        worker.__ray_call__.remote(Worker.__init__, self._told)
        return worker

    def close(self):
        self.idle.extend(dict.fromkeys(self.workers))
        self.workers = []
        self._connection.close()


def on_ray(actors: int, folder: Path, share: float = 0.6, algorithm: Algorithm | None = None) -> RayClients:
    """Without a share of Ray's memory, actors have their own clients' samples and do not help each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("personafl.backends.ray.clients.Shards", Pooled)
        job = Job(
            federation(), TASK, algorithm or FedAvg(), local=LOCAL, engine=EngineSettings(threads=1),
            ray=RaySettings(actors=actors), seed=SEED,
        )  # fmt: skip
        clients = RayClients(job, RunFolder(folder))
    clients.shards.share, clients.shards.worth = share, 0
    return clients


def here(kind: type[LocalClients] = LocalClients, algorithm: Algorithm | None = None) -> LocalClients:
    return kind(StackedEngine(trained_task(algorithm or FedAvg(), TASK), federation(), LOCAL, seed=SEED, threads=1))


def runner(algorithm, clients, folder: Path, **schedule) -> Runner:
    plan = Schedule(**{"rounds": 4, "activity": 0.6, "eval_every": 2, "checkpoint_every": 0} | schedule)
    made = Runner(algorithm, clients, plan, RunFolder(folder), {}, [RunFiles(RunFolder(folder))])
    if not made.folder.exists:
        made.folder.create({})
    return made


def assert_close(found, expected, what=""):
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        one, two = (np.asarray(v, np.float64) for v in (found[name], value))
        scale = max(np.abs(np.nan_to_num(two)).max(initial=0), 1.0)
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 * scale, err_msg=f"{what} {name}")


def assert_same_runs(one: Path, two: Path):
    """Run folders hold the same, numbers to 1e-6."""
    names = [sorted(p.relative_to(f).as_posix() for p in f.rglob("*.*") if p.is_file()) for f in (one, two)]
    assert names[0] == names[1]
    for name in names[0]:
        a, b = one / name, two / name
        if name.endswith(".parquet"):
            found, expected = pq.read_table(a), pq.read_table(b)
            assert found.schema == expected.schema, name
            for column in expected.column_names:
                x, y = found.column(column).to_pylist(), expected.column(column).to_pylist()
                assert [v is None for v in x] == [v is None for v in y], (name, column)
                if isinstance(next((v for v in y if v is not None), None), float):
                    x, y = ([0.0 if v is None else v for v in values] for values in (x, y))
                    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6, err_msg=f"{name} {column}")
                else:
                    assert x == y, (name, column)
        elif name.endswith(".safetensors"):
            with safe_open(a, "pt") as found, safe_open(b, "pt") as expected:
                assert found.metadata() == expected.metadata()
            assert_close(load_file(a), load_file(b), name)
        elif name.endswith(".jsonl") and "timings" not in name:
            for x, y in zip(*(map(json.loads, p.read_text().splitlines()) for p in (a, b)), strict=True):
                assert x.keys() == y.keys()
                assert all(x[k] == pytest.approx(y[k], rel=1e-6, abs=1e-6) for k in y if isinstance(y[k], float))
                assert all(x[k] == y[k] for k in y if not isinstance(y[k], float))


# --- what is averaged on the way


AVERAGING = [name for name, kind in ALGORITHMS.items() if any(isinstance(how, Mean) for how in kind().uplink.values())]


def test_which_algorithms_are_averaged_on_the_way():
    whole = {"separate", "fedamp", "heurfedamp", "selffl", "cfl", "fedfomo", "pfedhn", "mocha", "afl"}
    assert set(AVERAGING) == set(ALGORITHMS) - whole


@pytest.mark.parametrize("name", archetypes([name for name in AVERAGING if name in FOR_TWO_LAYERS]))
def test_aggregation_of_means_is_aggregation(tmp_path, name):
    """Whatever groups the clients are averaged in first."""
    algorithm = ALGORITHMS[name]()
    for weights in ("samples", "equal") if hasattr(algorithm, "weights") else (None,):
        algorithm = ALGORITHMS[name]() if weights is None else ALGORITHMS[name](weights=weights)
        clients = here()
        algorithm = algorithm.prepare(clients.job_info)
        server = algorithm.new_server(TASK.theta0, CLIENTS)
        clients.start(algorithm, TASK.theta0)
        ids = np.array([0, 1, 3, 4, 5, 6])
        uploads = clients.train(1, ids, algorithm.send(server, torch.from_numpy(ids))).uploads
        expected = algorithm.aggregate(dict(server), uploads)
        draw = np.random.default_rng(0)
        for _ in range(5):
            group = draw.integers(0, draw.integers(1, 5), len(ids))
            parts = []
            for g in np.unique(group):
                rows = torch.from_numpy(np.flatnonzero(group == g))
                values = {n: v[rows] for n, v in uploads.values.items()}
                part = Uploads(uploads.ids[rows], uploads.samples[rows], values, uploads.uplink)
                parts.append(part.condense())
            assert len(Uploads.join(parts)) == len(ids)
            assert_close(algorithm.aggregate(dict(server), Uploads.join(parts)), expected)


def test_some_uploads_are_averaged_on_the_way_and_others_are_not():
    """Each by its own declaration, and rows come in the order of the clients, whoever sent them first."""
    uplink = {"a": Mean(weights="samples"), "b": Mean(), "c": Each(why="the server takes the largest")}
    rows = torch.arange(4.0)[:, None]
    ids, samples = torch.tensor([3, 8, 1, 5]), torch.tensor([1, 3, 2, 2])
    parts = [
        Uploads(ids[some], samples[some], dict.fromkeys(uplink, rows[some]), uplink).condense()
        for some in (slice(0, 3), slice(3, 4))
    ]
    joined = Uploads.join(parts)
    assert joined.mean("a").item() == pytest.approx((0 * 1 + 1 * 3 + 2 * 2 + 3 * 2) / 8)
    assert joined.mean("b").item() == pytest.approx(1.5)
    assert joined.ids.tolist() == [1, 3, 5, 8] and joined.samples.tolist() == [2, 1, 2, 3]
    assert joined["c"].flatten().tolist() == [2.0, 0.0, 3.0, 1.0]
    assert {name: len(value) for name, value in joined.values.items()} == {"a": 2, "b": 2, "c": 4}


# --- shards


def test_shards_are_balanced_and_everybody_is_in_one():
    samples = np.random.default_rng(0).integers(1, 500, 200)
    for local in (Local(epochs=1), Local(epochs=1, batch_size=0)):
        shards = deal(work(local, samples), samples, 7)
        assert sorted(np.concatenate(shards).tolist()) == list(range(200))
        loads = [samples[ids].sum() for ids in shards]
        assert max(loads) <= 1.01 * min(loads)
    # At a given number of steps, each client is as much work as another.
    same = work(Local(steps=5, batch_size=1), samples)
    shards = deal(same, samples, 7)
    assert {len(ids) for ids in shards} == {28, 29}
    assert [ids.tolist() for ids in shards] == [ids.tolist() for ids in deal(same, samples, 7)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=30),
    st.integers(4, 6),
)
def test_a_cohort_is_shared_out_evenly(cohort, workers):
    """Nobody has much more than another, or else nobody's client is small enough to be given away."""
    owner, load = (np.array(column, np.int64) for column in (zip(*cohort, strict=True) if cohort else ([], [])))
    before = np.bincount(owner, load, minlength=workers)
    for worth in (25, 0):
        trainer = rebalance(owner, load, list(range(workers)), worth)
        sums = np.bincount(trainer, load, minlength=workers)
        gap = sums.max() - sums.min()
        assert sums.max() <= before.max()
        assert gap <= max(0.05 * sums.max(), worth) or load[(trainer == sums.argmax()) & (load > 0)].min() >= gap
        assert before.max() - before.min() >= worth or (trainer == owner).all()
    if (load == 1).all():
        assert gap <= 1
        assert (trainer != owner).sum() == np.maximum(np.bincount(owner, minlength=workers) - sums, 0).sum()


def test_a_shard_has_its_clients_data_and_keys(tmp_path):
    whole, ids = federation(), np.array([1, 4, 6])
    part = Shard.of(whole, ids, None).federation()
    assert part.ids == ("c1", "c4", "c6")
    assert part.keys.tolist() == whole.keys[ids].tolist()
    for client in part.ids:
        for split, (x, y) in whole.client(client).items():
            assert torch.equal(part.client(client)[split][0], x)
            assert torch.equal(part.client(client)[split][1], y)
    whole.save(tmp_path / "saved")
    assert Shard.of(whole, ids, str(tmp_path / "saved")).federation().fingerprint == whole.fingerprint
    with pytest.raises(DataError, match="another federation"):
        Shard(ids, "0" * 64, str(tmp_path / "saved")).federation()


def several() -> Federation:
    """Texts of unequal length beside numbers."""
    draw = np.random.default_rng(3)
    data = {}
    for m, size in enumerate([6, 14, 9]):
        texts = [draw.integers(0, 9, n) for n in draw.integers(1, 6, size)]
        data[f"c{m}"] = ({"ids": texts, "age": draw.normal(size=(size, 2))}, draw.integers(0, 2, size))
    return Federation.from_clients(data, classes=2, length=5)


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(6, 2)

    def forward(self, ids, age, mask):
        real = mask.unsqueeze(-1).float()
        return self.head(torch.cat([(self.words(ids) * real).sum(1) / real.sum(1), age], 1))


def test_a_shard_has_all_inputs_of_its_clients():
    whole = several()
    part = Shard.of(whole, np.array([0, 2]), None).federation()
    assert list(part.x) == ["ids", "age", "mask"]
    for client in part.ids:
        for split, (x, _) in whole.client(client).items():
            assert all(torch.equal(part.client(client)[split][0][name], value) for name, value in x.items())


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 0.0])
def test_several_inputs_on_actors(cluster, tmp_path, share, monkeypatch):
    monkeypatch.setattr(Shards, "share", share)
    torch.manual_seed(0)
    common = {"rounds": 2, "local": LOCAL, "seed": SEED, "threads": 1, "progress": False, "eval_every": 1}
    module = Texts()
    train(several(), module, Ditto(), engine="stacked", out=tmp_path / "stacked", **common)
    train(several(), module, Ditto(), engine="ray", ray=RaySettings(actors=2), out=tmp_path / "ray", **common)
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")


# --- what can be asked for


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for ask in (lambda: parse({"engine": "ray"}), lambda: connect().__enter__()):
        with pytest.raises(ConfigError, match=r"pip install 'personafl\[ray\]'") as error:
            ask()
        assert "\n" not in str(error.value)


def test_settings_of_ray():
    config = parse({"engine": "ray", "ray": {"address": "10.0.0.1:6379", "actors": 4, "gpus_per_actor": 0.5}})
    assert config.ray == RaySettings("10.0.0.1:6379", 4, None, 0.5)
    assert parse(json.loads(json.dumps(config.tables()))) == config
    for table, complaint in (
        ({"actors": 0}, "ray.actors = 0"),
        ({"cpus_per_actor": 0}, "ray.cpus_per_actor = 0"),
        ({"gpus_per_actor": 1.5}, "ray.gpus_per_actor = 1.5"),
        ({"adress": "x"}, "did you mean 'ray.address'"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            parse({"engine": "ray", "ray": table})


def test_nobody_at_the_address():
    with pytest.raises(ConfigError, match="no Ray answers there"), connect("127.0.0.1:1"):
        pass


# --- on Ray


def state_of(run: Runner) -> dict:
    everybody = np.arange(CLIENTS)
    out = {f"server {n}": v for n, v in run.server.items()}
    out |= {f"client {n}": v for n, v in run.clients.rows(everybody).items()}
    out |= {f"measured {n}": v for n, v in run.clients.measure(run.snapshot(True), everybody).items()}
    counted = {"steps": run.steps, "gradients": run.gradients, "active": run.active}
    return out | counted | {"bytes": run.traffic["bytes_up"]}


@pytest.mark.parametrize("name", archetypes(FOR_TWO_LAYERS))
def test_every_algorithm_as_on_the_stacked_engine(cluster, tmp_path, name):
    algorithm = ALGORITHMS[name]()

    def two_rounds(clients, folder):
        run = runner(algorithm, clients, folder, rounds=10, eval_every=0)
        for _ in range(2):
            run.step()
        found = state_of(run)
        clients.close()
        return found

    expected = two_rounds(here(algorithm=algorithm), tmp_path / "stacked")
    for actors in (1, 2, 3):
        clients = on_ray(actors, tmp_path / str(actors), algorithm=algorithm)
        assert_close(two_rounds(clients, tmp_path / str(actors)), expected, f"{actors} actors:")
        assert len(clients.shards.ids) == actors


@pytest.mark.parametrize("privacy", [None, pytest.param(Privacy(clip=1.0, noise=0.5), marks=pytest.mark.slow)])
def test_actors_help_each_other(cluster, tmp_path, privacy):
    """Clients take their states along and back again, and leave nothing behind."""
    clients = on_ray(3, tmp_path)
    clients.privacy = privacy
    clients.shards._config = replace(clients.shards._config, privacy=privacy)
    run = runner(Ditto(), clients, tmp_path, rounds=10, activity=0.6, eval_every=0)
    reference = here()
    reference.privacy = privacy
    expected = runner(Ditto(), reference, tmp_path / "here", rounds=10, activity=0.6, eval_every=0)
    clients.shards._work = np.ones(CLIENTS, np.int64)
    helped = 0
    for now in range(1, 9):
        run.step()
        expected.step()
        cohort = run.schedule.cohort(SEED, now, CLIENTS)
        helped += (clients.shards.trainers(cohort) != clients.shards.owner[cohort]).sum()
    assert helped > 4
    assert_close(state_of(run), state_of(expected))
    for n, worker in enumerate(clients.shards.workers):
        kept = cluster.get(worker.__ray_call__.remote(lambda worker, n=n: worker._shards[n][1].store.slots))
        assert set(np.flatnonzero(kept >= 0)) == set(clients.shards.ids[n]) & set(np.flatnonzero(run.active))
    assert clients.shards.moved["put_rows_down"] == helped * (8 + clients.row_bytes)
    clients.close()


def test_clients_on_actors_keep_the_state_of_their_optimizer(cluster, tmp_path, monkeypatch):
    """Also those that are trained by another actor than their own."""
    kept = replace(LOCAL, optimizer="adamw", eps=1e-3, optimizer_state="kept")
    monkeypatch.setitem(globals(), "LOCAL", kept)
    clients = on_ray(2, tmp_path)
    run = runner(Ditto(), clients, tmp_path, rounds=10, activity=0.6, eval_every=0)
    expected = runner(Ditto(), here(), tmp_path / "here", rounds=10, activity=0.6, eval_every=0)
    clients.shards._work = np.ones(CLIENTS, np.int64)
    for _ in range(4):
        run.step()
        expected.step()
    assert "client optimizer.v.square" in state_of(run)
    assert_close(state_of(run), state_of(expected))
    clients.close()


@pytest.mark.parametrize("name", ["selffl", pytest.param("ditto", marks=pytest.mark.slow)])
def test_actors_that_have_their_own_clients_data_alone(cluster, tmp_path, name):
    found = []
    for clients, folder in ((here(), "stacked"), (on_ray(3, tmp_path / "ray", share=0), "ray")):
        run = runner(ALGORITHMS[name](), clients, tmp_path / folder, rounds=10, eval_every=0)
        for _ in range(3):
            run.step()
        found.append(state_of(run))
        clients.close()
    assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["fedavg", "persfl", "fedamp"])
@pytest.mark.parametrize("models_mb", [1024, 0])
def test_the_run_folder_is_the_same(cluster, tmp_path, name, models_mb):
    """Evaluations, predictions, models: of everybody, or of those who were active and one for the others."""
    for clients, folder in ((here(), "stacked"), (on_ray(3, tmp_path / "ray"), "ray")):
        schedule = {"rounds": 2, "activity": 0.3, "models_mb": models_mb, "eval_clients": 6, "eval_every": 1}
        runner(ALGORITHMS[name](), clients, tmp_path / folder, **schedule).run()
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")


@pytest.mark.parametrize("name", ["fedavg", "fedamp"])
def test_bytes_between_driver_and_actors_are_as_predicted(cluster, tmp_path, name):
    """Means follow the number of actors; whole rows follow the number of clients."""
    clients, size, active = on_ray(3, tmp_path), 4 * TASK.size, 6
    run = runner(ALGORITHMS[name](), clients, tmp_path, rounds=2, activity=0.9, eval_every=0)
    run.step()
    each = 8 * active  # a number of 8 bytes for each client
    # Down: who, and what. Up: who, how many steps and gradients, and what.
    if name == "fedavg":
        down, up = each + size, 3 * each + 3 * size
    else:
        down, up = each + active * size + 4, 3 * each + active * size
    moved = clients.shards.moved
    assert (moved["train_down"], moved["train_up"]) == (down, up)
    assert run.traffic["bytes_up"] == active * size  # what a federation would send
    # What is counted is what Ray has to move, but for a few names and types.
    answer = cluster.get(clients.shards.workers[0].rows.remote(0, clients.shards.ids[0]))
    counted = sum(value.nbytes for value in answer.values())
    assert counted <= len(pickle.dumps(answer, 5)) <= counted + 1000
    clients.close()


class Forgetful(LocalClients):
    """What must happen when an actor dies: in one round some clients do not answer, then have older states."""

    victims, dies_in, older = np.arange(0), 0, None

    def train(self, round, ids, sent):
        if round != self.dies_in:
            return super().train(round, ids, sent)
        stays = ~np.isin(ids, self.victims)
        part = type(sent)(sent.shared, {n: v[torch.from_numpy(stays)] for n, v in sent.each.items()})
        answers = super().train(round, ids[stays], part)
        self.store.drop(self.victims)
        self.put_rows(self.victims, self.older)
        why = dict.fromkeys(ids[~stays].tolist(), "died")
        return replace(answers, dropped=why)


@pytest.mark.parametrize("name, saved", [pytest.param("ditto", 2, marks=pytest.mark.slow), ("fedamp", 0)])
def test_an_actor_that_dies_in_a_round(cluster, tmp_path, name, saved):
    """Its clients are dropped from the round and then are as in the last checkpoint, or anew; the run goes on."""
    folder, algorithm = tmp_path / "ray", ALGORITHMS[name]()
    clients = on_ray(2, folder, share=0)
    run = runner(algorithm, clients, folder, rounds=6, checkpoint_every=saved)
    reference = here(Forgetful)
    expected = runner(algorithm, reference, tmp_path / "here", rounds=6, checkpoint_every=saved)
    reference.victims, reference.dies_in = clients.shards.ids[1], 4
    reference.older = reference.rows(reference.victims)  # where there is no checkpoint: as before the first round
    for now in range(1, 4):
        run.step()
        expected.step()
        if now == saved:
            reference.older = reference.rows(reference.victims)
    cluster.kill(clients.shards.workers[1])
    for _ in range(3):
        run.step()
        expected.step()
    assert_close(state_of(run), state_of(expected))
    records = run.folder.rounds()
    cohort = run.schedule.cohort(SEED, 4, CLIENTS)
    lost = [f"c{i}" for i in cohort if i in reference.victims]
    assert lost and sorted(records[3]["dropped"]) == lost
    assert all("actor died" in why for why in records[3]["dropped"].values())
    assert [record["round"] for record in records if "dropped" in record] == [4]
    clients.close()


@pytest.mark.slow
def test_an_actor_that_dies_while_it_helps_another(cluster, tmp_path):
    """Those it helped keep their states; its own are as in the last checkpoint."""
    clients = on_ray(2, tmp_path / "ray")
    run = runner(Ditto(), clients, tmp_path / "ray", rounds=30, eval_every=0, checkpoint_every=1)
    clients.shards._work = np.ones(CLIENTS, np.int64)
    reference = here(Forgetful)
    expected = runner(Ditto(), reference, tmp_path / "here", rounds=30, eval_every=0)
    for now in range(1, 30):
        cohort = run.schedule.cohort(SEED, now, CLIENTS)
        trainer, owner = clients.shards.trainers(cohort), clients.shards.owner[cohort]
        if now > 2 and ((trainer == 1) & (owner == 0)).any():
            break
        run.step()
        expected.step()
    gone = cohort[trainer == 1]
    reference.victims, reference.dies_in, reference.older = gone, now, reference.rows(gone)
    process = cluster.get(clients.shards.workers[1].__ray_call__.remote(lambda worker: os.getpid()))
    clients.shards.workers[1].__ray_call__.remote(lambda worker: time.sleep(60))
    threading.Timer(0.5, os.kill, (process, signal.SIGKILL)).start()
    for _ in range(3):
        run.step()
        expected.step()
    assert_close(state_of(run), state_of(expected))
    assert set(run.folder.rounds()[now - 1]["dropped"]) == {f"c{i}" for i in gone}
    clients.close()


def test_an_actor_that_is_killed_while_it_works(cluster, tmp_path):
    """SIGKILL in the middle of a long round, of a process and not by Ray's own hand."""
    clients = on_ray(2, tmp_path, share=0)
    run = runner(FedAvg(), clients, tmp_path, rounds=9, activity=1.0, eval_every=0, checkpoint_every=1)
    run.step()
    before = clients.rows(clients.shards.ids[1])
    process = cluster.get(clients.shards.workers[1].__ray_call__.remote(lambda worker: os.getpid()))
    clients.shards.workers[1].__ray_call__.remote(lambda worker: time.sleep(60))  # a long round, to die in
    threading.Timer(0.5, os.kill, (process, signal.SIGKILL)).start()
    run.step()
    assert set(run.folder.rounds()[-1]["dropped"]) == {f"c{i}" for i in clients.shards.ids[1]}
    assert_close(clients.rows(clients.shards.ids[1]), before)
    run.step()
    assert "dropped" not in run.folder.rounds()[-1]
    clients.close()


def test_resumed_on_another_number_of_actors(cluster, tmp_path):
    for clients, folder in ((on_ray(2, tmp_path / "ray"), "ray"), (here(), "stacked")):
        whole = runner(Ditto(), clients, tmp_path / folder, rounds=6, checkpoint_every=2)
        for _ in range(5 if folder == "ray" else 0):
            whole.step()
        if folder == "ray":
            clients.close()
            whole = runner(Ditto(), on_ray(3, tmp_path / folder), tmp_path / folder, rounds=6, checkpoint_every=2)
            assert whole.resume() and whole.round == 4
        whole.run()
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")


def test_clients_that_diverge_are_named(cluster, tmp_path):
    """Also where all clients of an actor do, so that it has no mean to send."""
    records = []
    for clients, folder in ((on_ray(3, tmp_path / "ray"), "ray"), (here(), "stacked")):
        run = runner(FedAvg(), clients, tmp_path / folder, rounds=9, activity=1.0, eval_every=0)
        run.step()
        bad = {**run.clients.rows(np.arange(CLIENTS))}
        with suppress(Exception):
            run.server["theta"][:] = 1e38  # some overflow in their first steps
            run.step()
        records.append((run.failed.tolist(), [r["failed"] for r in run.folder.rounds()]))
        assert_close(run.clients.rows(np.arange(CLIENTS)), bad)
        clients.close()
    assert records[0] == records[1]
    assert sum(records[0][0])


def test_where_there_is_no_room_for_a_new_actor_another_does_its_work(cluster, tmp_path, monkeypatch):
    clients = on_ray(2, tmp_path)
    run = runner(FedAvg(), clients, tmp_path, rounds=9, activity=1.0, eval_every=0, checkpoint_every=1)
    run.step()
    monkeypatch.setattr(clients.shards, "patience", 0.2)
    # An actor that needs what this cluster does not have waits for ever.
    clients.shards._actor = cluster.remote(Worker).options(resources={"nowhere": 1})
    monkeypatch.setattr(Pooled, "idle", [])
    before = state_of(run)
    cluster.kill(clients.shards.workers[0])
    assert_close(clients.measure(run.snapshot(False), np.arange(CLIENTS)), {
        n.removeprefix("measured "): v for n, v in before.items() if n.startswith("measured ")})  # fmt: skip
    assert clients.shards.workers[0] == clients.shards.workers[1]
    run.step()
    assert run.active.tolist() == [2] * CLIENTS
    clients.close()
    (left,) = Pooled.idle
    monkeypatch.undo()
    Pooled.idle.append(left)


def test_an_actor_that_dies_again_and_again_ends_the_run(cluster, tmp_path, monkeypatch):
    clients = on_ray(1, tmp_path)
    run = runner(FedAvg(), clients, tmp_path)
    killer = clients.shards._replace
    dead = clients.shards.workers[0]

    def replace(gone):
        monkeypatch.setattr(clients.shards, "_successor", lambda left: dead)
        killer(gone)

    monkeypatch.setattr(clients.shards, "_replace", replace)
    cluster.kill(dead)
    with pytest.raises(RunError, match="died 3 times in a row"):
        for _ in range(3):
            run.step()
    clients.shards.workers = []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{}, {"noise_at": "server"}, {"unit": "sample"}])
def test_train_on_ray_leaves_a_joined_ray_running(cluster, tmp_path, kind):
    """By the public function, with privacy, on data that actors read from a saved federation."""
    fed, privacy = federation(), Privacy(clip=1.0, noise=0.5, **kind)
    fed.save(tmp_path / "saved")
    common = {"rounds": 2, "activity": 0.9, "local": LOCAL, "seed": SEED, "threads": 1, "progress": False,
              "eval_every": 1, "privacy": privacy}  # fmt: skip
    train(fed, model(), engine="stacked", out=tmp_path / "stacked", **common)
    settings = RaySettings(actors=2, data=str(tmp_path / "saved"))
    run = train(fed, model(), engine="ray", ray=settings, out=tmp_path / "ray", **common)
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")
    assert run.manifest["resolved"]["engine"] == "ray"
    assert cluster.is_initialized()


def test_one_process_joins_one_ray(cluster):
    with connect("auto") as ours:
        assert not ours
    with pytest.raises(ConfigError, match="has joined the Ray at "), connect("10.0.0.1:6379"):
        pass


def test_ray_stays_on_this_machine(cluster):
    """No process of the Ray that we start listens on anything but the loopback address."""
    assert {address for _, address in listening(descendants(os.getpid()))} <= {"127.0.0.1", "::1"}
    assert len(listening(descendants(os.getpid()))) > 3


@pytest.mark.parametrize("rule", ["median", "clip"])
def test_a_robust_rule_sees_each_answer(cluster, tmp_path, rule):
    """Nothing is averaged on the way, and the answer is that of one process."""
    common = {"rounds": 2, "local": LOCAL, "seed": SEED, "threads": 1, "progress": False, "eval_every": 1,
              "robust": Robust(rule, factor=1.0)}  # fmt: skip
    train(federation(), model(), engine="stacked", out=tmp_path / "stacked", **common)
    train(federation(), model(), engine="ray", ray=RaySettings(actors=2), out=tmp_path / "ray", **common)
    assert_same_runs(tmp_path / "ray", tmp_path / "stacked")
