"""Sites with a backbone on their own disks do what the loop engine does on its features; other weights are refused."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from personafl.backends.flower.app import read_operator
from personafl.errors import ConfigError
from personafl.files import checksum
from personafl.pretrained import load
from personafl.runs.run import load_run
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, server_state, site_model


def body():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh())


@pytest.fixture
def weights(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    save_file(body().state_dict(), tmp_path / "body.safetensors")
    return tmp_path / "body.safetensors"


def at_sites(tmp_path, weights):
    table = {"path": str(weights), "module": f"{__name__}:body"}
    return sites_of(tmp_path / "sites", federation(), backbone=table)


def test_sites_compute_their_own_features(tmp_path, weights):
    nodes = at_sites(tmp_path, weights)
    told = {"name": "body", "sha256": checksum(weights)}
    ours = flower(tmp_path / "flower", MemoryGrid(nodes), "ditto", backbone=told, input_shape=[6], max_weight=1.0)
    backbone = load(weights, module=body())
    features = federation().through(backbone, progress=False)
    reference = loop(tmp_path / "loop", "ditto", features)
    expected = server_state(reference)
    for name, value in server_state(ours).items():
        if name.startswith("server."):
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert ours.manifest["backbone"]["sha256"] == checksum(weights)
    for client in features.ids:
        head, kept = reference.personal(client).head, site_model(tmp_path / "sites" / client / "site.toml")
        torch.testing.assert_close(kept["1.weight"], head[1].weight.detach(), rtol=1e-5, atol=1e-6)
    x, again = federation().x, load_run(ours.path, backbone=backbone)
    torch.testing.assert_close(again.global_model()(x), reference.global_model()(x), rtol=1e-5, atol=1e-5)
    assert again.personalize(x, federation().y)(again.features(x)).shape == (len(x), 2)


def test_other_weights_and_none_are_refused(tmp_path, weights):
    wrong = {"name": "body", "sha256": "0" * 64}
    grid = MemoryGrid(at_sites(tmp_path, weights))
    run = flower(tmp_path / "a", grid, "fedavg", backbone=wrong, input_shape=[6])
    why = f"site-4: its backbone body has SHA-256 {checksum(weights)}, this run wants {'0' * 64}"
    assert all(why in str(record["dropped"]) for record in run.rounds())
    without = MemoryGrid(sites_of(tmp_path / "bare", federation()))
    run = flower(tmp_path / "b", without, "fedavg", backbone=wrong)
    why = f"site-4 has no backbone, this run the backbone body (SHA-256 {'0' * 64}): see [backbone] in site.toml"
    assert all(why in str(record["dropped"]) for record in run.rounds())
    run = flower(tmp_path / "c", grid, "fedavg", input_shape=[6])
    assert "this run no backbone" in str(run.rounds()[0]["dropped"])
    (tmp_path / "c.toml").write_text('[federation]\nsites = 3\ninput_shape = [6]\n[backbone]\nname = "body"\n')
    with pytest.raises(ConfigError, match=r"backbone\.sha256 is missing"):
        read_operator(tmp_path / "c.toml")
