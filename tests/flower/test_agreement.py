"""Every algorithm with sites on Flower does what it does on the loop engine, bit for bit."""

import pytest

from personafl.algorithms import ALGORITHMS
from tests.flower.grid import MemoryGrid, sites_of
from tests.flower.problem import (
    federation,
    flower,
    loop,
    loop_states,
    same,
    same_clients,
    server_state,
    site_model,
    site_state,
)  # fmt: skip

METHODS = [*ALGORITHMS, {"name": "selffl", "clusters": "group"}]


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_three_rounds_with_three_sites_equal_the_loop_engine(tmp_path, algorithm):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours, reference = flower(tmp_path / "flower", grid, algorithm), loop(tmp_path / "loop", algorithm, data)
    assert same(server_state(ours), server_state(reference))
    assert same_clients(ours, reference)
    for counted in ("bytes_up", "gradients"):
        assert [r[counted] for r in ours.rounds()] == [r[counted] for r in reference.rounds()]
    states = loop_states(reference)
    for client in data.ids:
        site = tmp_path / "sites" / client / "site.toml"
        assert same(site_state(site, 3), states[client])
        wanted = {name: value.detach() for name, value in reference.personal(client).named_parameters()}
        assert same(site_model(site), wanted)
