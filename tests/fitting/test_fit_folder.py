"""The folder of a fit whose model is one of personafl's own, as the command line opens it: without the user's code."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app

CONFIG = """
rounds = 6
splits = [0.5, 0.25, 0.25]
[data]
name = "digits"
[partition]
name = "dirichlet"
clients = 8
alpha = 0.3
[local]
lr = 0.3
steps = 10
batch_size = 10
[engine]
name = "stacked"
threads = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fit")
    (place / "job.toml").write_text(CONFIG)
    words = ["fit", str(place / "job.toml"), "--out", str(place / "fit"), "-a", "ditto", "--trials", "6"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    kind = json.loads((place / "fit" / "fit.json").read_text())["way"]["kind"]
    assert kind == "mixture", "the case that is worth a test"
    return place / "fit"


def test_a_mixture_of_a_model_by_name_is_opened_exported_and_given_to_newcomers(folder, tmp_path):
    found = pf.load_fit(folder)
    x = torch.randn(5, 64)
    net = found.personal("client-3")
    done = CliRunner().invoke(app, ["export", str(folder), "--client", "client-3", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    saved = load_file(tmp_path / "client-3.safetensors")
    torch.testing.assert_close(saved, dict(net.state_dict()))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "new.npz", x=rng.random((20, 64), np.float32), y=rng.integers(0, 10, 20))
    words = ["personalize", str(folder), str(tmp_path / "new.npz"), "--out", str(tmp_path / "new.safetensors")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for name, value in load_file(tmp_path / "new.safetensors").items():
        assert value.shape[0] == 1, name
    assert found.personalize(rng.random((20, 64), np.float32), rng.integers(0, 10, 20))(x).shape == (5, 10)
