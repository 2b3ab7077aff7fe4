"""`auto`: remembered, predicted from shapes, or timed within a budget."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.engines import auto, make_engine
from personafl.engines.auto import Choice, choose
from personafl.engines.candidates import RunSteps
from personafl.engines.prediction import Shapes
from personafl.engines.trials import MOST, SHARE, Clock
from personafl.kernels.task import Task
from personafl.kernels.work_size import pass_size
from personafl.settings import EngineSettings, Local
from personafl.storage.cache import cache_dir, note

TWO_CORES = [("loop", 1), ("stacked", 1), ("threaded", 2), ("stacked", 2), ("loop", 2)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("personafl.engines.candidates.cores", lambda: 2)


def federation(shape, clients=6, samples=8, seed=0):
    rng = np.random.default_rng(seed)

    def split(count):
        return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, 3, count)

    return pf.Federation.from_clients({f"c{k}": {"train": split(samples), "test": split(2)} for k in range(clients)})


def small(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    return RunSteps(EngineSettings(**options), Task(model), federation((5,)), Local(steps=4, batch_size=4), 0, 6, 50)


def wide(rounds=50, cohort=6):
    """A recurrent layer of which no prediction says whether it is faster stacked."""
    torch.manual_seed(0)
    model = Sequences(nn.GRU(4, 16, batch_first=True), nn.Linear(16, 3))
    data = federation((3, 4))
    return RunSteps(EngineSettings(), Task(model), data, Local(steps=4, batch_size=4), 0, cohort, rounds)


class Sequences(nn.Module):
    def __init__(self, layer, head):
        super().__init__()
        self.layer, self.head = layer, head

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


# --- shapes


def test_products_and_calls_of_layers_are_counted():
    models = {
        nn.Linear(5, 4): ((1, 5), 20, 1),
        nn.Linear(6, 2): ((1, 7, 6), 7 * 12, 1),
        nn.Conv1d(9, 8, 5, padding=2): ((1, 9, 16), 16 * 8 * 9 * 5, 1),
        nn.Conv2d(4, 8, 3, stride=2, groups=2): ((1, 4, 9, 9), 16 * 8 * 2 * 9, 1),
        nn.ConvTranspose2d(4, 2, 3): ((1, 4, 5, 5), 25 * 4 * 2 * 9, 1),
        nn.GRU(4, 6, batch_first=True): ((1, 7, 4), 7 * 3 * 6 * (4 + 6), 1),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.LayerNorm(4)): ((1, 5), 20, 3),
    }
    for model, (shape, products, calls) in models.items():
        found = pass_size(model, lambda model=model, shape=shape: model(torch.zeros(shape)))
        assert (found.products, found.calls) == (products, calls), model


def left(shapes, most=2):
    return [name for name in TWO_CORES if shapes.untimed(*name, most) is None]


def test_many_clients_of_a_small_model_are_stacked_without_a_trial():
    assert left(Shapes(84_000, 3, 100, 10_000, True)) == [("stacked", 1)]


def test_what_shapes_cannot_separate_is_timed():
    few = Shapes(534e6, 9, 3, 100, True)  # a client's step has 27 ms of arithmetic, but one thread would get one client
    assert left(few) == [("loop", 1), ("stacked", 1), ("threaded", 2), ("stacked", 2)]
    logistic = Shapes(470_000, 1, 100, 10_000, True)  # the loop is far behind, but threads may do good
    assert left(logistic) == [("stacked", 1), ("threaded", 2), ("stacked", 2)]


def test_threads_share_many_clients_of_long_steps_without_a_trial():
    sensors = Shapes(534e6, 9, 30, 100, True)
    assert left(sensors) == [("threaded", 2)]
    assert left(sensors, most=1)[:2] == [("loop", 1), ("stacked", 1)], "one core has to try"


def test_nothing_is_predicted_of_a_model_that_may_not_stack():
    assert left(Shapes(534e6, 9, 30, 100, None)) == TWO_CORES
    assert left(Shapes(84_000, 3, 100, 100, None)) == [("loop", 1), ("stacked", 1)]


def test_one_client_at_a_time_is_the_loop():
    assert left(Shapes(84_000, 3, 1, 10_000, True)) == [("loop", 1)]
    assert left(Shapes(534e6, 9, 30, 1, True)) == [("loop", 1), ("loop", 2)], "no memory for two"


def test_without_a_trial_cores_share_the_clients():
    shapes = Shapes(534e6, 9, 30, 100, True)
    assert shapes.best(left(shapes)) == ("threaded", 2)
    assert shapes.best([("loop", 1), ("stacked", 1)]) == ("stacked", 1)
    assert Shapes(534e6, 9, 30, 100, None).best(TWO_CORES) == ("loop", 1)


# --- choosing


class Machine:
    """A clock that stands still but for what the test makes steps cost: seconds by engine, of one client."""

    def __init__(self, monkeypatch, busy=1.0, **costs):
        self.processor = self.wall = 0.0
        self.steps = 0
        machine, candidate = self, RunSteps.candidate

        def counted(run, name, threads):
            made = candidate(run, name, threads)

            def steps(clients, steps, check):
                for _ in range(steps):
                    check()
                    machine.steps += clients
                    machine.processor += costs[name] * clients
                    machine.wall += costs[name] * clients * busy / threads

            made.run = steps
            return made

        monkeypatch.setattr(RunSteps, "candidate", counted)

    @property
    def clock(self):
        return Clock(lambda: self.wall, lambda: self.processor)


def test_a_small_model_is_chosen_by_shapes(monkeypatch):
    machine = Machine(monkeypatch)
    found = choose(small(), machine.clock)
    assert (found.engine, found.threads, machine.steps) == ("stacked", 1, 0)
    assert found.reason == (
        "stacked with 1 threads: by shapes; loop with 1 threads: predicted to take 3 times as long as stacked; "
        "threaded with 2 threads: a step is too short to be shared among threads; "
        "stacked with 2 threads: a step is too short to be shared among threads; "
        "loop with 2 threads: a step is too short to be shared among threads"
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_number_of_threads_that_is_asked_for_is_taken(monkeypatch, threads):
    machine = Machine(monkeypatch, loop=0.05, stacked=0.02, threaded=0.05)
    found = choose(small(threads=threads), machine.clock)
    assert (found.engine, found.threads) == ("stacked", threads)


@pytest.mark.parametrize(("loop", "stacked", "engine"), [(0.02, 0.05, "loop"), (0.05, 0.02, "stacked")])
def test_given_these_times_this_is_chosen(monkeypatch, loop, stacked, engine):
    machine = Machine(monkeypatch, loop=loop, stacked=stacked)
    found = choose(wide(cohort=2), machine.clock)
    assert (found.engine, found.threads) == (engine, 1)
    assert 0 < machine.processor <= SHARE * 50 * 2 * 4 * min(loop, stacked) + loop + stacked
    assert "clearly behind" in found.reason and "too short to be shared" in found.reason


@pytest.mark.parametrize("each", [1e-3, 0.02, 0.5])
@pytest.mark.parametrize("rounds", [5, 50, 50_000])
def test_the_budget_holds(monkeypatch, rounds, each):
    """At most 5% of the run, and 2 seconds where a step takes 20 ms."""
    machine = Machine(monkeypatch, loop=each, stacked=1.02 * each)
    choose(wide(rounds, cohort=2), machine.clock)
    assert machine.processor <= SHARE * rounds * 2 * 4 * each + 1e-9
    assert machine.processor <= MOST or each > 0.02


def test_a_run_of_one_round_does_not_wait_for_a_contest(monkeypatch):
    machine = Machine(monkeypatch)
    found = choose(wide(rounds=1), machine.clock)
    assert (found.engine, machine.steps) == ("loop", 0)
    assert found.reason.startswith("loop with 1 threads: by shapes, a run of 24 steps is too short to try; ")
    assert not list(cache_dir().glob("notes/*"))


def test_a_choice_is_remembered_for_this_model_data_and_machine(monkeypatch):
    machine = Machine(monkeypatch, loop=0.05, stacked=0.02)
    first = choose(wide(cohort=2), machine.clock)
    steps = machine.steps
    again = choose(wide(cohort=2), machine.clock)
    assert machine.steps == steps and (again.engine, again.threads) == (first.engine, first.threads)
    assert again.reason == f"as in an earlier run: {first.reason}"
    choose(wide(cohort=3), machine.clock)
    assert machine.steps > steps, "another cohort"


def test_what_was_chosen_in_haste_is_chosen_again_for_a_longer_run(monkeypatch):
    machine = Machine(monkeypatch, loop=0.05, stacked=0.05)
    run = wide(rounds=18, cohort=3)
    found = choose(run, machine.clock)
    kept = note("engine", auto._key(run))
    assert kept == {"engine": found.engine, "threads": 1, "reason": found.reason, "steps": run.total}
    steps = machine.steps
    choose(wide(rounds=30, cohort=3), machine.clock)
    assert machine.steps == steps
    choose(wide(rounds=10_000, cohort=3), machine.clock)
    assert machine.steps > steps


def test_what_a_busy_machine_shows_is_not_remembered(monkeypatch):
    machine = Machine(monkeypatch, busy=3.0, loop=0.05, stacked=0.02)
    choose(wide(cohort=2), machine.clock)
    assert not list(cache_dir().glob("notes/*"))


@pytest.mark.parametrize("damage", ["", "{", "[]", "7", '{"engine": "loop"}', '{"engine": "gpu", "threads": 1}', None])
def test_a_damaged_note_is_ignored(monkeypatch, damage):
    machine = Machine(monkeypatch, loop=0.05, stacked=0.02)
    first = choose(wide(cohort=2), machine.clock)
    (file,) = cache_dir().glob("notes/*")
    if damage is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_text(damage)
    steps = machine.steps
    again = choose(wide(cohort=2), machine.clock)
    assert machine.steps > steps and again.engine == first.engine
    if damage is not None:
        assert json.loads(file.read_text())["engine"] == first.engine, "it is written anew"


def test_a_model_whose_code_has_changed_is_not_stacked_from_memory(monkeypatch):
    machine = Machine(monkeypatch, loop=0.05, stacked=0.02)
    assert choose(wide(cohort=2), machine.clock).engine == "stacked"

    def mixes(self, x):
        if float(x.sum()) > 1e9:
            return self.head(x[:, 0])
        return self.head(self.layer(x)[0][:, -1]) + x.mean()

    monkeypatch.setattr(Sequences, "forward", mixes)
    assert choose(wide(cohort=2), machine.clock).engine == "loop"


def test_run_toml_says_why(tmp_path):
    federation = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=5, alpha=0.5))
    run = pf.train(federation, nn.Linear(64, 10), rounds=1, engine="auto", out=tmp_path / "run", progress=False)
    resolved = run.manifest["resolved"]
    assert resolved["engine_reason"].startswith(f"{resolved['engine']} with {resolved['threads']} threads: by shapes")


def test_what_is_chosen_computes_what_it_computes_when_asked_for():
    run = small()
    engine, choice = make_engine(EngineSettings(), run.task, run.federation, run.local, 0, 6, 50)
    assert isinstance(choice, Choice) and engine.name == choice.engine == "stacked"
    assert engine.threads == choice.threads == 1
