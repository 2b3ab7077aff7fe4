"""Gradients are counted as they are computed: known numbers for every algorithm, the same on every engine."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from personafl.algorithms import ALGORITHMS, Algorithm
from personafl.algorithms.extras import trained_task
from personafl.engines import ENGINES
from personafl.settings import Local
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.events import RunFiles
from personafl.training.runner import Runner
from tests.archetypes import FOR_TWO_LAYERS, archetypes
from tests.engines.test_agreement import MODELS, Schedule, Task, federation, torch

ROUNDS, BATCH = 2, 4

PER_STEP = {
    "ditto": 2,
    "pfedme": 5,
    "perfedavg": 2,
    "apfl": 2,
    "fedem": 1,
    **dict.fromkeys(("fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "separate", "scaffold", "fedper"), 1),
    **dict.fromkeys(("fedrep", "fedbabu", "lg-fedavg", "fedala", "heterofl", "lotteryfl"), 1),
    "fedrod": 2,
    **dict.fromkeys(("fedamp", "heurfedamp", "persfl", "persfl-gd", "selffl", "selffl-aug"), 1),
    **dict.fromkeys(("fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn", "qffl", "afl", "fedpa", "fedbe"), 1),
    **dict.fromkeys(("moon", "fedproto", "fedpac", "knnper"), 1),
    "cfl": 1,
    "ifca": 1,
    "fedfomo": 1,
    "pfedhn": 1,
    "mocha": 1,
    "fml": 2,
}


GRID = {"temperatures": (1.0, 5.0), "imitations": (0.0, 0.5), "distill_epochs": 3}
SMALL = {
    "persfl": GRID,
    "persfl-gd": GRID,
    "fedavg-ft": {"fine_tune_steps": 8},
    "fedprox-ft": {"fine_tune_steps": 8},
    "selffl-aug": {"extra_steps": 4},
    "fedbabu": {"fine_tune_steps": 8},
    "fedrep": {"head_steps": 3},
    "fedpac": {"head_steps": 3},
    "fedala": {"start_steps": 5},
}


def made(name: str) -> Algorithm:
    return ALGORITHMS[name](**SMALL.get(name, {}))


def before_evaluation(name: str, samples: np.ndarray) -> np.ndarray:
    """Fine-tuning takes 8 steps, Per-FedAvg's adaptation one, PersFL 3 epochs for each of 3 students.

    Where λ is 0, one student stands for both temperatures.
    """
    epoch = -(-samples // BATCH)
    taken = {
        "fedavg-ft": 8,
        "fedprox-ft": 8,
        "fedbabu": 8,
        "perfedavg": 1,
        "persfl": 9 * epoch,
        "persfl-gd": 9 * epoch,
    }
    return taken.get(name, 0) + np.zeros_like(samples)


def run(engine: str, algorithm: Algorithm, folder, local: Local, activity: float = 0.6, memory: int = 1024) -> Runner:
    torch.manual_seed(0)
    threads = 2 if engine == "threaded" else 1
    task = trained_task(algorithm, Task(MODELS["mlp"]()))
    own = ENGINES[engine](task, federation(), local, seed=5, memory=memory, threads=threads)
    schedule = Schedule(rounds=ROUNDS, activity=activity, eval_every=0, checkpoint_every=1)
    files = RunFolder(folder)
    files.create({})
    runner = Runner(algorithm, LocalClients(own), schedule, files, {}, [RunFiles(files)])
    runner.run()
    return runner


def counted(runner: Runner) -> np.ndarray:
    return pq.read_table(runner.folder.clients_file).column("gradients").to_numpy()


def steps_taken(runner: Runner) -> float:
    """Of all clients, in all rounds."""
    return sum(record["steps"] * record["active"] for record in runner.folder.rounds())


@pytest.mark.parametrize("name", FOR_TWO_LAYERS)
def test_every_algorithm(tmp_path, name):
    counts_what_is_known(tmp_path, name, "stacked")


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "stacked"])
@pytest.mark.parametrize("name", archetypes(FOR_TWO_LAYERS, besides=["ditto"]))
def test_on_every_other_engine(tmp_path, name, engine):
    counts_what_is_known(tmp_path, name, engine)


def counts_what_is_known(tmp_path, name, engine):
    """Gradients a step, times the steps taken, and what comes before the last evaluation."""
    runner = run(engine, made(name), tmp_path / "run", Local(lr=0.01, batch_size=BATCH, epochs=2))
    rounds = runner.folder.rounds()
    for record in rounds:
        assert record["gradients"] == round(PER_STEP[name] * record["steps"] * record["active"]) > 0
    extra = before_evaluation(name, federation().sizes("train"))
    assert counted(runner).sum() == round(PER_STEP[name] * steps_taken(runner)) + extra.sum()
    assert rounds[-1].get("evaluation_gradients", 0) == extra.sum()
    if not name.startswith("selffl"):  # whose clients choose their number of steps themselves
        trained = runner.active * PER_STEP[name] * 2 * -(-federation().sizes("train") // BATCH)
        # Before those of the settings: 3 steps of the head; 5 of FedBE's distillation; 5 of FedALA's weights in a
        # client's second round.
        each = {"fedrep": 3, "fedpac": 3, "fedbe": 5}.get(name, 0)
        trained += each * runner.active + 5 * (runner.active > 1) * (name == "fedala")
        np.testing.assert_array_equal(counted(runner), trained + extra)


@pytest.mark.parametrize("engine", ["stacked", pytest.param("threaded", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", archetypes(besides=["ditto"]))
def test_engines_count_alike_client_by_client(tmp_path, name, engine):
    local = Local(lr=0.01, batch_size=BATCH, epochs=1)
    one = counted(run("loop", made(name), tmp_path / "loop", local))
    chunks = run(engine, made(name), tmp_path / "chunks", local, memory=0)  # one client at a time
    np.testing.assert_array_equal(one, counted(chunks))


@pytest.mark.parametrize("engine", ENGINES)
def test_options_that_cost_more(tmp_path, engine):
    """Hessian-free meta-gradients take four, momentum none, pFedMe as many as it has inner steps."""
    local = Local(lr=0.01, batch_size=BATCH, steps=2, momentum=0.5, weight_decay=0.1)
    wanted = {
        ("perfedavg", "variant", "hessian-free"): 4,
        ("pfedme", "inner_steps", 3): 3,
        ("ditto", "lam", 0.5): 2,
        ("apfl", "adaptive", True): 2,
    }
    for n, ((name, option, value), each) in enumerate(wanted.items()):
        runner = run(engine, ALGORITHMS[name](**{option: value}), tmp_path / str(n), local, activity=1.0)
        assert [record["gradients"] for record in runner.folder.rounds()] == [each * 2 * 7] * ROUNDS


class ThreeLooks(ALGORITHMS["fedavg"]):
    """Somebody's own algorithm: nobody has told personafl what a step of it costs."""

    name = "three-looks"

    def step(self, carry, sent, grad, ctx):
        ctx.descend(carry, "theta", (grad(carry["theta"]) + grad(0.9 * carry["theta"])) / 2)
        ctx.descend(carry, "theta", grad)
        return carry


@pytest.mark.parametrize("engine", ENGINES)
def test_an_algorithm_of_ones_own_is_counted_too(tmp_path, engine):
    runner = run(engine, ThreeLooks(), tmp_path / "run", Local(batch_size=BATCH, steps=5), activity=1.0)
    assert counted(runner).tolist() == [3 * 5 * ROUNDS] * 7


def test_evaluations_in_between_do_not_add_up(tmp_path):
    """The model that is measured cost its client its training and one fine-tuning, however often it was measured."""
    made = run("loop", ALGORITHMS["fedavg-ft"](fine_tune_steps=7), tmp_path / "run", Local(steps=2), activity=1.0)
    often = Schedule(rounds=ROUNDS, eval_every=1, checkpoint_every=1)
    folder = RunFolder(tmp_path / "often")
    folder.create({})
    runner = Runner(made.algorithm, LocalClients(made.clients.engine), often, folder, {}, [RunFiles(folder)])
    runner.run()
    table = folder.clients()
    of_round = dict(zip(table.column("round").to_pylist(), table.column("gradients").to_pylist(), strict=True))
    assert of_round == {1: 2 + 7, 2: 4 + 7}
    assert counted(made).tolist() == [4 + 7] * 7


def test_a_resumed_run_counts_on(tmp_path):
    local = Local(lr=0.01, batch_size=BATCH, epochs=1)
    whole = counted(run("stacked", ALGORITHMS["ditto"](), tmp_path / "whole", local))
    torch.manual_seed(0)
    engine = ENGINES["stacked"](Task(MODELS["mlp"]()), federation(), local, seed=5)
    folder, schedule = RunFolder(tmp_path / "cut"), Schedule(ROUNDS, 0.6, eval_every=0, checkpoint_every=1)
    folder.create({})
    first = Runner(ALGORITHMS["ditto"](), LocalClients(engine), schedule, folder, {}, [RunFiles(folder)])
    first.step()
    second = Runner(ALGORITHMS["ditto"](), LocalClients(engine), schedule, folder, {}, [RunFiles(folder)])
    assert second.resume() and second.round == 1
    second.run()
    np.testing.assert_array_equal(counted(second), whole)


def test_after_a_checkpoint_of_an_earlier_version_the_number_is_unknown_not_wrong(tmp_path, monkeypatch):
    local = Local(lr=0.01, batch_size=BATCH, epochs=1)
    torch.manual_seed(0)
    engine = ENGINES["stacked"](Task(MODELS["mlp"]()), federation(), local, seed=5)
    folder, schedule = RunFolder(tmp_path / "old"), Schedule(ROUNDS, 0.6, eval_every=0, checkpoint_every=1)
    folder.create({})
    first = Runner(ALGORITHMS["ditto"](), LocalClients(engine), schedule, folder, {}, [RunFiles(folder)])
    rows = first._rows
    monkeypatch.setattr(first, "_rows", lambda ids: {n: v for n, v in rows(ids).items() if n != "gradients"})
    first.step()
    second = Runner(ALGORITHMS["ditto"](), LocalClients(engine), schedule, folder, {}, [RunFiles(folder)])
    second.resume()
    second.run()
    found = counted(second)
    assert [math.isnan(value) for value in found] == (first.active > 0).tolist()
    assert np.nansum(found) == second.gradients[first.active == 0].sum() > 0
