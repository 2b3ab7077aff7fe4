"""Choosing an engine costs little: what is behind is stopped, and all trials together stay within their budget."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import personafl as pf
from personafl.algorithms.base import Sent
from personafl.algorithms.fedavg import FineTune
from personafl.engines import Work, make_engine
from personafl.engines.candidates import ENGINES, RunSteps, Trial
from personafl.engines.trials import BEHIND, FEW_STEPS, MOST, REPEATS, SHARE, Candidate, Clock, Stopped, Trials, Unfit
from personafl.kernels.task import Task
from personafl.settings import EngineSettings, Local


@pytest.fixture(scope="module", autouse=True)
def whole_trials(short_trials):
    """As users have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("personafl.engines.trials.REPEATS", REPEATS)
        yield


class Machine:
    """A machine on which a step of k clients takes `fixed + each k` seconds of the candidate's `cores` cores."""

    def __init__(self):
        self.wall = self.processor = 0.0
        self.steps: dict[str, int] = {}

    def clock(self):
        return Clock(lambda: self.wall, lambda: self.processor)

    def work(self, name, fixed, each, clients, cores=1):
        self.wall += fixed + each * clients
        self.processor += cores * (fixed + each * clients)
        self.steps[name] = self.steps.get(name, 0) + clients

    def candidate(self, name, fixed, each, cores=1):
        def run(clients, steps, check):
            # The loop asks before each client's step, the others before a step of all.
            for count in [1] * clients * steps if name == "loop" else [clients] * steps:
                check()
                self.work(name, fixed, each, count, cores)

        return Candidate(name, cores, run)

    def trials(self, candidates, clients, run_steps):
        return Trials([self.candidate(*one) for one in candidates], clients, run_steps, self.clock())


def test_what_is_clearly_behind_is_stopped_and_said_to_be():
    """The sensor model of docs/performance.md: 30 clients × 12 steps, of which a step takes 7.5 or 18.6 ms."""
    machine = Machine()
    found = machine.trials([("loop", 0, 0.0075), ("stacked", 0.002, 0.0186), ("pair", 0.05, 0.02, 2)], 30, 5 * 30 * 12)
    assert found.fastest().name == "loop"
    assert machine.processor <= found.budget < MOST < 270 * 0.0186, (
        "270 steps, that is three times three of 30 clients, were too many"
    )
    assert machine.steps["stacked"] <= 20 and machine.steps["pair"] <= 20
    reason = found.reason()
    assert re.search(r"stacked with 1 threads: \d clients?, 1 step in [\d.]+ ms, clearly behind; ", reason)
    assert reason.endswith(f"; {machine.processor:.2f} s of processor time, of {found.budget:.2f} s at most")


def test_where_steps_are_short_all_are_seen_with_all_clients():
    machine = Machine()
    found = machine.trials([("loop", 0, 3e-4), ("stacked", 1e-3, 2e-5), ("pair", 1.1e-3, 1e-5, 2)], 32, 10**6)
    assert found.fastest().name == "pair"
    assert found.reason().startswith("loop with 1 threads: 32 clients, 3 steps in 28.8 ms; stacked with 1 threads: 32 ")
    assert machine.processor < 0.5


def test_a_model_that_is_too_slow_for_any_trial_gets_the_first():
    machine = Machine()
    found = machine.trials([("loop", 0, 30.0), ("stacked", 0, 1.0)], 30, 30)
    assert found.fastest().name == "loop" and machine.steps == {"loop": 1}
    assert found.reason() == (
        "loop with 1 threads: 1 client, 1 step in 30000.0 ms; "
        "stacked with 1 threads: not tried, it might take too long; 30.00 s of processor time, of 45.00 s at most"
    )
    assert not found.whole


def test_what_takes_long_to_prepare_waits_for_a_run_that_is_worth_it():
    for run_steps, name in ((100, "loop"), (100_000, "stacked")):
        machine = Machine()
        found = machine.trials([("loop", 0, 0.01), ("stacked", 0, 0.001)], 30, run_steps)
        found.candidates[1].prepare = lambda machine=machine: machine.work("import", 2.0, 0, 0)
        found.candidates[1].preparation = lambda gradient: 2.0
        assert found.fastest().name == name
        assert (
            ("not tried, it might take too long" in found.reason())
            == (name == "loop")
            == ("import" not in machine.steps)
        )
        assert [time for time in found.candidates[1].seen.values() if time > 1] == [], "the preparation is not timed"


def test_who_cannot_do_the_work_is_left_out():
    def refuse():
        raise Unfit("the model does not stack: it has a loop")

    machine = Machine()
    found = machine.trials([("loop", 0, 0.01), ("stacked", 0, 0.001)], 30, 0)
    found.candidates[1].prepare = refuse
    assert found.fastest().name == "loop" and "stacked" not in machine.steps
    assert "stacked with 1 threads: the model does not stack: it has a loop; " in found.reason()


def test_a_trial_is_stopped_in_its_middle():
    """A candidate that was not much behind, and is when several steps are taken."""
    machine = Machine()
    found = machine.trials([("loop", 0, 0.001), ("late", 0, 0.00125)], 30, 10**5)

    def run(clients, steps, check):
        for _ in range(clients * steps):
            check()
            machine.work("late" if steps == 1 else "slow", 0, 0.00125 if steps == 1 else 0.1, 1)

    found.candidates[1].run = run
    assert found.fastest().name == "loop" and machine.steps["slow"] == 2
    assert "late with 1 threads: 30 clients, 1 step in 37.5 ms, clearly behind; " in found.reason()


costs, short = st.floats(1e-5, 3.0), st.floats(1e-6, 1e-3)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(costs, costs, st.integers(1, 4)), min_size=1, max_size=5), st.integers(1, 32),
    st.floats(0, 1e6),
)  # fmt: skip
def test_all_trials_stay_within_the_budget_but_for_first_steps(given, clients, run_steps):
    """A first step cannot be foreseen, and is the least that there is to see; until then, the first tells the cost."""
    machine = Machine()
    named = [(f"e{i}", *one) for i, one in enumerate(given)]
    found = machine.trials(named, clients, run_steps)
    chosen = found.fastest()
    first = [(fixed + each) * cores for _, fixed, each, cores in named]
    cost = first[0]
    budget = min(SHARE * run_steps * cost, max(MOST, FEW_STEPS * cost)) if run_steps else MOST
    assert machine.processor <= budget + sum(
        cost for cost, one in zip(first, found.candidates, strict=True) if one.seen
    )
    assert chosen in found.candidates and not chosen.stopped


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(short, short), min_size=1, max_size=5), st.integers(1, 32))
def test_with_time_enough_the_choice_is_right(given, clients):
    machine = Machine()
    found = machine.trials([(f"e{i}", *one) for i, one in enumerate(given)], clients, 1e9)
    chosen = given[found.candidates.index(found.fastest())]
    assert chosen[0] + chosen[1] * clients <= BEHIND * min(fixed + each * clients for fixed, each in given)


# --- with real engines


@pytest.fixture(scope="module")
def sensors():
    """Windows of nine sensors, and a convolution in time: layers that stack by vmap only."""
    rng = np.random.default_rng(0)

    def split(count):
        return rng.normal(size=(count, 9, 32)).astype(np.float32), rng.integers(0, 6, count)

    data = {f"c{k:02d}": {"train": split(24), "test": split(2)} for k in range(30)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(9, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 6))
    return Task(model), pf.Federation.from_clients(data, classes=6)


LOCAL = Local(lr=0.1, steps=12, batch_size=20)


def test_real_engines_stop_where_the_clock_says_so(sensors):
    """Every engine asks before each step, and takes no more of them than it may."""
    machine = Machine()
    run = RunSteps(EngineSettings(), *sensors, LOCAL, 0, cohort=30, rounds=50)
    each = {"loop": 0.0075, "stacked": 0.0186, "threaded": 0.02}

    def counted(candidate, run):
        def counting(clients, steps, check):
            def before_step():
                check()
                count = (
                    1
                    if candidate.name == "loop"
                    else clients / (candidate.threads if candidate.name == "threaded" else 1)
                )
                machine.work(str(candidate), 0, each[candidate.name] * candidate.threads, count)

            run(clients, steps, before_step)

        return counting

    tried = [run.candidate(*name) for name in run.names]
    for candidate in tried:
        candidate.run = counted(candidate, candidate.run)
    asked = Trials(tried, len(run.clients), run.total, machine.clock(), estimate=0.0075)
    assert run.total == 50 * 30 * 12
    assert str(asked.fastest()) == "loop with 1 threads"
    assert set(machine.steps) == {str(candidate) for candidate in tried}
    assert max(machine.steps.values()) < 40 and machine.processor < asked.budget


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_was_stopped_computes_as_before(sensors, name):
    task, federation = sensors
    engine, _ = make_engine(EngineSettings(name, threads=2), task, federation, LOCAL, 0)
    ids, sent = np.arange(6), Sent({"theta": task.theta0})
    expected = engine.run(Work(FineTune(4), 1, "train", ids, {}, sent)).own["theta"]
    calls = []

    def stop_later():
        calls.append(1)
        if len(calls) > 2:
            raise Stopped

    with pytest.raises(Stopped):
        engine.run(Work(Trial(4, check=stop_later), 1, "train", ids, {}, sent))
    again = engine.run(Work(FineTune(4), 1, "train", ids, {}, sent)).own["theta"]
    assert torch.equal(again, expected)
