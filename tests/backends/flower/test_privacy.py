"""Clipping and noise at the sites."""

import pytest
import torch

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
