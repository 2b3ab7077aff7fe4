"""Figure 2 of Self-FL: a cell of each half against a stored value, and what the ablation switches off."""

import numpy as np
import pytest

from personafl.federation.splits import split_samples
from personafl_papers.tables import fedamp_tables, selffl_fig2, selffl_sent140
from personafl_papers.tables.search import Searched
from personafl_papers.tables.selffl_federations import config
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import run_cell, use_real_data

TOLERANCE = 0.015
"""Of weighted accuracy: sums in another order change single predictions of two hundred."""


@pytest.mark.slow
def test_a_cell_of_cifar10_is_what_it_was(monkeypatch, tmp_path):
    use_real_data(monkeypatch, "selffl-fig2")
    run = run_cell("selffl-fig2", "cifar10", "fedavg", tmp_path)
    assert run.score["personal_accuracy"] == pytest.approx(0.2514, abs=TOLERANCE)


def test_cifar10_has_the_papers_settings():
    tables = selffl_fig2.cifar(quick=False)
    assert tables["local"]["lr"] == 0.01 and tables["local"]["steps"] == 40
    assert tables["partition"] == {"name": "pfedme"} and tables["activity"] * 20 == 5
    assert tables["splits"] == [0.75, 0.0, 0.25]


@pytest.mark.parametrize(
    ("configs", "sizes"),
    [
        ([selffl_fig2.cifar(False, validation) for validation in (False, True)], range(300, 1300)),
        ([config("mnist", False, validation) for validation in (False, True)], range(1, 1000)),
        ([fedamp_tables.config("mnist", "iid", False, validation) for validation in (False, True)], range(1, 1000)),
        ([selffl_sent140.config(False, 1, validation) for validation in (False, True)], range(1, 1000)),
    ],
    ids=["cifar10", "federations", "fedamp", "sent140"],
)
def test_no_search_validates_on_test_data_of_the_runs_whatever_a_clients_size(configs, sizes):
    """A client's samples are in one order, those for test are its last."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    ids = [str(size) for size in sizes]
    of_runs, of_search = (split_samples(ids, owner, one["splits"], 0, np.arange(len(owner)))[1] for one in configs)
    assert np.all(of_search[:, 2] <= of_runs[:, 2]), "where test data begins"


def test_trials_on_cifar10_are_as_long_as_the_runs_and_a_warm_start_is_of_the_rounds_that_all_have():
    [(_, searched), _] = selffl_fig2.first(Found())
    runs = dict(selffl_fig2.second(Found()))["cifar10"]
    assert set(searched.axes) == set(runs.methods) == set(selffl_fig2.CIFAR_ROWS)
    for method, axes in searched.axes.items():
        trial = searched.plan.trial(method, 0, {axis.key: axis.start for axis in axes}).config
        run = runs.job(method, 0).config
        assert trial.schedule.rounds == run.schedule.rounds == selffl_fig2.ROUNDS
        assert (getattr(run.algorithm, "warm_rounds", 0) > 0) == ("warm" in method)


def test_each_row_of_the_ablation_has_all_components_or_one_and_what_was_chosen_for_all():
    chosen = {"local.lr": 0.3, "algorithm.l_max": 20}
    found = Found(quick=True)
    found.searches["search femnist"] = {"selffl": Searched("selffl", "", [], chosen)}
    plan = dict(selffl_fig2.second(found))["ablation, femnist"]
    assert set(plan.methods) == set(selffl_fig2.ABLATION) and len(plan.methods) == 8
    for method, row in selffl_fig2.ABLATION.items():
        config = plan.job(method, 0).config
        made = config.algorithm
        used = {name for name in ("init", "steps", "weights") if getattr(made, f"use_{name}")}
        expected = {"all three": {"init", "steps", "weights"}, "start point only": {"init"}}
        expected |= {"steps only": {"steps"}, "weights only": {"weights"}}
        assert used == expected[row.split(": ")[1]]
        assert made.smoothing == (1.0 if "smoothing 1" in row else "activity")
        assert (config.local.lr, made.l_max) == ((0.3, 20) if "smoothing 1" in row else (0.01, 40))
