"""Clipping and noise at the sites."""

import json

import pytest
import torch

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


@pytest.mark.parametrize("least_together,counts", [(1, 2.0 / 2**0.5), (2, 2.0)])
def test_a_site_counts_on_the_noise_of_others_where_it_insists_on_sums(tmp_path, least_together, counts):
    """Two of three are counted on for the noise of the sum."""
    table = {"least_together": least_together, "most_epsilon": 1e6}
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation(), **table))
    more = {"rounds": 1, "eval_every": 1, "secure": {}, "privacy": {"clip": 1.0, "noise": 2.0}}
    assert "dropped" not in flower(tmp_path / "run", grid, "ditto", **more).rounds()[0]
    noise = [json.loads((tmp_path / "sites" / c / "ledger.jsonl").read_text())["noise"] for c in federation().ids]
    assert noise == pytest.approx([counts] * 3)


def test_a_site_that_asks_for_noise_of_its_own_takes_no_share(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation(), least_noise=2.0))
    more = {"rounds": 1, "eval_every": 1, "secure": {}, "privacy": {"clip": 1.0, "noise": 2.0}}
    dropped = flower(tmp_path / "run", grid, "ditto", **more).rounds()[0]["dropped"]
    assert "takes part with privacy.noise of at least 2, this run has 1.41421" in dropped["site-2"]


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
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation(), least_noise=0.5))
    run = flower(tmp_path / "run", grid, "ditto", privacy={"clip": 1.0, "noise": 2.0, "noise_at": "server"})
    why = "site site-4 takes part with privacy.noise of at least 0.5, this run has 0 at the sites"
    assert all(record["dropped"]["site-4"] == why for record in run.rounds())
