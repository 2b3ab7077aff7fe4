"""Comparisons from Python are those of the command line, for anybody's module."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import personafl as pf
from personafl.cli.compare import compare as command
from personafl.config import parse
from personafl.errors import ConfigError, RunError
from personafl.models import MCLR, initialize
from personafl.study.columns import BY_KEY
from personafl.study.description import description
from personafl.tasks.classes import cross_entropy
from tests.study.own_module import Scaled, smooth

TOML = """
rounds = 3
eval_every = 1
splits = [0.5, 0.2, 0.3]
partition = {name = "dirichlet", clients = 6, alpha = 0.5}
model = {name = "mclr"}
local = {steps = 2, lr = 0.1}
engine = {name = "stacked", threads = 1}
methods.persfl.algorithm = {temperatures = [1.0], imitations = [0.0, 0.5], distill_epochs = 1}
"""
SMALL = pf.PersFL(temperatures=(1.0,), imitations=(0.0, 0.5), distill_epochs=1)
CONFIG = parse({"splits": [0.5, 0.2, 0.3], "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5}})
QUICK = {"rounds": 3, "eval_every": 1, "local": pf.Local(steps=2, lr=0.1), "engine": "stacked", "threads": 1}
QUIET = {"progress": False, **QUICK}


def federation(seed=0):
    return replace(CONFIG, seed=seed).federation()


def module(seed=0):
    return initialize(MCLR(), (64,), 10, seed)


@pytest.fixture(scope="module")
def fed():
    return federation()


def written(folder):
    """comparison.json without seconds and the names of folders, which no two comparisons share."""
    found = json.loads((folder / "comparison.json").read_text())
    del found["runs"]
    found["metrics"] = [row for row in found["metrics"] if row["metric"] != "seconds"]
    for search in found["searches"]:
        for trial in search["trials"]:
            del trial["seconds"]
    return found


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*") if path.name != ".lock"}


# --- the same as on the command line


def test_the_command_line_and_python_give_the_same_numbers(tmp_path, capsys):
    (tmp_path / "c.toml").write_text(TOML)
    tune = ["ditto.lam=[0.1, 1.0]", "local.lr=[0.01, 0.1]"]
    command(tmp_path / "c.toml", methods="ditto,persfl", seeds=2, tune=tune, out_folder=tmp_path / "command")
    printed = capsys.readouterr().out
    found = pf.compare(
        federation, module, ["ditto", SMALL], seeds=2, search={"ditto.lam": [0.1, 1.0], "local.lr": [0.01, 0.1]},
        out=tmp_path / "python", **QUIET,
    )  # fmt: skip
    assert written(tmp_path / "python") == written(tmp_path / "command")
    assert found.added == ("separate", "fedavg") and list(found.methods) == ["ditto", "persfl", "separate", "fedavg"]
    for line in found.answer.splitlines():
        assert line in printed
    by_hand = [run.score["personal_accuracy"] for run in found.methods["ditto"].values()]
    row = next(row for row in found.table() if row["method"] == "ditto")
    assert row["accuracy"] == pytest.approx(np.mean(by_hand), abs=1e-9) and not row["added"]
    assert row["accuracy_standard_error"] == pytest.approx(np.std(by_hand, ddof=1) / np.sqrt(2), abs=1e-9)
    assert found.significance() == written(tmp_path / "command")["differences"]
    assert {"p", "p_holm", "significant", "method", "against"} <= found.significance()[0].keys()
    # PersFL chooses on validation data itself: it is scored on what was held back from it.
    assert {search.method: search.measure for search in found.searches}["persfl"] == "personal_held_accuracy"
    for search in found.searches:
        assert {run.manifest["local"]["lr"] for run in found.methods[search.method].values()} == {
            search.chosen["local.lr"]
        }


def test_what_is_shown(fed, capsys):
    found = pf.compare(fed, module(), ["fedavg", "separate"], seeds=1, **QUIET)
    found.show(Console(width=120))
    shown = capsys.readouterr().out
    assert found.answer and all(line in shown for line in found.answer.splitlines())
    assert all(row["label"] in shown and BY_KEY["accuracy"].write(row["accuracy"]) in shown for row in found.table())
    assert found.best in found.methods and found.winner in (None, *found.methods)
    assert len(found.runs) == 2


def test_equal_work(fed):
    found = pf.compare(fed, module(), [pf.PFedMe()], seeds=1, equal_work=True, **QUIET)
    gradients = [row["gradients"] for row in found.table()]
    assert max(gradients) <= 1.05 * min(gradients) and found.work.methods["fedavg"].changed


# --- searching


def test_a_search_never_looks_at_test_data(fed, tmp_path):
    y = fed.y.clone()
    for start, end in fed.bounds[:, 2:]:
        y[start:end] = (y[start:end] + 1) % 10
    other = replace(fed, y=y)
    search = {"local.lr": [1e-6, 0.3, 0.01], "ditto.lam": np.array([0.1, 10.0])}
    mine, theirs = (pf.compare(data, module(), ["ditto"], seeds=1, search=search, **QUIET) for data in (fed, other))
    for one, two in zip(mine.searches, theirs.searches, strict=True):
        assert one.chosen == two.chosen and one.chosen["local.lr"] != 1e-6
        assert [trial.score for trial in one.trials] == [trial.score for trial in two.trials]
    scores = [found.methods["ditto"][0].score["personal_accuracy"] for found in (mine, theirs)]
    assert scores[0] > 0.3 > scores[1]


# --- what is reused, and what is another run


def test_the_second_time_nothing_is_trained(fed, tmp_path):
    arguments = {"seeds": [4, 2], "out": tmp_path, **QUIET}
    first = pf.compare(fed, module(), {"my ditto / 0.5": pf.Ditto(lam=0.5)}, **arguments)
    before = times(tmp_path)
    again = pf.compare(fed, module(), {"my ditto / 0.5": pf.Ditto(lam=0.5)}, **arguments)
    assert times(tmp_path) == before
    assert list(again.methods["my ditto / 0.5"]) == [4, 2]
    assert [run.path for run in again.runs] == [run.path for run in first.runs]
    one, two = (found.runs[0].personal(fed.ids[0]).state_dict() for found in (first, again))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)  # it knows its model


@dataclass(frozen=True)
class Halved(pf.FedAvg):
    """FedAvg under another name."""

    name = "halved"


def changed_code():
    """The same class name, another step."""

    @dataclass(frozen=True)
    class Halved(pf.FedAvg):
        name = "halved"

        def personal(self, own, sent):
            return sent["theta"] * 0.5

    Halved.__qualname__ = "Halved"
    return Halved()


def weaker(module):
    with torch.no_grad():
        next(module.parameters()).mul_(0.9)
    return module


def frozen(module):
    next(module.parameters()).requires_grad_(False)
    return module


OTHERS = {
    "other learning rate": {"local": pf.Local(steps=2, lr=0.2)},
    "other rounds": {"rounds": 4},
    "other weights": {"module": lambda: weaker(Scaled())},
    "other attribute": {"module": lambda: Scaled(2.0)},
    "frozen": {"module": lambda: frozen(Scaled())},
    "other loss": {"loss": smooth},
    "other function of the same name": {"loss": lambda outputs, y: smooth(outputs, y) * 2},
    "other metrics": {"metrics": {"mine": cross_entropy}},
    "other code": {"algorithm": changed_code()},
    "other data": {"federation": 1},
    "privacy": {"privacy": pf.Privacy(clip=1.0)},
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory, fed):
    folder = tmp_path_factory.mktemp("usual")
    return folder, halved(fed, folder)


def halved(fed, folder, module=Scaled, algorithm=None, **settings):
    torch.manual_seed(5)
    made = module()
    found = pf.compare(fed, made, [algorithm or Halved()], seeds=1, out=folder, **{**QUIET, **settings})
    return found.methods["halved"][0].path


@pytest.mark.parametrize("change", OTHERS)
def test_what_makes_a_run_another_run(usual, fed, change):
    folder, path = usual
    before = times(folder)
    settings = dict(OTHERS[change])
    data = federation(settings.pop("federation", 0))
    other = halved(data, folder, **settings)
    assert other != path and other.parent == path.parent
    assert before.items() <= times(folder).items()


def test_engine_and_label_are_no_part_of_a_run(usual, fed):
    folder, path = usual
    assert halved(fed, folder, engine="loop") == path
    assert halved(fed, folder, checkpoint_every=1) == path


def test_what_is_told_of_a_module_stays_the_same_while_it_is_used():
    made = Scaled()
    before = json.dumps(description(made))
    for _ in range(100):
        made(torch.zeros(2, 64))
    assert json.dumps(description(made)) == before


def test_a_function_of_the_seed_gives_fresh_starts_that_follow_from_the_seed(fed):
    starts = {}

    def start(seed):
        made = nn.Linear(64, 10)
        starts.setdefault(seed, []).append(made.weight.detach().clone())
        return made

    for _ in range(2):
        torch.manual_seed(np.random.randint(1000))
        pf.compare(fed, start, ["separate"], seeds=2, **{**QUIET, "rounds": 1})
    assert sorted(starts) == [0, 1] and not torch.equal(starts[0][0], starts[1][0])
    assert all(torch.equal(made[0], other) for made in starts.values() for other in made)


def test_stopped_and_called_again_it_goes_on(fed, tmp_path):
    stopped = []

    def start(seed):
        if seed == 1 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        return module(seed)

    arguments = {"seeds": 2, **QUIET}
    with pytest.raises(KeyboardInterrupt):
        pf.compare(fed, start, ["ditto"], out=tmp_path / "stopped", **arguments)
    done = times(tmp_path / "stopped")
    assert len({path.parent for path in done}) == 3
    pf.compare(fed, start, ["ditto"], out=tmp_path / "stopped", **arguments)
    assert done.items() <= times(tmp_path / "stopped").items()
    pf.compare(fed, start, ["ditto"], out=tmp_path / "whole", **arguments)
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


# --- folders


def test_the_report(fed, tmp_path):
    found = pf.compare(fed, module(), ["separate", "fedavg"], seeds=1, **QUIET)
    page = found.report(tmp_path / "mine.html")
    assert page == tmp_path / "mine.html" and "personafl report" in page.read_text()
    assert found.report().parent == found.folder


def test_a_temporary_folder_lives_as_long_as_the_comparison_or_one_of_its_runs(fed):
    found = pf.compare(fed, module(), ["separate", "fedavg"], seeds=1, **QUIET)
    folder, run = found.folder, found.methods["separate"][0]
    assert run.clients().num_rows == 6
    del found
    assert isinstance(run.personal(fed.ids[0]), nn.Module)
    del run
    assert not folder.exists()


# --- processes


@pytest.mark.slow
def test_several_at_once_are_the_same(fed, tmp_path):
    torch.manual_seed(0)
    own, settings = (
        Scaled(0.5),
        {"seeds": 2, "loss": smooth, "rounds": 2, "progress": False, "engine": "stacked", "threads": 1},
    )
    one = pf.compare(fed, own, ["separate", "fedavg"], out=tmp_path / "one", **settings)
    two = pf.compare(fed, own, ["separate", "fedavg"], out=tmp_path / "two", at_once=2, **settings)
    for run, twin in zip(one.runs, two.runs, strict=True):
        assert run.path.name == twin.path.name
        for file in ("clients.parquet", "rounds.jsonl", "models/personal.safetensors"):
            assert (run.path / file).read_bytes() == (twin.path / file).read_bytes()
    assert two.failures == []


def test_what_cannot_be_sent_to_a_process_is_said_in_one_line(fed):
    with pytest.raises(ConfigError, match="cannot be sent to another process") as caught:
        pf.compare(fed, module(), ["separate"], seeds=1, loss=lambda o, y: smooth(o, y), at_once=2, **QUIET)
    assert "\n" not in str(caught.value)


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"algorithms": ["dito"]}, "'dito' is unknown .did you mean 'ditto'"),
        ({"algorithms": []}, "algorithms is empty"),
        ({"algorithms": [3]}, "give an algorithm such as"),
        ({"algorithms": [pf.Ditto]}, "algorithm is the class Ditto"),
        ({"algorithms": [pf.Ditto(lam=1.0), pf.Ditto(lam=2.0)]}, "several methods called 'ditto': give each a label"),
        ({"algorithms": {"": pf.Ditto()}}, "no label"),
        ({"algorithms": {"fedavg": pf.Ditto()}}, "what others are measured against"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": []}, "seeds = "),
        ({"seeds": [1, 1]}, "seeds = "),
        ({"seeds": [-1]}, "seeds = "),
        ({"seeds": 1.5}, "seeds = 1.5"),
        ({"search": {"fedprox.mu": [1.0]}}, "'fedprox' is not local, nor one of the methods"),
        ({"search": {"model.hidden": [1]}}, "'model' is not local"),
        ({"search": {"local": [1]}}, "cannot be searched"),
        ({"search": {"local.lrr": [1.0]}}, "unknown key 'local.lrr' .did you mean 'local.lr'"),
        ({"search": {"ditto.lamb": [1.0]}}, "unknown key 'algorithm.lamb'"),
        ({"search": {"local.lr": 0.1}}, "must be a list of values"),
        ({"search": {"local.lr": []}}, "must be a list of values"),
        ({"search": {"ditto.lam": ["much"]}}, "algorithm.lam = 'much'"),
        ({"search": {"local.lr": [-1.0]}}, "local.lr"),
        ({"search": {"local.lr": [1.0]}, "search_seeds": 2, "seeds": 1}, "at most the 1 seed"),
        ({"module": nn.Linear}, "module = .*must be a Module, or a function"),
        ({"module": lambda seed: seed}, "must be a Module"),
        ({"federation": "digits"}, "federation is 'digits'"),
        ({"ronds": 3}, "unknown key 'ronds' .did you mean 'rounds'"),
    ],
)
def test_mistakes_are_one_clear_line_before_anything_runs(fed, tmp_path, arguments, says):
    given = {"federation": fed, "module": module(), "algorithms": ["ditto"], **arguments}
    with pytest.raises(ConfigError, match=says) as caught:
        pf.compare(given.pop("federation"), given.pop("module"), given.pop("algorithms"), out=tmp_path, progress=False,
                   **given)  # fmt: skip
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*/run.toml"))


def test_a_module_that_does_not_fit_the_data_is_said(fed):
    with pytest.raises(RunError, match=r"every run failed, .*Linear fails on a batch"):
        pf.compare(fed, nn.Linear(3, 10), ["fedavg"], seeds=1, **QUIET)
