"""What a new user does wrong, from Python and from the command line: one line says what was found and what to write."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.errors import PersonaflError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = np.arange(60) % 3
HOSPITAL = np.repeat([0, 1, 2], 20)
IMAGES = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
TABLE = {"hospital": HOSPITAL.tolist(), "age": list(range(60)), "ill": (Y % 2).tolist()}


@pytest.fixture(scope="module")
def fed():
    return pf.Federation.from_arrays(X, Y, clients=HOSPITAL)


@pytest.fixture(scope="module")
def run(fed, tmp_path_factory):
    return train(fed, nn.Linear(4, 3), pf.Ditto(), out=tmp_path_factory.mktemp("runs") / "ditto")


def train(*arguments, **settings):
    return pf.train(*arguments, **{"rounds": 1, "engine": "loop", "progress": False} | settings)


def federation(y=Y, x=X, **options):
    return pf.Federation.from_arrays(x, y, **{"clients": HOSPITAL} | options)


def table(**options):
    return pf.Federation.from_table(TABLE, **{"client": "hospital", "label": "ill"} | options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


# --- refusals: each is one line that names what was found and what to write instead

DATA = {
    "float class labels": (
        lambda: federation(Y + 1.0),
        "y is floats and holds only the whole numbers 1, 2, 3: give label_type = 'classes' .* 'numbers' for a reg",
    ),
    "one-hot labels": (
        lambda: federation(np.eye(3, dtype=int)[Y]),
        r"y has shape \(N, 3\) with one 1 in each row, so it is one-hot: give y.argmax\(axis=1\), or .* 'multilabel'",
    ),
    "one-hot labels as floats": (lambda: federation(np.eye(3)[Y]), r"one-hot: give y.argmax\(axis=1\)"),
    "several labels as floats": (
        lambda: federation(np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])[Y]),
        "y holds only 0.0 and 1.0 in 2 columns: give label_type = 'multilabel' .*, 'numbers' if they are targets",
    ),
    "labels in a column": (lambda: federation(Y[:, None]), r"shape \(60, 1\); expected \(N,\): give y.reshape\(-1\)"),
    "labels as text": (
        lambda: federation(np.array(["well", "ill", "dead"])[Y]),
        "y of the data holds text such as 'well'; give the number of each class.* np.unique",
    ),
    "labels -1 and 1": (lambda: federation(Y % 2 * 2 - 1), r"labels are -1 and 1; .* give \(y \+ 1\) // 2"),
    "too few classes": (lambda: federation(classes=2), "labels outside 0..1 .* give classes = 3 or correct them"),
    "classes as text": (lambda: federation(classes="3"), "classes = '3': must be a whole number, or left out"),
    "an empty string as client id": (
        lambda: federation(clients=np.array(["", "b", "c"])[HOSPITAL]),
        "id of client 1 of 3 is ''; give every client a name that is not blank",
    ),
    "a blank client id": (lambda: pf.Federation.from_clients({" ": (X, Y)}), "is ' '; give every client a name"),
    "the number of clients": (
        lambda: federation(clients=3),
        r"clients has shape \(\), expected \(60,\): the client of",
    ),
    "a partition's class": (
        lambda: federation(clients=None, partition=pf.partition.IID),
        r"partition is the class IID: give one such as pf.partition.Dirichlet\(clients=20, alpha=0.3\)",
    ),
    "a partition's name": (
        lambda: federation(clients=None, partition="iid"),
        r"partition is 'iid': give one such as pf.partition.Dirichlet",
    ),
    "two splits": (
        lambda: federation(splits=(0.8, 0.2)),
        "splits = .* must be the shares of train, validation and test",
    ),
    "splits in percent": (lambda: federation(splits=(80, 10, 10)), "none negative, train above 0, sum 1"),
    "splits as text": (
        lambda: federation(splits="random"),
        "splits = 'random' must be the shares of train, validation",
    ),
    "splitting unknown": (lambda: federation(splitting="time"), "splitting = 'time': must be random, or end"),
    "a list of clients": (
        lambda: pf.Federation.from_clients([(X, Y)]),
        r"data is a list; expected a mapping of client ids to \(x, y\)",
    ),
    "a client as a dict": (
        lambda: pf.Federation.from_clients({"a": {"x": X, "y": Y}}),
        r"client 'a' has a split 'x'; .* give the tuple \(x, y\)",
    ),
    "one dataset": (
        lambda: pf.Federation.from_datasets(TensorDataset(torch.zeros(3, 2), torch.zeros(3))),
        "data is a TensorDataset; expected a mapping of client ids to datasets",
    ),
    "gaps in arrays": (lambda: federation(x=np.where(X > 1, np.nan, X)), "NaN or infinite features in 3 clients"),
    "a column by its position": (lambda: table(client=0), "client = 0: columns have names, such as 'hospital'"),
    "a column misspelt": (lambda: table(label="il"), r"no column 'il' \(label\); did you mean 'ill'\? its columns"),
    "no label": (lambda: table(label=None), "label is empty: name the column that holds the labels"),
    "categorical as text": (
        lambda: table(categorical="age"),
        r"categorical = 'age': must be a list of columns, \['age'\]",
    ),
    "missing by an unknown rule": (lambda: table(missing="median"), "missing = 'median': must be error, fill"),
    "normalize as a flag": (lambda: table(normalize=True), "normalize = True: must be none or standard"),
    "a table without clients": (lambda: table(client=None), "needs client .*, or a partition that deals its rows"),
}
TRAIN = {
    "Ditto without parentheses": (
        lambda fed: train(fed, Net(), pf.Ditto),
        r"algorithm is the class Ditto: write Ditto\(\), with parentheses",
    ),
    "an unknown name": (
        lambda fed: train(fed, Net(), "dito"),
        r"algorithm = 'dito' is unknown \(did you mean 'ditto'\?\)",
    ),
    "no algorithm": (
        lambda fed: train(fed, Net(), 3),
        r"algorithm is 3: give an algorithm such as pf.Ditto\(lam=0.5\)",
    ),
    "a model class": (lambda fed: train(fed, Net), r"model is the class Net: give an instance of it, Net\("),
    "a function as model": (lambda fed: train(fed, lambda: Net()), "model is the function .*: give what it returns"),
    "a model's name": (
        lambda fed: train(fed, "mlp"),
        "model is 'mlp': give a torch module; models by name are for config",
    ),
    "weights as model": (lambda fed: train(fed, Net().state_dict()), "give the module that has these weights, after"),
    "arrays": (lambda fed: train(X, Net()), r"federation is an array of shape \(60, 4\): make one with .*from_arrays"),
    "a tuple": (lambda fed: train((X, Y), Net()), r"federation is a tuple: make one with pf.Federation.from_arrays"),
    "a dict": (lambda fed: train({"a": (X, Y)}, Net()), "federation is a dict: make one with .*from_clients"),
    "a path": (lambda fed: train("t.csv", Net()), "federation is 't.csv': make one with .*from_table"),
    "model first": (lambda fed: train(Net(), fed), "the first argument is the model: the federation comes first"),
    "rounds=2.5": (lambda fed: train(fed, Net(), rounds=2.5), "rounds = 2.5: must be a whole number"),
    "activity in percent": (lambda fed: train(fed, Net(), activity=50), r"activity = 50: must be in \(0, 1\]"),
    "a function as lr": (
        lambda fed: train(fed, Net(), local=pf.Local(lr=lambda round: 0.1)),
        "local.lr = .*: must be a number; local.schedule says how it changes",
    ),
    "lr in the wrong place": (
        lambda fed: train(fed, Net(), lr=0.1),
        r"lr belongs to local training: write local=pf.Local\(lr=",
    ),
    "local as a dict": (lambda fed: train(fed, Net(), local={"lr": 0.1}), r"local is a dict: give pf.Local\(lr="),
    "privacy as a number": (lambda fed: train(fed, Net(), privacy=1.0), r"privacy is 1.0: give pf.Privacy\(clip="),
    "an unknown engine": (lambda fed: train(fed, Net(), engine="gpu"), "engine = 'gpu' is unknown; known: auto"),
    "no engine": (lambda fed: train(fed, Net(), engine=None), "engine is None: give a name such as 'stacked'"),
    "half a seed": (lambda fed: train(fed, Net(), seed=0.5), "seed = 0.5: must be a whole number"),
    "a loss class": (
        lambda fed: train(fed, Net(), loss=nn.CrossEntropyLoss),
        r"loss is the class CrossEntropyLoss: give an instance, CrossEntropyLoss\(reduction='none'\)",
    ),
    "a loss that averages": (
        lambda fed: train(fed, Net(), loss=nn.CrossEntropyLoss()),
        r"loss gives values of shape \(\) .*reduction='none'",
    ),
    "a loss that is a number": (lambda fed: train(fed, Net(), loss=3), "loss is 3: give its name, or a function"),
    "metrics by name": (lambda fed: train(fed, Net(), metrics=["f1"]), r"metrics is a list: give \{name: function of"),
    "a function as listener": (
        lambda fed: train(fed, Net(), listeners=[len]),
        "listeners holds the function len: ",
    ),
    "a number as folder": (lambda fed: train(fed, Net(), out=3), "out is 3: give the path of a folder"),
    "resume without a folder": (
        lambda fed: train(fed, Net(), resume=True),
        "resume needs the run folder: name it with out",
    ),
    "uint8 images": (
        lambda fed: train(federation(x=IMAGES), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))),
        r"Sequential fails on .*uint8.*; x are bytes: give floats, such as x.astype\('float32'\) / 255",
    ),
    "integers for a float model": (
        lambda fed: train(federation(x=Y[:, None]), nn.Linear(1, 3)),
        r"x are whole numbers: give x.astype\('float32'\), unless",
    ),
    "too few outputs": (lambda fed: train(fed, nn.Linear(4, 2)), "2 outputs .* label 2"),
    "another number of features": (
        lambda fed: train(fed, nn.Linear(5, 3)),
        r"Linear fails on a batch of features \(2, 4\)",
    ),
    "a frozen model": (lambda fed: train(fed, Net().requires_grad_(False)), "no trainable parameters"),
    "compare: Ditto without parentheses": (
        lambda fed: pf.compare(fed, Net(), pf.Ditto, rounds=1, progress=False),
        r"algorithm is the class Ditto: write Ditto\(\)",
    ),
    "compare: arrays": (
        lambda fed: pf.compare(X, Net(), ["ditto"], rounds=1, progress=False),
        "federation is an array of shape",
    ),
}
RUN = {
    "a client that is not there": (lambda run: run.personal(7), "has no client '7'; the first are 0, 1, 2"),
    "a round that was not evaluated": (lambda run: run.clients(5), "no evaluation of round 5; there are 1"),
    "the module's class": (
        lambda run: pf.load(run.path, module=Net),
        r"model is the class Net: give an instance of it",
    ),
    "the module left out": (lambda run: pf.load(run.path).personal("1"), "trained a Linear: give it, .* module="),
    "another module": (
        lambda run: pf.load(run.path, module=nn.Linear(4, 7)).personal("1"),
        r"of shape \(7, 4\), the models of .* \(3, 4\)",
    ),
    "a newcomer with other features": (
        lambda run: run.personalize(X[:, :3], Y),
        r"the newcomer's samples have shape \(3,\), the model wants \(4,\)",
    ),
    "a newcomer with one sample": (
        lambda run: run.personalize(X[0], Y[0]),
        "is a single number; expected one entry a s",
    ),
    "the same folder": (
        lambda run: train(federation(), nn.Linear(4, 3), pf.Ditto(), out=run.path),
        r"already holds a run: continue it with resume=True \(--resume .*, or name another folder with out",
    ),
    "resuming with another algorithm": (
        lambda run: train(federation(), nn.Linear(4, 3), pf.FedProx(), out=run.path, resume=True),
        "its algorithm.name is 'ditto', now it is 'fedprox'",
    ),
    "resuming with another λ": (
        lambda run: train(federation(), nn.Linear(4, 3), pf.Ditto(lam=3.0), out=run.path, resume=True),
        "its algorithm.lam is 1.0, now it is 3.0",
    ),
    "resuming with another model": (
        lambda run: train(federation(), Net(), pf.Ditto(), out=run.path, resume=True),
        "its model.class is 'Linear', now it is 'Net'",
    ),
}


def refused(call, said):
    with pytest.raises(PersonaflError) as caught:
        call()
    assert re.search(said, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("call", "said"), DATA.values(), ids=DATA)
def test_data(call, said):
    refused(call, said)


@pytest.mark.parametrize(("call", "said"), TRAIN.values(), ids=TRAIN)
def test_train(fed, call, said):
    refused(lambda: call(fed), said)


@pytest.mark.parametrize(("call", "said"), RUN.values(), ids=RUN)
def test_run(run, call, said):
    refused(lambda: call(run), said)


# --- taken, with or without a word


def test_an_algorithm_may_be_named(fed, run):
    named = train(fed, nn.Linear(4, 3), "ditto")
    assert named.manifest["algorithm"] == run.manifest["algorithm"]


def test_integer_client_ids_are_found(fed, run):
    assert torch.equal(run.personal(1).weight, run.personal("1").weight)
    assert torch.equal(fed.client(1)["train"][0], fed.client("1")["train"][0])


def test_labels_from_1_are_said_when_training(caplog):
    counted = federation(Y + 1)
    train(counted, nn.Linear(4, 4))
    assert "labels count from 1, so class 0 of the 4 classes is empty: give y - 1" in caplog.text
    assert "labels count from 1" in str(counted)


def test_no_test_data_is_said(caplog):
    done = train(federation(splits=(1, 0, 0)), Net())
    assert "no client has test samples, so nothing will be scored" in caplog.text
    caplog.clear()
    assert done.score == {}
    assert "nothing was scored: no client has test samples; give splits with a share for test" in caplog.text
    assert "nothing was scored: no client has test samples" in str(done)


def test_uint8_images_go_through_a_model_that_converts_them():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def forward(self, x):
            return self.layer(x.flatten(1).float() / 255)

    assert train(federation(x=IMAGES), Scaled()).score["personal_loss"] > 0


@pytest.mark.parametrize(("separator", "point"), [(";", ","), (";", "."), ("\t", "."), ("|", "."), (",", ".")])
def test_a_csv_with_semicolons_is_read(tmp_path, separator, point):
    rows = [(f"h{k % 2}", f"{x[0]:.3f}".replace(".", point), k, k % 3) for k, x in enumerate(X)]
    lines = [separator.join(map(str, row)) for row in [("who", "dose", "age", "y"), *rows]]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    fed = pf.Federation.from_table(tmp_path / "t.csv", client="who", label="y", splitting="end", splits=(1, 0, 0))
    expected = np.array([[float(row[1].replace(",", ".")), row[2]] for row in rows], np.float32)
    assert np.array_equal(fed.x.numpy(), np.concatenate([expected[::2], expected[1::2]]))


# --- print


def test_a_federation_is_a_few_lines(fed):
    assert str(fed).splitlines() == [
        "Federation 'arrays': 3 clients (0, 1, 2), 60 samples, 20 a client",
        "  splits    train 42, val 6, test 12",
        "  features  shape (4,), float32",
        "  labels    3 classes",
    ]
    named = pf.Federation.from_table(
        {"who": list("aab"), "age": [1, 2, 3], "y": ["ill", "well", "ill"], "town": list("xxz")},
        client="who", label="y", group="town", normalize="standard",
    )  # fmt: skip
    assert str(named).splitlines() == [
        "Federation 'table': 2 clients (a, b), 3 samples, 1 to 2 a client",
        "  splits    train 2, val 0, test 1; 1 client without test samples",
        "  features  shape (1,), float32",
        "  labels    2 classes (ill, well)",
        "  groups    x (1), z (1)",
        "  constants mean, std",
    ]
    assert "labels    numbers from -1.5 to 2.5 (regression)" in str(federation(np.linspace(-1.5, 2.5, 60)))
    several = np.array([[0, 1], [1, 1], [0, 0]])[Y]
    assert "labels    2 labels of 0 and 1 a sample (multilabel)" in str(federation(several))


def test_a_run_is_four_lines(run):
    lines = str(run).splitlines()
    assert lines[0] == "Run of ditto: 1 of 1 rounds, 3 clients, seed 0"
    assert lines[1].startswith(f"  score   personal_accuracy {run.score['personal_accuracy']:.4g}, personal_loss ")
    assert lines[1].endswith("(test data, after round 1)") and "_val_" not in lines[1]
    assert lines[2] == f"  folder  {run.path}" and "run.personal(client)" in lines[3] and len(lines) == 4


def test_a_temporary_run_says_so(fed):
    assert "temporary, deleted with this object: out=… keeps it" in str(train(fed, Net()))


# --- the command line

CONFIG = """
rounds = 1
engine = "loop"
{top}
[data]
name = "files"
path = "{path}"
client = "who"
label = "y"
{data}
"""
CLI = {
    "lr in the wrong place": ("lr = 0.1", "", r"unknown key 'lr' \(did you mean 'local.lr'\?\)"),
    "splitting unknown": ("splitting = 'last'", "", "splitting = 'last': input should be 'random' or 'end'"),
    "missing unknown": ("", "missing = 'median'", "data.missing = 'median': input should be 'error', 'fill'"),
    "label_type unknown": ("", "label_type = 'float'", "data.label_type = 'float': input should be 'auto', 'classes'"),
    "no such time": ("", "time = 'when'", r"has no column 'when' \(time\)"),
    "rounds as text": ("", "", "rounds = 'ten': input should be a valid integer", "-s", "rounds=ten"),
    "an unknown algorithm": ("algorithm = 'dito'", "", r"algorithm = 'dito' is unknown \(did you mean 'ditto'\?\)"),
}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "t.csv").write_text("who,age,y\n" + "".join(f"h{k % 2},{k},{k % 2}\n" for k in range(20)))

    def write(top="", data=""):
        (tmp_path / "c.toml").write_text(CONFIG.format(top=top, data=data, path=(tmp_path / "t.csv").as_posix()))
        return str(tmp_path / "c.toml")

    return write


def command(*arguments):
    """What a command prints, and the error that ended it; `main` prints that on one line."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, PersonaflError | SystemExit), done.exc_info
    return done.output, str(done.exception or "")


@pytest.mark.parametrize("case", CLI.values(), ids=CLI)
def test_a_wrong_config_is_one_line(config, tmp_path, case):
    top, data, said, *more = case
    _, error = command("run", config(top, data), "--out", tmp_path / "run", *more)
    assert re.search(said, error) and "\n" not in error, error


def test_no_test_data_is_said_by_the_command_line(config, tmp_path, caplog):
    printed, _ = command("run", config("splits = [1.0, 0.0, 0.0]"), "--out", tmp_path / "run")
    assert "No client has test data, so nothing was measured on it." in printed
    assert any(record.levelno == logging.WARNING and "no client has test samples" in record.message
               for record in caplog.records)  # fmt: skip
    assert command("report", tmp_path / "run")[1] in ("", "0")  # and the page of such a run can be made


def test_a_newcomer_that_is_not_there_or_no_npz(config, tmp_path):
    command("run", config(), "--out", tmp_path / "run")
    assert "there is no file or folder" in command("personalize", tmp_path / "run", tmp_path / "no.npz")[1]
    said = command("personalize", tmp_path / "run", tmp_path / "t.csv")[1]
    assert "is not a .npz file: save the newcomer's samples with numpy.savez(path, x=x, y=y)" in said


def test_settings_of_the_reader_are_in_the_runs_config_where_they_are_given(config, tmp_path):
    command("run", config(), "--out", tmp_path / "plain")
    command("run", config("splitting = 'end'", "label_type = 'numbers'"), "--out", tmp_path / "end", "--json")
    plain, end = (pf.load(tmp_path / name).manifest for name in ("plain", "end"))
    assert not {"label_type", "missing", "time"} & plain["data"].keys() and "splitting" not in plain
    assert end["data"]["label_type"] == "numbers" and end["splitting"] == "end" and "classes" not in end["resolved"]
    assert json.loads(json.dumps(end["resolved"]["outputs"])) == 1
