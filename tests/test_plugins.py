"""Facts about plug-ins: what an installed package names is there by name, and what strangers name is never imported."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import tomli_w

from personafl.algorithms import ALGORITHMS
from personafl.backends.flower.job import JobDescription
from personafl.data import PARTITIONS, SOURCES
from personafl.errors import ConfigError, PluginError, RunError
from personafl.models import MODELS
from personafl.registry import Registry
from personafl.runs.run import load_run
from tests.cli.test_cli import Shell
from tests.installed_packages import write_packages

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="commands run in forked processes")

BY_NAME = {
    "rounds": 2,
    "checkpoint_every": 1,
    "local": {"steps": 2},
    "engine": {"name": "loop", "threads": 1},
    "data": {"name": "blobs", "samples": 60},
    "partition": {"name": "rows", "clients": 3},
    "model": {"name": "tiny", "width": 5},
    "algorithm": {"name": "mine", "strength": 0.25},
}
CLASSES = {
    "data": "orchard.data:Blobs",
    "partition": "orchard.data:Rows",
    "model": "orchard.nets:Tiny",
    "algorithm": "orchard.methods:Quiet",
}
BY_CLASS = {**BY_NAME, **{key: {**BY_NAME[key], "name": path} for key, path in CLASSES.items()}}
BY_CLASS["algorithm"] = {"name": CLASSES["algorithm"]}
EVIL = "evil.module:Thing"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with installed packages, of which some are spoilt."""
    folder = tmp_path_factory.mktemp("site")
    write_packages(folder)
    return folder


@pytest.fixture(scope="module")
def trap(site):
    """What exists when something has imported evil.module."""
    return site / "trap"


@pytest.fixture(scope="module")
def path(site):
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def personafl(path, trap):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("TRAP", str(trap))
        shell = Shell()
    yield shell
    shell.close()


def forget():
    """What the registries of this process have found on its path."""
    for registry in (ALGORITHMS, SOURCES, PARTITIONS, MODELS):
        vars(registry).pop("_found", None)
        registry._loaded.clear()


@pytest.fixture
def here(site, trap, monkeypatch):
    """The same packages in this process."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("TRAP", str(trap))
    before = set(sys.modules)
    forget()
    yield site
    forget()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("orchard", "weeds", "moss", "evil"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def runs(personafl, tmp_path_factory):
    """A run by names, one by classes."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in (("by-name", BY_NAME), ("by-class", BY_CLASS)):
        (folder / f"{name}.toml").write_text(tomli_w.dumps(settings))
        done = personafl("run", f"{name}.toml", "--out", name, cwd=folder)
        assert done.returncode == 0, done.stderr
    np.savez(folder / "newcomer.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    return folder


def assert_one_line(done, *parts):
    assert done.returncode == 2, done.stderr
    assert re.fullmatch("error: [^\n]*\n", done.stderr), done.stderr
    for part in parts:
        assert part in done.stderr


def manifest(folder):
    return tomllib.loads((folder / "run.toml").read_text("utf-8"))


# --- by name, and by class


@pytest.mark.parametrize(
    ("what", "name"), [("algorithms", "mine"), ("data", "blobs"), ("partitions", "rows"), ("models", "tiny")]
)
def test_what_a_package_brings_is_listed(personafl, what, name):
    rows = {row["name"]: row for row in json.loads(personafl("list", what, "--json").stdout)}
    assert rows[name]["settings"] and rows[name]["about"]
    assert personafl("list", what, name).returncode == 0


def test_a_package_may_have_a_list_and_commands(personafl):
    assert json.loads(personafl("list", "fruits", "--json").stdout)[1] == {"name": "pear", "colour": "green"}
    assert personafl("pick", "apple", "--many", "3").stdout == "3 apple\n"
    assert personafl("tools", "ladder").stdout == "a ladder\n"
    asked = {"_PERSONAFL_COMPLETE": "complete_bash"}
    assert personafl(**asked, COMP_WORDS="personafl pi", COMP_CWORD="1").stdout.split() == ["pick"]


def test_run_by_name(runs):
    made = manifest(runs / "by-name")
    assert made["algorithm"] == {"name": "mine", "class": "orchard.methods:Mine", "strength": 0.25} | {
        key: value for key, value in made["algorithm"].items() if key not in ("name", "class", "strength")
    }
    assert made["model"] == {"name": "tiny", "class": "orchard.nets:Tiny", "width": 5}
    assert made["data"] == {"name": "blobs", "class": "orchard.data:Blobs", "samples": 60}
    assert made["partition"] == {"name": "rows", "class": "orchard.data:Rows", "clients": 3}


def test_run_by_class_records_its_own_name_and_the_class(runs):
    made = manifest(runs / "by-class")
    assert {key: made[key]["class"] for key in CLASSES} == CLASSES
    assert [made[key]["name"] for key in CLASSES] == ["blobs", "rows", "tiny", "quiet"]


def test_a_run_by_class_goes_on(personafl, runs, tmp_path):
    folder = shutil.copytree(runs / "by-class", tmp_path / "by-class")
    arguments = ("run", runs / "by-class.toml", "--out", folder, "--resume", "-s", "rounds=3")
    done = personafl(*arguments)
    assert done.returncode == 0, done.stderr
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 3
    assert_one_line(
        personafl(*arguments, "-s", "algorithm.name=orchard.methods:Other"),
        "its algorithm.class is 'orchard.methods:Quiet', now it is 'orchard.methods:Other'",
    )


def test_compare_takes_names_classes_and_names_of_the_config(personafl, runs, tmp_path):
    settings = {**BY_NAME, "methods": {"still": {"algorithm": {"name": "orchard.methods:Quiet"}}}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps(settings))
    done = personafl("compare", "c.toml", "-a", "mine,orchard.methods:Quiet,still", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = {path.name.rsplit("-", 2)[0] for path in (tmp_path / "runs/c-compare").iterdir() if path.is_dir()}
    assert folders == {"mine", "orchard.methods-Quiet", "still", "separate", "fedavg"}


@pytest.mark.slow
def test_compare_in_several_processes(path, tmp_path):
    (tmp_path / "main.py").write_text(
        f"""
from pathlib import Path
from personafl.study.launch import run_plan
from personafl.study.plan import plan
from personafl.study.processes import Processes

if __name__ == "__main__":
    with Processes(2) as processes:
        found = run_plan(plan({BY_CLASS!r}, ["orchard.methods:Quiet"], seeds=1), Path("runs"), launcher=processes)
    assert not found.failures, found.failures
    print(*found.methods)
"""
    )
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["orchard.methods:Quiet", "separate", "fedavg"]


def test_newcomers_of_a_run_by_name(personafl, runs, tmp_path):
    done = personafl("personalize", runs / "by-name", runs / "newcomer.npz", "--out", tmp_path / "m.safetensors")
    assert done.returncode == 0, done.stderr


def test_newcomers_of_a_run_by_class_need_the_class(personafl, runs, tmp_path, here):
    done = personafl("personalize", runs / "by-class", runs / "newcomer.npz", "--out", tmp_path / "m.safetensors")
    assert_one_line(done, "orchard.methods:Quiet", "algorithm=…")
    from orchard.methods import Quiet
    from orchard.nets import Tiny

    module = Tiny(width=5).build((3,), 2)
    run = load_run(runs / "by-class", algorithm=Quiet(), module=module)
    assert run.personalize(np.zeros((20, 3), np.float32), np.arange(20) % 2)(module[1].weight.detach()).shape == (5, 2)


# --- what cannot be used


def test_spoilt_plugins_are_listed_with_the_reason(personafl, trap):
    done = personafl("list", "algorithms", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert "a_module_that_nobody_has" in rows["broken"]["error"] and "weeds-farm" in rows["broken"]["error"]
    assert "SystemExit: 7" in rows["leaving"]["error"]
    assert "orchard-farm" in rows["twin"]["error"] and "moss-farm" in rows["twin"]["error"]
    assert "calls itself 'quiet'" in rows["misnamed"]["error"]
    shown = personafl("list", "algorithms")
    assert shown.returncode == 0 and "mine" in shown.stdout and "a_module_that_nobody_has" in shown.stderr
    assert "the name is personafl's own" in shown.stderr and not trap.exists()


@pytest.mark.parametrize(
    ("name", "parts"), [("broken", ["weeds-farm", "nobody_has"]), ("twin", ["orchard-farm", "moss-farm"])]
)
def test_spoilt_plugins_break_their_own_use_alone(personafl, runs, name, parts):
    assert_one_line(personafl("run", runs / "by-name.toml", "-s", f"algorithm.name={name}"), *parts)


def test_a_spoilt_command_is_named_and_the_others_work(personafl, trap):
    shown = personafl("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    text = " ".join(shown.stdout.split())
    assert "spoilt cannot be used" in text and "weeds-farm" in text and "nobody_has" in text
    assert "Pick fruit [ripe ones]." in text and "Tools of the orchard." in text
    assert_one_line(personafl("spoilt", "now", "--fast"), "nobody_has")
    assert_one_line(personafl("number"), "number", "weeds-farm")
    assert_one_line(personafl("list", "spoilt"), "nobody_has")
    assert "Train what a config describes." in personafl("run", "--help").stdout
    assert not trap.exists()


@pytest.mark.parametrize(
    ("registry", "path", "said"),
    [
        (ALGORITHMS, "orchard.methods:Thawed", "has settings (strength) and is not a dataclass itself"),
        (ALGORITHMS, "orchard.methods:Nothing", "Nothing is not a subclass of Algorithm"),
        (ALGORITHMS, "orchard.methods:Slash", "not '../slash'"),
        (ALGORITHMS, "orchard.methods:dataclass", "it is not a class but a function"),
        (ALGORITHMS, "orchard.methods:Absent", "has no attribute 'Absent'"),
        (ALGORITHMS, "orchard.absent:Mine", "No module named 'orchard.absent'"),
        (ALGORITHMS, ":", "cannot be imported"),
        (SOURCES, "orchard.data:Load", "Load is not a frozen dataclass: write @dataclass(frozen=True)"),
        (SOURCES, "orchard.data:Rows", "Rows has no structure, splits, load"),
        (PARTITIONS, "orchard.data:Blobs", "Blobs has no __call__"),
        (MODELS, "orchard.nets:NoBuild", "NoBuild has no build"),
    ],
)
def test_a_class_that_does_not_do_is_told_why(here, registry, path, said):
    with pytest.raises(PluginError, match=re.escape(said)):
        registry.resolve(path)


def test_settings_that_cannot_be_checked_are_one_line(personafl, runs):
    done = personafl("run", runs / "by-name.toml", "-s", "algorithm.name=orchard.methods:Odd")
    assert_one_line(done, "the settings of orchard.methods:Odd cannot be checked")


# --- what strangers say


def poisoned(runs, to, **tables):
    """A stranger's run folder: a finished run with other words in run.toml."""
    folder = shutil.copytree(runs / "by-name", to)
    made = manifest(folder)
    for key, value in tables.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) else value
    (folder / "run.toml").write_text(tomli_w.dumps(made))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        {key: {"name": EVIL} for key in CLASSES},
        {key: {"class": EVIL} for key in CLASSES},
        {key: {"name": "fedavg" if key == "algorithm" else "mlp", "class": EVIL} for key in ("algorithm", "model")},
    ],
)
def test_no_command_imports_what_a_run_folder_names(personafl, runs, trap, tmp_path, words):
    folder = poisoned(runs, tmp_path / "strange", **words)
    done = {
        "report": personafl("report", folder),
        "watch": personafl("watch", folder),
        "gain": personafl("gain", folder),
        "export": personafl("export", folder, "--all", "--format", "torch"),
        "personalize": personafl("personalize", folder, runs / "newcomer.npz"),
    }
    assert not trap.exists()
    assert all(each.returncode in (0, 2) and "Traceback" not in each.stderr for each in done.values()), done
    assert_one_line(done["export"], "module=…")
    assert_one_line(done["personalize"], "algorithm=…")


def test_a_run_folder_without_tables_is_damaged(personafl, runs, trap, tmp_path):
    folder = poisoned(runs, tmp_path / "strange", algorithm=EVIL, model=EVIL, data=EVIL)
    for command in (("report",), ("gain",), ("export", "--all")):
        assert_one_line(personafl(*command, folder), "run.toml is damaged: algorithm =")
    assert not trap.exists()


def test_a_config_does_import_what_it_names(personafl, runs, trap):
    """So the trap works."""
    assert_one_line(personafl("run", runs / "by-name.toml", "-s", f"algorithm.name={EVIL}"), "is not a subclass")
    assert trap.exists()
    trap.unlink()


def test_opening_a_run_folder_imports_nothing(here, trap, runs, tmp_path):
    run = load_run(poisoned(runs, tmp_path / "strange", algorithm={"name": EVIL}, model={"name": EVIL}))
    with pytest.raises(RunError, match="algorithm=…"):
        _ = run.algorithm
    with pytest.raises(RunError, match="module=…"):
        _ = run.task
    assert not trap.exists() and "evil.module" not in sys.modules


def test_a_name_that_another_package_has_is_not_taken_for_the_class(here, runs, tmp_path):
    table = {"name": "mlp", "class": "orchard.nets:MLP", "hidden": [5], "width": None}
    made = poisoned(runs, tmp_path / "strange")
    values = manifest(made)
    values["model"] = {key: value for key, value in table.items() if value is not None}
    (made / "run.toml").write_text(tomli_w.dumps(values))
    with pytest.raises(RunError, match=r"here the name stands for personafl\.models"):
        _ = load_run(made).task


def test_a_site_imports_nothing_that_an_operator_names(here, trap):
    job = JobDescription(0, {"name": EVIL}, {"name": EVIL}, {}, (3,), 2, 2, 3, None, "")
    for make in (job.make_algorithm, lambda job=job: job.make_model("s1", None)):
        with pytest.raises(ConfigError, match="is unknown"):
            make()
    job = JobDescription(0, {"name": "x", "class": EVIL}, {"class": EVIL}, {}, (3,), 2, 2, 3, None, "")
    for make in (job.make_algorithm, lambda job=job: job.make_model("s1", None)):
        with pytest.raises(ConfigError):
            make()
    assert not trap.exists() and "evil.module" not in sys.modules


def test_a_site_and_a_federation_go_by_names(here, trap, tmp_path):
    pytest.importorskip("flwr")
    from personafl.backends.flower.app import read_operator
    from personafl.backends.flower.site_data import read_site

    (tmp_path / "site.toml").write_text(f'id = "a"\ndata = "a.npz"\nfolder = "."\nallow = ["{EVIL}"]\n')
    with pytest.raises(ConfigError, match="among the algorithms"):
        read_site(tmp_path / "site.toml")
    operator = tmp_path / "federation.toml"
    operator.write_text(
        'algorithm = "orchard.methods:Quiet"\n[federation]\nclients = ["a"]\ninput_shape = [3]\nclasses = 2\n'
    )
    with pytest.raises(ConfigError, match="sites take nothing but names"):
        read_operator(operator)
    assert not trap.exists()


# --- the registry itself


def test_names_of_packages_are_looked_up_when_asked_for(here):
    found = Registry("algorithm", "personafl.algorithms", [])
    assert "orchard" not in sys.modules
    assert {"mine", "broken", "twin"} <= set(found) and len(found) == len(list(found))
    assert "orchard" not in sys.modules
    assert found.name_of(found["mine"]) == "mine"


@pytest.mark.parametrize(
    "module, old, new",
    [
        ("personafl", "Apfl", "APFL"),
        ("personafl.algorithms", "HeurFedAmp", "HeurFedAMP"),
        ("personafl.data", "Mnist", "MNIST"),
        ("personafl.data.partitions", "Iid", "IID"),
        ("personafl.models", "Mlp", "MLP"),
    ],
)
def test_old_spellings_are_known_and_warn(module, old, new):
    module = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="Nobody"):
        getattr(module, "Nobody")  # noqa: B009
