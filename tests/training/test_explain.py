"""What `pf.explain` says of a model: its layers, and what a round costs."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.errors import ConfigError


@pytest.fixture(scope="module")
def federation():
    draws = torch.Generator().manual_seed(0)
    clients = {f"c{k}": (torch.randn(20, 6, generator=draws).numpy(), (torch.arange(20) % 3).numpy()) for k in range(4)}
    return pf.Federation.from_clients(clients)


class Mixed(nn.Module):
    """A layer of every way."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x):
        return self.out(self.norm(self.frozen(x)) * self.scale)


class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_layer_has_a_way_and_a_reason(federation):
    found = pf.explain(Mixed(), federation)
    ways = {layer.name: (layer.way, layer.parameters) for layer in found.layers}
    assert ways["frozen"] == ("frozen", 56)
    assert ways["norm"] == ("stacked", 16)
    assert ways["scale"] == ("mapped", 8)
    assert ways["out"][0] == "mapped"
    assert (found.frozen, found.statistics) == (56, 16)
    assert sum(layer.parameters for layer in found.layers) == found.frozen + found.trained
    assert found.reason is None and all(layer.why for layer in found.layers)


def test_a_model_that_mixes_samples_is_looped_and_says_why(federation):
    found = pf.explain(Centred(6, 3), federation)
    assert (found.way, found.layers[0].way, found.at_once) == ("looped", "looped", 1)
    assert "mixes rows" in found.reason and "mixes rows" in repr(found)


@pytest.mark.parametrize(("algorithm", "down", "up"), [("fedavg", 1, 1), ("ditto", 1, 1), ("scaffold", 2, 2)])
def test_traffic_is_what_a_run_counts(federation, algorithm, down, up):
    found = pf.explain(nn.Linear(6, 3), federation, algorithm)
    assert (found.down, found.up) == (4 * 21 * down, 4 * 21 * up)
    run = pf.train(federation, nn.Linear(6, 3), algorithm, rounds=1, engine="loop", progress=False)
    last = run.rounds()[-1]
    assert (last["bytes_down"], last["bytes_up"]) == (4 * found.down, 4 * found.up)


def test_the_table_names_layers_and_costs(federation):
    text = repr(pf.explain(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), federation, "ditto"))
    for part in ("Sequential: 63 trained numbers", "LayerNorm", "35", "252 bytes down", "ditto, 4 clients"):
        assert part in text


def test_the_command(tmp_path):
    config = tmp_path / "digits.toml"
    config.write_text('data = "digits"\nalgorithm = "fedavg"\n[partition]\nname = "iid"\nclients = 4\n')
    result = CliRunner().invoke(app, ["explain", str(config), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["way"] == "stacked" and found["trained"] * 4 == found["down"]
    assert "traffic" in CliRunner().invoke(app, ["explain", str(config)]).stdout


def test_bf16_is_a_setting_of_this_process():
    assert pf.EngineSettings("stacked", precision="bf16").precision == "bf16"
    with pytest.raises(ConfigError, match="float32 or bf16"):
        pf.EngineSettings(precision="half")
    with pytest.raises(ConfigError, match=r"engine\.precision"):
        pf.EngineSettings("flower-sim", precision="bf16")


def test_a_run_in_bf16_is_near_one_in_float32(federation):
    models = []
    for precision in ("float32", "bf16"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        engine = pf.EngineSettings("stacked", threads=1, precision=precision)
        run = pf.train(federation, net, rounds=2, engine=engine, progress=False)
        models.append(run.personal("c1")[0].weight.detach())
        assert run.manifest["resolved"].get("precision", "float32") == precision
    assert 0 < float((models[0] - models[1]).abs().max()) < 0.02
    assert models[1].dtype == torch.float32
