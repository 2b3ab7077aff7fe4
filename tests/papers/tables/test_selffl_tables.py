"""Self-FL's tables and figures on images: a cell of each against a stored value, and what is special about each."""

import numpy as np
import pytest

from personafl.settings import Schedule
from personafl_papers.tables import TABLES, selffl_activity, selffl_fig1, selffl_fig3, selffl_table1
from personafl_papers.tables.measures import columns
from personafl_papers.tables.selffl_federations import FEDERATIONS, GRID, METHODS, config
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import run_cell, use_real_data

TOLERANCE = 0.02
"""Of weighted accuracy: sums in another order change single predictions of a few hundred."""


@pytest.mark.parametrize(
    ("table", "part", "method", "expected"),
    [
        pytest.param("selffl-table1", "letters", "selffl", 0.381, marks=pytest.mark.slow),
        pytest.param("selffl-fig1", "letters", "perfedavg-40", 0.475, marks=pytest.mark.slow),
        ("selffl-fig3", "letters", "selffl-activity", 0.278),
        pytest.param("selffl-activity", "C = 0.02", "selffl-smoothing-0.5", 0.723, marks=pytest.mark.slow),
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
    assert {len(values) for keys in GRID.values() for values in keys.values()} == {3}, "the same effort for everybody"
    assert set(FEDERATIONS) == {"mnist", "letters", "femnist"}


def jobs(table: str, part: str) -> dict[str, str]:
    """What is run for a part, by method, without seeds."""
    found = Found()
    plans = [plan for stage in TABLES[table].stages for of, plan in stage(found) if of == part]
    return {m: repr(plan.job(m, 0).config) for plan in plans for m in plan.methods}


@pytest.mark.parametrize("part", ["mnist", "letters"])
def test_figure_3_and_table_1_take_the_runs_of_figure_1(part):
    curves = jobs("selffl-fig1", part)
    assert len(curves) == (11 if part == "mnist" else 10)  # without a search, Ditto has λ = 1 twice
    assert len(set(curves.values())) == 10
    assert jobs("selffl-fig3", part).items() <= curves.items()
    if part == "letters":
        assert jobs("selffl-table1", part).items() <= curves.items()
    else:
        assert jobs("selffl-activity", "steps").items() <= curves.items()


def test_what_a_search_chose_is_run_with_20_and_with_40_steps():
    from personafl.study.launch import Search

    found = Found(searches={"search mnist": {"ditto": Search("ditto", "", [], {"algorithm.lam": 10.0})}})
    for part, plan in selffl_fig1.second(found):
        for method in {"ditto", "ditto-40"} & {*plan.methods}:
            made = plan.job(method, 0).config
            assert made.algorithm.lam == (10.0 if part == "mnist" else 1.0)
            assert made.local.steps == (40 if method == "ditto-40" else 20)


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
    run = run_cell("selffl-activity", "steps", "selffl-activity", tmp_path)
    cohort = Schedule(activity=0.1).cohort(0, 8, 40)
    counted = run.clients(8).column("activations").to_numpy()[cohort]
    assert (counted >= 1).all() and len(selffl_activity.active(run, 8, "steps")) == len(cohort) == 4
    early = selffl_activity.active(run, 2, "steps")
    assert (early == 20).all(), "without a variance the default number of steps is taken"


def test_a_cell_is_what_it_was_and_columns_are_percentages_of_the_compared_columns(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-table1")
    run = run_cell("selffl-table1", "letters, η searched", "fedavg", tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(0.386, abs=TOLERANCE)
    [number] = columns({"fedavg": {0: run}}, {"fedavg": "FedAvg"}, {"all": "accuracy"})["FedAvg"].values()
    assert number.mean == pytest.approx(100 * run.score["personal_accuracy"]) and number.count == 1
