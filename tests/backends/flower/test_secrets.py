"""What leaves a site, byte by byte: never a sample, and of what it keeps only what the algorithm is said to send."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from personafl.federation import Federation
from tests.archetypes import archetypes
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower

PERSONAL = {"fedavg", "fedprox", "moon", "fedala", "fedamp", "heurfedamp", "selffl", "selffl-aug", "fedfomo", "mocha"}
PERSONAL |= {"fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn", "afl", "fedpa", "fedbe"}
"""Where what a client trained goes up as it is, and is its personalized model too."""
ALONE = {"ifca"}
"""Where a client that is alone in its cluster has the mean of its own answer: one of these sites is."""
SENT = {name: {"theta"} for name in PERSONAL} | {"selffl-aug": {"theta", "personal"}, "scaffold": {"c"}}
SENT["fml"] = {"v"}
"""What clients keep and send as it is. SCAFFOLD sends how c changed, which is c itself the first time; FML's two models
start alike, and with α = β are the same after a client's first round."""


def marked() -> Federation:
    """Samples whose every value is unlike all others."""
    plain = federation()
    rng = np.random.default_rng(7)
    data = {
        client: {s: (rng.uniform(-1, 1, x.shape).astype(np.float32), y) for s, (x, y) in plain.client(client).items()}
        for client in plain.ids
    }
    return Federation.from_clients(data, classes=2)


def patterns(values: np.ndarray) -> list[bytes]:
    """Any two values in a row, as numbers of four and of eight bytes in either order."""
    pairs = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(values).reshape(-1), 2)
    return [pair.astype(kind).tobytes() for pair in pairs for kind in ("<f4", "<f8", ">f4", ">f8")]


@pytest.mark.parametrize("algorithm", archetypes(besides=["scaffold"]))
def test_nothing_leaves_a_site_but_what_the_algorithm_sends(tmp_path, algorithm):
    data = marked()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    # Whatever a site keeps in any round, before it forgets it.
    kept: dict[str, dict[str, list[np.ndarray]]] = {client: {} for client in data.ids}
    for node in grid.nodes.values():

        def says(message, node=node):
            for file in node.site.parent.glob("state/*/round-*.safetensors"):
                for name, value in load_file(file).items():
                    kept[node.site.parent.name].setdefault(name, []).append(value)
            return message

        node.says = says
    run = flower(tmp_path / "flower", grid, algorithm, rounds=3, eval_every=1)
    assert not any("dropped" in record for record in run.rounds())

    left = {client: b"".join(d for site, _, d in grid.left if site.parent.name == client) for client in data.ids}
    everything = b"".join(left.values())
    assert all(len(bytes_) > 0 for bytes_ in left.values())
    for client in data.ids:
        for features, _ in data.client(client).values():
            for sample in features.numpy():
                assert not any(pattern in everything for pattern in patterns(sample))
        sent = {v.tobytes() for name in SENT.get(algorithm, ()) for v in kept[client][name]}
        for name, versions in kept[client].items():
            for value in versions:  # Self-FL's mean of a single model is that model
                if np.unique(value).size >= 4 and value.tobytes() not in sent:
                    assert value.tobytes() not in everything, f"{name} of {client} left its site"
        model = load_file(tmp_path / "sites" / client / "models" / "personal.safetensors")
        for name, value in model.items():
            found = value.tobytes() in everything
            assert found <= (algorithm in PERSONAL | ALONE), (
                f"{name} of the personalized model of {client} left its site"
            )


def test_the_search_finds_what_is_sent(tmp_path):
    """For fedavg the personalized model is what goes up: the search above would see it."""
    data = marked()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    flower(tmp_path / "flower", grid, "fedavg")
    for client in data.ids:
        model = load_file(tmp_path / "sites" / client / "models" / "personal.safetensors")
        left = b"".join(d for site, _, d in grid.left if site.parent.name == client)
        assert model["1.weight"].tobytes() in left


def test_what_goes_wrong_with_the_data_stays_in_the_log_of_the_site(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", marked()))
    np.savez(tmp_path / "sites" / "site-4" / "data.npz", x=np.full((4, 4), 0.123456, np.float32), y=[0, 1, -77, 1])
    flower(tmp_path / "flower", grid, "fedavg", clients=list(marked().ids), rounds=1, patience=0.2)
    said = [d for site, _, d in grid.left if site.parent.name == "site-4"]
    assert said and all(b"its data cannot be used" in d and b"-77" not in d and b"0.123" not in d for d in said)
