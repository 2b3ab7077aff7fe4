"""Clipping and noise at the sites."""

import json

import pytest
import torch

from personafl.errors import ConfigError
from personafl.training.accounting import epsilon
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, same, server_state

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")


def test_clipping_is_done_at_the_sites(tmp_path):
    data, privacy = federation(), {"clip": 0.01}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, "ditto", privacy=privacy)
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", data, privacy=privacy)))


def test_noise_follows_from_nothing_that_could_be_had_again(tmp_path):
    """The same run twice with the same sites: another model each time."""
    grid, models = MemoryGrid(sites_of(tmp_path / "sites", federation())), []
    for name in ("one", "two"):
        run = flower(tmp_path / name, grid, "ditto", privacy={"clip": 1.0, "noise": 2.0})
        models.append(server_state(run)["server.theta"])
    assert not torch.isclose(*models).any()
    assert not list((tmp_path / "sites").glob("*/secret"))


def test_noise_at_the_server_is_fresh_and_sites_do_not_count_it_as_theirs(tmp_path):
    """Two runs differ by noise on the mean; a ledger has answers without noise; cohorts are not secret."""
    grid, models = MemoryGrid(sites_of(tmp_path / "sites", federation())), []
    for name in ("one", "two"):
        run = flower(tmp_path / name, grid, "ditto", privacy={"clip": 1.0, "noise": 2.0, "noise_at": "server"})
        models.append(server_state(run)["server.theta"])
        table = run.clients()
        assert max(table.column("epsilon").to_pylist()) <= epsilon(
            2.0, 1e-5, max(table.column("activations").to_pylist())
        )
    assert not torch.isclose(*models).any()
    lines = [json.loads(line) for path in (tmp_path / "sites").glob("*/ledger.jsonl") for line in path.open()]
    assert lines and all(line["noise"] == 0 and line["clip"] == 1.0 for line in lines if line["what"] == "update")


def test_a_site_that_wants_noise_wants_its_own(tmp_path):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data, least_noise=0.5))
    with pytest.raises(Exception, match=r"at least 0.5 that it adds itself, this run has 0, and noise at the server"):
        flower(tmp_path / "run", grid, "ditto", privacy={"clip": 1.0, "noise": 2.0, "noise_at": "server"})


def test_noise_by_sample_is_refused(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    with pytest.raises(ConfigError, match=r'privacy.unit = "sample" is for simulations'):
        flower(tmp_path / "run", grid, "ditto", privacy={"clip": 1.0, "noise": 2.0, "unit": "sample"})
