"""Nobody but their owner can read what a federation and a run write, whatever the umask is."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from personafl.cli import app

ONE_STUDENT = {"temperatures": [1.0], "imitations": [0.5], "distill_epochs": 1}
CONFIG = """
seed = 1
rounds = 2
eval_every = 1
checkpoint_every = 1
algorithm = "{algorithm}"
model = "mclr"
data = "digits"
engine = "{engine}"
[partition]
name = "iid"
clients = 4
[local]
steps = 2
"""


@pytest.fixture(autouse=True)
def careless_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything in a folder, itself included, that others may read, write or enter."""
    found = [folder, *folder.rglob("*")]
    assert len(found) > 5
    modes = {path: path.lstat().st_mode for path in found if not path.is_symlink()}
    return {str(path): oct(stat.S_IMODE(mode)) for path, mode in modes.items() if mode & 0o077}


@pytest.mark.parametrize(("algorithm", "settings"), [("selffl", {}), ("persfl", ONE_STUDENT)])
def test_a_run_is_for_its_owner_alone(tmp_path, algorithm, settings):
    (tmp_path / "config.toml").write_text(CONFIG.format(algorithm=algorithm, engine="loop"))
    words = ["run", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    for name, value in settings.items():
        words += ["-s", f"algorithm.{name}={json.dumps(value)}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "models" / "personal.safetensors").exists()
    assert open_to_others(tmp_path / "run") == {}
    done = CliRunner().invoke(app, [*words, "-s", "rounds=3", "--resume"])
    assert done.exit_code == 0, done.output
    assert open_to_others(tmp_path / "run") == {}


def test_files_of_a_run_into_a_folder_that_is_open_are_not(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG.format(algorithm="fedavg", engine="loop"))
    (tmp_path / "run").mkdir(0o755)
    done = CliRunner().invoke(app, ["run", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert list(open_to_others(tmp_path / "run")) == [str(tmp_path / "run")]


def test_what_is_exported_follows_the_users_umask(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG.format(algorithm="fedavg", engine="loop"))
    run, out = tmp_path / "run", tmp_path / "out"
    for command in (["run", tmp_path / "config.toml", "--out", run], ["export", run, "--all", "--out", out]):
        done = CliRunner().invoke(app, [*map(str, command)])
        assert done.exit_code == 0, done.output
    # The library that writes safetensors makes files of mode 600, whatever it is asked.
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.glob("*.json")} == {0o644}


def test_what_init_writes_is_for_its_owner_alone(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from personafl.backends.deploy import init_federation

    layout = init_federation(tmp_path / "federation", ["north", "south"])
    assert open_to_others(layout.folder) == {}
    subprocess.run([layout.operator / "pack-sites.sh"], check=True, capture_output=True)
    assert open_to_others(layout.folder) == {}
    for unit in layout.folder.rglob("*.service"):
        assert "\nUMask=0077\n" in unit.read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_rehearsal_leaves_is_for_its_owner_alone(tmp_path):
    """The SuperLink's database, the copies of the data, logs, states, models, the report."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    from personafl.backends.deploy.rehearsal import find_nginx
    from tests.backends.deploy.live import write_data

    write_data(tmp_path / "data")
    command = [sys.executable, "-c", "from personafl.cli import main; main()", "deploy"]
    folder = tmp_path / "federation"
    subprocess.run([*command, "init", folder, "--sites", "north,south,west"], check=True, capture_output=True)
    more = [] if find_nginx() else ["--no-proxy"]
    done = subprocess.run(
        [*command, "up", folder, "--rounds", "1", "--data", tmp_path / "data", *more], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {"superlink.db", "data.npz", "report.html", "personal.safetensors", "orders.json"} <= {
        path.name for path in folder.rglob("*")
    }
    assert open_to_others(folder) == {}
