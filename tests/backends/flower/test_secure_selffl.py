"""Self-FL whose server sees no model: two sums a round."""

import pytest
import torch

from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, server_state, site_model
from tests.backends.flower.test_faults import node_of
from tests.backends.flower.test_secure import LATE, close, swallow

SELFFL = {"name": "selffl", "sums": True}


@pytest.mark.parametrize("options", [{}, {"rate": "solved", "sigma": "fisher", "prior": 0.1}], ids=str)
def test_a_run_agrees_with_the_loop(tmp_path, options):
    data, table = federation(), {**SELFFL, **options}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, table, rounds=4, secure={}, max_weight=1.0)
    reference = loop(tmp_path / "loop", table, data, rounds=4)
    assert not any("dropped" in record for record in ours.rounds())
    assert [record["steps"] for record in ours.rounds()] == [record["steps"] for record in reference.rounds()]
    close(server_state(ours), server_state(reference), 2e-6)
    for client in data.ids:
        model = dict(reference.personal(client).state_dict())
        close(site_model(tmp_path / "sites" / client / "site.toml"), model, 1e-6)
    assert not list((tmp_path / "sites").rglob("*.tmp.safetensors"))


@pytest.mark.parametrize("kind", ["train.secure", "query.second"])
def test_a_site_that_goes_between_the_sums_is_left_out(tmp_path, kind):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, LATE)[1].says = swallow(kind, 2)
    ours = flower(tmp_path / "flower", grid, SELFFL, rounds=3, secure={})
    assert ours.rounds()[1]["dropped"] == {LATE: "no answer within 0.3 s"}
    state = server_state(ours)
    assert torch.isfinite(state["server.theta"]).all() and state["server.counted"].tolist() == [1, 1, 1]


def test_both_sums_need_new_keys(tmp_path):
    """Whoever goes between the sums gives away its key of the second: it must not open its answer to the first."""
    grid, keys = MemoryGrid(sites_of(tmp_path / "sites", federation())), []
    node_of(grid, LATE)[1].says = lambda m: (
        keys.append(m.content["answer"]["text"]) if m.metadata.message_type == "query.keys" else None, m
    )[1]  # fmt: skip
    flower(tmp_path / "flower", grid, SELFFL, rounds=1, eval_every=1, secure={})
    assert len(keys) == 2 and keys[0] != keys[1]
