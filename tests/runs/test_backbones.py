"""Facts about runs on features: what they hand out takes raw samples, and the folder has a name and a hash alone."""

import json
import tomllib

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.config import read_config
from personafl.errors import ModelError, RunError
from personafl.jobs import train_config
from personafl.runs.export import export


def body():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh())


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights, data and a config."""
    folder = tmp_path_factory.mktemp("study")
    torch.manual_seed(0)
    save_file(body().state_dict(), folder / "weights.safetensors")
    (folder / "data").mkdir()
    draws = np.random.default_rng(1)
    for k in range(3):
        x = draws.normal(size=(20, 3)).astype("float32")
        np.savez(folder / "data" / f"c{k}.npz", x=x, y=(x.sum(1) > 0).astype(int))
    (folder / "config.toml").write_text(
        f"""rounds = 2
[data]
name = "files"
path = "{folder / "data"}"
[backbone]
path = "{folder / "weights.safetensors"}"
module = "{__name__}:body"
kind = "module"
[algorithm]
name = "ditto"
"""
    )
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return train_config(read_config(folder / "config.toml"), folder / "run")


@pytest.fixture(scope="module")
def backbone(folder):
    return pf.pretrained.load(folder / "weights.safetensors", module=body())


def raw(folder, client="c1"):
    return torch.from_numpy(np.load(folder / "data" / f"{client}.npz")["x"])


def test_the_folder_names_the_backbone_and_does_not_hold_it(run, backbone, folder):
    said = tomllib.loads((run.path / "run.toml").read_text())
    assert said["backbone"] == {
        "name": "weights", "sha256": backbone.sha256, "pooling": "mean", "normalize": False
    }  # fmt: skip
    assert said["model"]["name"] == "mclr" and said["resolved"]["raw"]["input_shape"] == [3]
    with safe_open(run.path / "models" / "personal.safetensors", "pt") as file:
        assert sum(np.prod(file.get_slice(name).get_shape()) for name in file.keys()) == 3 * (5 * 2 + 2)  # noqa: SIM118


def test_models_take_raw_samples(run, folder):
    weights, x = load_file(folder / "weights.safetensors"), raw(folder)
    features = torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])
    for net in (run.personal("c1"), run.global_model(), run.personalize(x.numpy(), np.arange(20) % 2)):
        with torch.no_grad():
            torch.testing.assert_close(net(run.features(x.numpy())), net.head(features))
    assert run.personal("c0").backbone is run.personal("c1").backbone


def test_a_newcomer_trains_as_on_the_features_themselves(run, backbone, folder):
    draws = np.random.default_rng(5)
    x, y = draws.normal(size=(30, 3)).astype("float32"), draws.integers(0, 2, 30)
    found = run.personalize(x, y).head
    plain = run.newcomer_engine(
        pf.Federation.from_clients({"newcomer": (backbone(torch.from_numpy(x)), y)}, splits=(1, 0, 0))
    )
    torch.testing.assert_close(plain.federation.x, run.newcomers({"newcomer": (x, y)}).x)
    expected = run.task.module(run.personalize_all(plain.federation)[0])
    torch.testing.assert_close(found[1].weight, expected[1].weight)


def test_opened_again_it_needs_the_same_backbone(run, backbone, folder, tmp_path):
    x = raw(folder)
    again = pf.load_run(run.path, backbone=backbone)
    torch.testing.assert_close(again.personal("c1")(x), run.personal("c1")(x))
    assert len(pf.load_run(run.path).clients()) == 3  # tables need none
    with pytest.raises(RunError, match=r"was trained on features of weights \(SHA-256 \w{12}…\): give it, load_run"):
        pf.load_run(run.path).personal("c1")
    with pytest.raises(RunError, match=f"and there is no {tmp_path}/gone: give it"):
        pf.load_run(run.path, backbone=tmp_path / "gone")
    with pytest.raises(RunError, match="holds weights and no model: give what they belong to"):
        pf.load_run(run.path, backbone=folder / "weights.safetensors")
    with pytest.raises(ModelError, match=r"with the SHA-256 \w{64}, and this backbone has \w{64}: give the same"):
        pf.load_run(run.path, backbone=body())
    other = pf.pretrained.Backbone(nn.Sequential(body(), nn.Linear(5, 4)), sha256=backbone.sha256)
    with pytest.raises(ModelError, match=r"gives features of shape \(4,\), the models of .* take \(5,\)"):
        pf.load_run(run.path, backbone=other)
    cls = pf.pretrained.Backbone(backbone.module, sha256=backbone.sha256, pooling="cls")
    with pytest.raises(ModelError, match="trained on features with pooling = 'mean', this backbone has 'cls'"):
        pf.load_run(run.path, backbone=cls)
    with pytest.raises(RunError, match="has no backbone"):
        _ = pf.train(pf.Federation.from_clients({"a": (x, np.arange(20) % 2)}), nn.Linear(3, 2), rounds=1,
                     progress=False).backbone  # fmt: skip


def test_a_run_goes_on_with_the_same_backbone_alone(folder, tmp_path):
    config = read_config(folder / "config.toml")
    train_config(config, tmp_path / "run")
    torch.manual_seed(9)
    save_file(body().state_dict(), tmp_path / "weights.safetensors")
    changed = read_config(folder / "config.toml", [f'backbone.path="{tmp_path / "weights.safetensors"}"', "rounds=3"])
    with pytest.raises(RunError, match=r"holds another run: its backbone\.sha256 is"):
        train_config(changed, tmp_path / "run", resume=True)
    longer = train_config(read_config(folder / "config.toml", ["rounds=3"]), tmp_path / "run", resume=True)
    assert len(longer.rounds()) == 3


def test_an_exported_program_has_the_backbone_in_it(run, folder, tmp_path):
    weights, program = export(run, ["c1"], tmp_path, ["safetensors", "torch"])
    x = raw(folder)
    torch.testing.assert_close(torch.export.load(program).module()(x), run.personal("c1")(x))
    assert set(load_file(weights)) == {"1.weight", "1.bias"}  # the head
    card = json.loads((tmp_path / "c1.json").read_text())
    assert card["input"]["shape"] == ["batch", 3]
    assert card["backbone"]["sha256"] == run.manifest["backbone"]["sha256"] and "head" in card["backbone"]["weights"]


def test_commands_say_what_is_missing(run, folder, tmp_path):
    found = CliRunner().invoke(
        app, ["export", str(run.path), "--client", "c1", "--format", "torch", "--out", str(tmp_path)]
    )
    assert "give it, load_run" in str(found.exception) + found.output
