"""Figure 2 of Self-FL: a cell of each half against a stored value, and what the ablation switches off."""

import pytest

from personafl_papers.tables import selffl_fig2
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import run_cell, use_real_data

TOLERANCE = 0.015
"""Of weighted accuracy: sums in another order change single predictions of two hundred."""


@pytest.mark.slow
def test_a_cell_of_cifar10_is_what_it_was(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-fig2")
    run = run_cell("selffl-fig2", "cifar10", "fedavg", tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(0.2514, abs=TOLERANCE)


@pytest.mark.slow
def test_a_cell_of_the_ablation_is_what_it_was(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-table1")  # it has the letters that the ablation needs
    run = run_cell("selffl-fig2", "ablation, letters", "selffl-smoothing-1-init", tmp_path)
    assert run.score["global_accuracy"] == pytest.approx(0.3788, abs=TOLERANCE)


def test_cifar10_has_the_papers_settings():
    tables = selffl_fig2.cifar(quick=False)
    assert tables["local"]["lr"] == 0.01 and tables["local"]["steps"] == 40
    assert tables["partition"] == {"name": "pfedme"} and tables["activity"] * 20 == 5
    assert tables["splits"][1] == 0.0 and selffl_fig2.cifar(quick=False, validation=True)["splits"][2] == 0.25


def test_each_row_of_the_ablation_has_all_components_or_one(monkeypatch):
    monkeypatch.setattr(selffl_fig2, "available", lambda source: source == "letters")
    [plan] = [plan for part, plan in selffl_fig2.second(Found(quick=True)) if part == "ablation, letters"]
    assert set(plan.methods) == set(selffl_fig2.ABLATION) and len(plan.methods) == 8
    for method, row in selffl_fig2.ABLATION.items():
        made = plan.job(method, 0).config.algorithm
        used = {name for name in ("init", "steps", "weights") if getattr(made, f"use_{name}")}
        expected = {"all three": {"init", "steps", "weights"}, "start point only": {"init"}}
        expected |= {"steps only": {"steps"}, "weights only": {"weights"}}
        assert used == expected[row.split(": ")[1]]
        assert made.smoothing == (1.0 if "smoothing 1" in row else "activity")
