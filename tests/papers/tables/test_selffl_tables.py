"""Self-FL's tables and figures on images: a cell of each against a stored value, and what is special about each."""

import numpy as np
import pytest

from personafl.config import parse
from personafl.settings import Schedule
from personafl_papers.tables import TABLES, selffl_activity, selffl_fig1, selffl_fig3, selffl_table1
from personafl_papers.tables.measures import accuracy_on, columns
from personafl_papers.tables.search import Searched
from personafl_papers.tables.selffl_federations import (
    AXES,
    FEDERATIONS,
    METHODS,
    TRIES,
    config,
    main_runs,
    search,
)
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import run_cell, use_real_data

TOLERANCE = 0.02
"""Of weighted accuracy: sums in another order change single predictions of a few hundred."""


@pytest.mark.parametrize(
    ("table", "part", "method", "expected"),
    [
        pytest.param("selffl-letters", "letters", "selffl", 0.381, marks=pytest.mark.slow),
        pytest.param("selffl-activity", "C = 0.02", "selffl-smoothing-0.5", 0.723, marks=pytest.mark.slow),
        ("selffl-letters", "letters", "selffl-activity", 0.278),
    ],
)
def test_a_cell_is_what_it_was(table, part, method, expected, monkeypatch, tmp_path):
    use_real_data(monkeypatch, table)
    run = run_cell(table, part, method, tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(expected, abs=TOLERANCE)


def test_full_runs_have_the_papers_settings():
    for federation, lr, clients in (("mnist", 0.03, 1000), ("letters", 0.01, 200), ("femnist", 0.01, 200)):
        tables = config(federation, quick=False)
        assert tables["rounds"] == 200 and tables["activity"] == 0.1 and tables["splits"] == [0.9, 0.0, 0.1]
        assert tables["local"] == {"lr": lr, "batch_size": 10, "steps": 20}
        assert tables["partition"]["clients"] == clients
    assert METHODS["selffl-activity"]["algorithm"]["smoothing"] == "activity"
    assert config("femnist-3", quick=False)["partition"]["classes_per_client"] == 3


@pytest.mark.parametrize("federation", FEDERATIONS)
def test_trials_are_as_long_as_the_runs_they_serve_and_as_many_for_each_method(federation):
    _, searched = search(federation, Found())
    _, runs = main_runs(federation, Found())
    assert set(searched.axes) == set(METHODS) and searched.budget == TRIES
    for method, axes in searched.axes.items():
        point = {axis.key: axis.start for axis in axes}
        trial, run = searched.plan.trial(method, 0, point).config, runs.job(method, 0).config
        assert trial.schedule.rounds == run.schedule.rounds
        count = int(np.prod([len(axis.values) for axis in axes]))
        assert count >= TRIES, f"{method} can spend its tries"
        for axis in axes:
            for value in (axis.values[0], axis.values[-1]):
                searched.plan.trial(method, 0, {**point, axis.key: value})  # limits are settings that can be run


def test_dittos_search_begins_at_0_and_pfedmes_rates_do_not_overshoot():
    assert AXES["ditto"][1].values[0] == 0
    assert max(AXES["pfedme"][0].values) * 15 < 2
    assert max(AXES["selffl-activity"][1].values) == 40, "the paper's limit"


def jobs(table: str, part: str) -> dict[str, str]:
    """What is run for a part, by method, without seeds."""
    plans = [plan for stage in TABLES[table].stages for of, plan in stage(Found()) if of == part]
    return {m: repr(plan.job(m, 0).config) for plan in plans for m in plan.methods}


def test_figures_and_table_1_share_their_runs(monkeypatch):
    monkeypatch.setattr("personafl_papers.tables.selffl_federations.available", lambda source: True)
    for federation, figure1, figure3 in (
        ("mnist", "selffl-fig1", "selffl-fig3"),
        ("femnist", "selffl-fig1-femnist", "selffl-fig3-femnist"),
    ):
        curves = jobs(figure1, federation)
        assert len(curves) == len(set(curves.values())) == 10
        assert jobs(figure3, federation).items() <= curves.items()
    assert jobs("selffl-table1", "femnist").items() <= jobs("selffl-fig1-femnist", "femnist").items()
    printed = jobs("selffl-fig1-femnist", "femnist, as printed")
    assert printed == jobs("selffl-table1", "femnist, as printed") and "gradient='sum'" in printed["selffl-sum"]
    steps = jobs("selffl-activity", "steps")
    assert steps["selffl-sum"] == jobs("selffl-fig1", "mnist, as printed")["selffl-sum"]
    assert "window=4" in steps["selffl-sum-window-4"]


def test_tables_that_show_the_same_runs_search_the_same_methods():
    """All go on while one has not come inside: a search of fewer methods could end earlier, and choose otherwise."""
    for tables in (("selffl-fig1", "selffl-fig3", "selffl-activity"), ("selffl-fig1-femnist", "selffl-fig3-femnist")):
        for name in tables:
            [(_, searched)] = TABLES[name].stages[0](Found())
            assert set(searched.axes) == set(METHODS), name


def test_a_sentence_of_the_paper_is_counted_once():
    slower = [claim for claim in TABLES["selffl-activity"].claims if "Figure 9" in claim.place or claim.place == "E.5"]
    assert [claim.should_hold for claim in slower] == [True, False, True], "slower than others, and why"


def test_what_a_search_chose_is_run_with_20_and_with_40_steps():
    chosen = {"algorithm.lam": 10.0, "local.lr": 0.3}
    found = Found(searches={"search mnist": {"ditto": Searched("ditto", "", [], chosen)}})
    made = [(m, plan.job(m, 0).config) for _, plan in selffl_fig1.second("mnist", found) for m in plan.methods]
    dittos = {(m, c.algorithm.lam, c.local.lr, c.local.steps) for m, c in made if m.startswith("ditto")}
    assert dittos == {("ditto", 10.0, 0.3, 20), ("ditto-40", 10.0, 0.3, 40), ("ditto", 1.0, 0.03, 20)}, "and as printed"


def test_published_numbers_of_table_1_are_in_the_order_that_the_paper_claims():
    for column in selffl_table1.KEYS:
        values = {row: published[column][0] for row, published in selffl_table1.TABLE_1.items()}
        assert max(values, key=values.get) == "Self-FL"
    assert selffl_table1.TABLE_1["Self-FL"]["worst 10%"] == (37.01, 1.57)


class Curve:
    """A run whose accuracy takes these values."""

    def __init__(self, values):
        self.values = values

    def rounds(self):
        return [{"round": 5 * (i + 1), "personal_accuracy": v} for i, v in enumerate(self.values)]


def test_falls_are_the_mean_fall_in_the_second_half_and_a_rise_is_none():
    found = selffl_fig1.falls(
        {"fedavg": {0: Curve([0.0, 0.9, 0.5, 0.6, 0.4, 0.5]), 1: Curve([0.0, 1.0, 0, 0, 0, 0.9])}}
    )
    assert found["FedAvg"].values == pytest.approx([10.0, 0.0])  # 0.6 → 0.4 → 0.5


def test_quantiles_and_shares_of_figure_3():
    mine, theirs = [np.array([50.0, 60.0, 90.0, 90.0])], [np.array([40.0, 60.0, 95.0, 80.0])]
    found = selffl_fig3._numbers(mine, theirs)
    assert found["mean"].mean == 72.5 and found["median"].mean == 75.0
    assert found[selffl_fig3.SHARE].mean == 25.0  # two better off, one worse off, of four


def test_steps_are_those_of_the_clients_that_were_active(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-activity")
    run = run_cell("selffl-activity", "steps", "selffl-sum", tmp_path)
    cohort = Schedule(activity=0.1).cohort(0, 8, 40)
    counted = run.clients(8).column("activations").to_numpy()[cohort]
    assert (counted >= 1).all() and len(selffl_activity.active(run, 8, "steps")) == len(cohort) == 4
    early = selffl_activity.active(run, 2, "steps")
    assert (early == 20).all(), "without a variance the default number of steps is taken"


def test_a_cell_is_what_it_was_and_columns_are_percentages_of_the_compared_columns(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-letters")
    run = run_cell("selffl-letters", "letters", "fedavg", tmp_path)
    [number] = columns({"fedavg": {0: run}}, {"fedavg": "FedAvg"}, {"all": "accuracy"})["FedAvg"].values()
    assert number.mean == pytest.approx(100 * run.score["personal_accuracy"]) and number.count == 1
    federation = parse({**config("letters", True), "seed": 0}).federation()
    assert accuracy_on(run, federation, "test") == pytest.approx(run.score["personal_accuracy"])
