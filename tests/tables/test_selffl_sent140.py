"""Sent140 of the Self-FL preprint: a cell against a stored value, the warm start, and accuracies made from models."""

import numpy as np
import pytest

from personafl.tables import selffl_sent140
from personafl.tables.table import Found
from tests.tables.cells import run_cell, use_real_data

TOLERANCE = 0.03
"""Of weighted accuracy: a tweet of the test data is a seventieth."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        use_real_data(patch, "selffl-sent140")
        found = Found(quick=True)
        folder = tmp_path_factory.mktemp("warm")
        run = run_cell("selffl-sent140", "warm start", "fedavg", folder, found=found)
        found.runs["warm start"] = {"fedavg": {0: run}}
        yield found


def test_a_cell_is_what_it_was_and_begins_with_the_warm_start(warm, tmp_path):
    [start] = warm.runs["warm start"]["fedavg"].values()
    run = run_cell("selffl-sent140", "sent140", "selffl", tmp_path, found=warm)
    assert run.score["personal_accuracy"] == pytest.approx(0.5862, abs=TOLERANCE)
    assert run.manifest["model"]["weights"] == str(start.path / "models" / "global.safetensors")


def test_accuracies_from_models_are_those_of_the_run_on_test_data(warm):
    [run] = warm.runs["warm start"]["fedavg"].values()
    federation = selffl_sent140.federation(warm, 0)
    assert selffl_sent140.accuracy(run, federation, "test") == pytest.approx(run.score["personal_accuracy"])
    assert 0 <= selffl_sent140.accuracy(run, federation, "train") <= 1


def test_self_fl_takes_the_two_epochs_of_the_others(warm, tmp_path):
    run = run_cell("selffl-sent140", "sent140", "selffl-activity", tmp_path, found=warm)
    table = run.clients()
    active = table.column("activations").to_numpy() > 0
    batches = np.ceil(table.column("n_train").to_numpy() / 10)
    assert (table.column("steps").to_numpy()[active] == 2 * batches[active]).all()


def test_every_searched_value_is_one_that_the_method_can_take():
    found = Found()
    tables = selffl_sent140.config(False, 1, validation=True)
    methods = {name: selffl_sent140.METHODS[name] for name in selffl_sent140.GRID}
    plan = selffl_sent140.planned(tables, methods, found.seeds(1), selffl_sent140.GRID)
    for name, keys in selffl_sent140.GRID.items():
        [values] = keys.values()
        assert len(values) == 3, "the same effort for everybody"
        for point in plan.points(name):
            made = plan.job(name, 0, point).config
            if name != "perfedavg":
                assert made.local.lr * made.algorithm.lam < 2
