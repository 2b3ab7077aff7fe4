"""Wake-word tables of Self-FL: a cell against a stored value, what is run, and where numbers go."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from personafl_papers.tables import selffl_wakeword, wakeword_study
from personafl_papers.tables.false_alarms import heard
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import first_stage, run_cell

TOLERANCE = 1e-4
"""Of the mean loss, which sums in another order change by far less; so short a training hardly moves accuracy."""


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    with first_stage("selffl-wakeword", "pooled model", "pooled", tmp_path_factory.mktemp("first")) as found:
        yield found


@pytest.mark.slow
def test_a_cell_is_what_it_was(pooled, tmp_path):
    run = run_cell("selffl-wakeword", "five clients", "selffl", tmp_path, found=pooled)
    assert run.score["global_loss"] == pytest.approx(0.69251, abs=TOLERANCE)
    assert run.manifest["model"]["weights"].endswith("global.safetensors")


@pytest.mark.slow
def test_with_one_or_four_clients_for_a_device_type_the_test_data_is_the_same(pooled):
    one, four = (selffl_wakeword.STUDY.federation(True, clients, 0) for clients in (1, 4))
    assert len(one) == 5 and len(four) == 20
    for device in "ABCDE":
        for which in (one, four):
            rows = [i for i, group in enumerate(which.groups) if group == device]
            states = which.truth["test_states"][rows].sum(0)
            sums = sorted(float(x.sum()) for i in rows for x in which.client(which.ids[i])["test"][0])
            if which is one:
                expected = states, sums
        assert (states == expected[0]).all() and sums == pytest.approx(expected[1], rel=1e-5)


def test_scores_are_those_of_each_device_type_in_each_of_its_states(pooled):
    [run] = pooled.runs["pooled model"]["pooled"].values()
    federation = selffl_wakeword.STUDY.federation(True, 1, 0)
    found = heard(run, federation, "global")
    assert {place for place in found if place[1] == "alarm"} == {(device, "alarm") for device in "BDE"}
    assert sum(len(labels) for _, labels in found.values()) == federation.sizes("test").sum()
    assert len({tuple(labels) for _, labels in found.values()}) == 1, "the same clips everywhere, in one order"


def test_numbers_go_to_their_device_type_and_state():
    values = [
        {("A", "normal"): 0.8, ("B", "normal"): 1.0, ("B", "alarm"): 2.0},
        {("A", "normal"): 0.6, ("B", "normal"): 1.2},
    ]
    found = wakeword_study.by_device(values, "normal")
    assert found["A"].values == (0.8, 0.6) and found["mean"].values == pytest.approx((0.9, 0.9))
    assert set(found) == {"A", "B", "mean"}


def test_a_device_type_without_false_alarms_to_compare_with_is_left_out_of_the_mean():
    found = wakeword_study.by_device([{("A", "normal"): 0.8, ("B", "normal"): np.nan}], "normal")
    assert found["mean"].values == (0.8,) and found["B"].count == 0


def test_published_numbers_are_in_the_order_that_the_paper_claims():
    means = {row: np.mean([*columns.values()]) for row, columns in selffl_wakeword.GLOBAL_NORMAL.items()}
    assert min(means, key=means.get) == "Self-FL" and means["FedAvg-w"] > 8
    personal = {row: np.mean([*columns.values()]) for row, columns in selffl_wakeword.PERSONAL_NORMAL.items()}
    assert min(personal, key=personal.get) == "Self-FL"
    sampled = selffl_wakeword.TABLE.parts["sampled clients, normal"].published
    often, seldom = (np.mean([*sampled[row].values()]) for row in (selffl_wakeword.CLIENT, selffl_wakeword.RARE))
    assert often < seldom
    alarm = selffl_wakeword.TABLE.parts["sampled clients, alarm"].published
    assert all(set(columns) == {"B", "D", "E"} for columns in alarm.values())


def test_the_pooled_model_stops_at_the_plateau_of_its_validation_accuracy_and_there_are_ten_seeds():
    [(_, searched)] = selffl_wakeword.STUDY.pooled_search(Found())
    [(_, plan)] = selffl_wakeword.STUDY.pooled(Found())
    for made in (plan.job("pooled", 0).config, searched.plan.trial("pooled", 0, {"local.lr": 0.1}).config):
        assert made.schedule.patience == 5 and made.schedule.eval_every == 100 and made.schedule.rounds == 6000
        assert made.data.validation == 0.15 and made.local.steps == 1
    assert len(plan.seeds) == 10


def test_every_method_has_the_same_search_and_begins_with_the_pooled_model_of_its_seed():
    pooled = {seed: SimpleNamespace(path=Path(name)) for seed, name in enumerate(("zero", "one"))}
    found = Found(runs={"pooled model": {"pooled": pooled}})
    [(part, plan)] = selffl_wakeword.STUDY.search(found)
    assert part == "search five clients" and plan.plan.seeds == (0,) and plan.budget == wakeword_study.TRIES
    assert set(plan.axes) == set(wakeword_study.METHODS)
    for part, plan in selffl_wakeword.STUDY.rest(found):
        [seed] = plan.seeds
        for method in plan.methods:
            made = plan.job(method, seed).config
            assert made.weights == str(Path(("zero", "one")[seed]) / "models" / "global.safetensors")
            assert made.data.clients == (4 if part == "sampled clients" else 1)
