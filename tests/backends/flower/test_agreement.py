"""Every algorithm with sites on Flower does what it does on the loop engine, bit for bit."""

import pytest

from tests.archetypes import FOR_ANY_MODEL, FOR_TWO_LAYERS, archetypes
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import (
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

OPTIONS = {"gradient": "sum", "rate": "solved", "sigma": "fisher", "prior": 0.1}
METHODS = [*archetypes(FOR_TWO_LAYERS), {"name": "selffl", "clusters": "group"}, {"name": "selffl", **OPTIONS}]


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_three_rounds_with_three_sites_equal_the_loop_engine(tmp_path, algorithm):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    # A cluster of one or two sites is made of them alone, whatever their share of it.
    any_model = isinstance(algorithm, dict) or algorithm in FOR_ANY_MODEL
    model = {} if any_model else {"model": {"name": "mlp", "hidden": [3]}}
    ours = flower(tmp_path / "flower", grid, algorithm, max_weight=1.0, **model)
    reference = loop(tmp_path / "loop", algorithm, data, **model)
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


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedproto", "fedpac", "knnper"])
def test_and_so_do_algorithms_of_features_for_models_of_two_layers(tmp_path, algorithm):
    """The layer is named in the settings: no code travels."""
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    more = {"model": {"name": "mlp", "hidden": [5]}, "max_weight": 1.0}
    if algorithm == "fedproto":
        more["local"] = {"steps": 2, "batch_size": 4, "lr": 0.1, "features": "1"}
    ours = flower(tmp_path / "flower", grid, algorithm, **more)
    more.pop("max_weight")
    reference = loop(tmp_path / "loop", algorithm, data, **more)
    assert same(server_state(ours), server_state(reference))
    assert same_clients(ours, reference)


def test_sites_keep_the_state_of_their_optimizer(tmp_path):
    """And know how long a cosine is, which has the run's rounds."""
    local = {"steps": 2, "batch_size": 4, "lr": 0.1, "optimizer": "adamw", "optimizer_state": "kept"}
    local |= {"schedule": "cosine", "warmup": 1, "groups": {"*.bias": 0.5}}
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, "ditto", local=local)
    reference = loop(tmp_path / "loop", "ditto", data, local=local)
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)
    for client, state in loop_states(reference).items():
        assert "optimizer.v.square" in state
        assert same(site_state(tmp_path / "sites" / client / "site.toml", 3), state)


def test_what_is_held_back_at_sites_is_what_the_loop_engine_holds_back(tmp_path):
    data, local = federation(), {"steps": 2, "batch_size": 4, "lr": 0.1, "held_back": 0.5}
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, "persfl", local=local)
    reference = loop(tmp_path / "loop", "persfl", data, local=local)
    assert ours.clients().column("n_held").to_pylist() == [2, 2, 2]
    assert same_clients(ours, reference)
