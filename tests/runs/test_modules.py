"""A run of a user's own module from the command line: what they name is imported, what the folder names is not."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import personafl as pf
from personafl.cli.export import export
from personafl.cli.personalize import personalize
from personafl.cli.report import report
from personafl.errors import ModelError, RunError
from personafl.settings import Local

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=6):
        super().__init__()
        self.words, self.head = nn.Embedding(9, hidden), nn.Linear(hidden, 2)

    def forward(self, ids, mask):
        real = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * real).sum(1) / real.sum(1))

class Wide(Net):
    def __init__(self, hidden):
        super().__init__(hidden)

def wide():
    return Wide(6)

def broken():
    raise OSError("no weights here")

class Deep(Net):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(2, 2)

class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6)

made = Net()
number = 3

@dataclass(frozen=True)
class Model:
    name: ClassVar[str] = "text"
    hidden: int = 6

    def build(self, shape, outputs, constants={}):
        assert shape == {"ids": (4,), "mask": (4,)}
        return Net(self.hidden)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a user's module, which is the current one."""
    (tmp_path / "mymodels.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    yield tmp_path
    sys.modules.pop("mymodels", None)


def data(seed):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 9, n) for n in [4, *rng.integers(1, 5, 11)]]
    return {"ids": ids}, rng.integers(0, 2, 12)


@pytest.fixture
def run(here):
    sys.path.insert(0, str(here))
    import mymodels

    fed = pf.Federation.from_clients({f"c{m}": data(m) for m in range(3)})
    torch.manual_seed(0)
    made = pf.train(
        fed, mymodels.Net(), pf.Ditto(), rounds=1, local=Local(steps=2), engine="loop", out="run", progress=False
    )
    sys.path.remove(str(here))
    del sys.modules["mymodels"]
    return made


@pytest.mark.parametrize("name", ["Net", "wide", "made"])
def test_a_class_a_function_or_a_module_is_taken(run, name):
    export(run.path, client=["c1"], formats="safetensors,torch", module=f"mymodels:{name}")
    x, _ = run.newcomers({"new": data(1)}).client("new")["train"]
    program = torch.export.load("run/export/c1.pt2").module()
    torch.testing.assert_close(program(**x), run.personal("c1")(**x))
    assert load_file("run/export/c1.safetensors").keys() == run.personal("c1").state_dict().keys()


def test_a_newcomer_of_a_file_is_the_newcomer_of_python(run, here):
    (x, y), expected = data(7), run.personalize(*data(7))
    lengths = [len(row) for row in x["ids"]]
    np.savez(here / "newcomer.npz", **{"x.ids": np.concatenate(x["ids"]), "x.ids.lengths": lengths}, y=y)
    personalize(run.path, here / "newcomer.npz", out_file=here / "new.safetensors", module="mymodels:Net")
    for name, value in load_file(here / "new.safetensors").items():
        torch.testing.assert_close(value[0], expected.state_dict()[name])


def test_a_report_needs_no_module(run, capsys):
    report([run.path], as_json=True)
    made = json.loads(capsys.readouterr().out)
    assert made["runs"] == 1 and "mymodels" not in sys.modules


def test_without_it_the_error_says_what_to_give_and_nothing_is_imported(run):
    with pytest.raises(RunError, match=r"trained a Net: give it, .*module=…\) in Python, --module mymodels:Net on"):
        export(run.path, client=["c1"])
    assert "mymodels" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mymodels:Wide", r"without arguments \(missing a required argument: 'hidden'\): write a function"),
        ("mymodels:Absent", "cannot be imported from .*: AttributeError"),
        ("absent.module:Net", "cannot be imported from .*: ModuleNotFoundError: No module named 'absent'; name"),
        ("mymodels", "'mymodels': name a class or a function without arguments as package.module:Name"),
        ("mymodels:number", "is a int: name a class or a function"),
        ("mymodels:torch.manual_seed", "cannot be made without arguments"),
        ("mymodels:broken", "fails: OSError: no weights here"),
        ("mymodels:dataclass", "gives a function, not a torch module"),
        ("mymodels:Deep", "Deep has 'more.weight', which the models of .* have not: they have head.bias"),
        ("mymodels:Other", "Other has no 'head.bias', which the models of .* have"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line(run, name, message):
    with pytest.raises(ModelError, match=message) as caught:
        export(run.path, client=["c1"], module=name)
    assert "\n" not in str(caught.value)


def test_python_is_told_the_same(run):
    class Net(nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.words, self.head = nn.Embedding(9, hidden), nn.Linear(hidden, 2)

    with pytest.raises(ModelError, match=r"Net has 'words.weight' of shape \(9, 7\), the models of .* \(9, 6\)"):
        pf.load_run(run.path, module=Net(7))
    with pytest.raises(ModelError, match=r"model is the class Net: give an instance of it, Net\(…\)"):
        pf.load_run(run.path, module=Net)
    assert pf.load_run(run.path, module=Net(6)).personal("c0").head.weight.shape == (2, 6)


def test_a_model_that_a_config_named_is_built_with_the_settings_of_the_run(here):
    from personafl.config import parse
    from personafl.jobs import train_config

    sys.path.insert(0, str(here))
    pf.Federation.from_clients({f"c{m}": data(m) for m in range(3)}).save(here / "fed")
    tables = {"rounds": 1, "engine": "loop", "data": {"name": "files", "path": str(here / "fed")}}
    train_config(parse({**tables, "model": {"name": "mymodels:Model", "hidden": 5}}), here / "run")
    sys.path.remove(str(here))
    with pytest.raises(
        RunError, match=r"text' is mymodels:Model, and no installed package .* --module mymodels:Model on"
    ):
        export(here / "run", client=["c1"])
    export(here / "run", client=["c1"], module="mymodels:Model")
    assert load_file(here / "run" / "export" / "c1.safetensors")["words.weight"].shape == (9, 5)


def test_a_folder_cannot_make_the_error_say_more_than_a_name(run):
    toml = run.path / "run.toml"
    toml.write_text(toml.read_text().replace('module = "mymodels:Net"', 'module = "x:y; rm -rf /\\u001b[2J"'))
    with pytest.raises(RunError, match=r"--module package.module:Name on the command line"):
        export(run.path, client=["c1"])
