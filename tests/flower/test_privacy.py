"""Clipping and noise at the sites."""

import json

import numpy as np
import pytest
import torch

from tests.flower.grid import MemoryGrid, sites_of
from tests.flower.problem import as_table, federation, flower, loop, same, server_state
from tests.flower.test_faults import deaf, node_of

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")


def test_clipping_is_done_at_the_sites(tmp_path):
    data, privacy = federation(), {"clip": 0.01}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, "ditto", privacy=privacy)
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", data, privacy=privacy)))


def test_noise_follows_from_a_secret_of_the_site_and_every_answer_counts(tmp_path):
    data, privacy = federation(), {"clip": 1.0, "noise": 2.0}
    models = []
    for name in ("one", "two"):
        grid = MemoryGrid(sites_of(tmp_path / name / "sites", data))
        node_of(grid, "site-4")[1].says = deaf(2)  # the server does not take it, but it left the site
        run = flower(tmp_path / name, grid, "ditto", privacy=privacy)
        models.append(server_state(run)["server.theta"])
        secrets = {(tmp_path / name / "sites" / client / "secret").read_text() for client in data.ids}
        assert len(secrets) == 3 and all(len(secret) == 64 for secret in secrets)
        assert all((tmp_path / name / "sites" / client / "secret").stat().st_mode & 0o77 == 0 for client in data.ids)
        (count,) = (tmp_path / name / "sites" / "site-4").glob("state/*/answers.json")
        assert json.loads(count.read_text()) == 3
        epsilon = as_table(run).column("epsilon").to_numpy()
        assert np.isfinite(epsilon).all() and (epsilon == epsilon[0]).all()
    assert not torch.equal(*models)  # nobody who knows the seed knows the noise
