"""The folder of a fit whose model is one of personafl's own, as the command line opens it: without the user's code."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.config import read_config
from personafl.errors import ConfigError

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


def test_chosen_toml_is_taken_by_deploy_as_it_is(folder, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from personafl.backends.flower.app import read_operator

    words = ["deploy", "init", str(tmp_path / "clinics"), "--config", str(folder / "chosen.toml")]
    done = CliRunner().invoke(app, [*words, "--sites", "a,b,c"])
    assert done.exit_code == 0, done.output
    chosen = read_config(folder / "chosen.toml")
    trained, settings = read_operator(tmp_path / "clinics" / "federation.toml")
    assert (trained.algorithm, trained.local, trained.model) == (chosen.algorithm, chosen.local, chosen.model)
    assert trained.schedule.rounds == chosen.schedule.rounds and trained.seed == chosen.seed
    assert (settings.input_shape, settings.classes, settings.clients) == ((64,), 10, ("a", "b", "c"))
    assert settings.secure is not None or trained.robust is not None, "protected as the example is"


def test_a_config_that_does_not_say_what_samples_look_like_is_no_federation(folder, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from personafl.backends.deploy import init_federation

    with pytest.raises(
        ConfigError, match=r"job\.toml does not say what the sites' samples look like: add \[federation\]"
    ):
        init_federation(tmp_path / "clinics", config=folder.parent / "job.toml")
    assert not (tmp_path / "clinics").exists(), "no keys were made"


def test_a_fit_of_data_from_python_is_not_run_on_other_data(tmp_path):
    """chosen.toml cannot name data and modules of Python: a run asks for them, and takes no others."""
    federation = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=1.0), (0.5, 0.25, 0.25))
    clients = {name: federation.client(name) for name in federation.ids}
    same = {"methods": ["fedavg"], "trials": 3, "rounds": 2}
    for k, given in enumerate((federation, pf.Federation.from_clients(clients))):
        made = pf.fit(given, **same, out=tmp_path / str(k))
        with pytest.raises(ConfigError, match=r"\[federation\] without \[data\] is for sites"):
            read_config(made.path / "chosen.toml")
    made = pf.fit(federation, torch.nn.Linear(64, 10), **same, out=tmp_path / "module")
    with (made.path / "chosen.toml").open("a") as file:
        file.write('[data]\nname = "digits"\n')
    with pytest.raises(ConfigError, match=r"\[model\] has no name"):
        read_config(made.path / "chosen.toml")


def test_a_table_needs_the_name_of_its_column_of_labels(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("ward,age,ill\na,1.5,0\na,2.5,1\nb,3.5,1\nb,4.5,0\n")
    done = CliRunner().invoke(app, ["fit", str(table), "--client", "ward"])
    assert "--label is missing: name the column of" in str(done.exception)
    # Said of the data as in a config, it is as good; what is then wrong is the name.
    done = CliRunner().invoke(app, ["fit", str(table), "-s", "data.label=il", "--out", str(tmp_path / "fit")])
    assert "has no column 'il' (label); did you mean 'ill'" in str(done.exception)


@pytest.mark.parametrize("command", ["report", "export", "gain"])
def test_a_fit_that_has_not_ended_says_what_goes_on_with_it(tmp_path, command):
    (tmp_path / "search.json").write_text("{}")
    done = CliRunner().invoke(app, [command, str(tmp_path)])
    assert done.exit_code != 0 and "holds a fit that has not ended: its command with --resume" in str(done.exception)
