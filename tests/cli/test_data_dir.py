"""Facts about --data-dir: it names the user's directory for one command, before the environment variable does."""

import json
import os

import numpy as np
import pytest
from typer.testing import CliRunner

from personafl.cli import app
from personafl.errors import DataError


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """A config that needs letters, and a directory that has some."""
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    x, y = rng.integers(0, 256, (60, 16), np.uint8), rng.permutation(60).astype(np.uint8) % 26
    np.savez(tmp_path / "data" / "ocr_letters.npz", x=x, y=y)
    config = tmp_path / "letters.toml"
    config.write_text('rounds = 1\ndata = "letters"\npartition = {name = "iid", clients = 3}\nengine = "loop"\n')
    return config


def test_the_named_directory_is_read(letters):
    command = ["run", str(letters), "--out", str(letters.parent / "run"), "--json"]
    without = CliRunner().invoke(app, command)
    assert isinstance(without.exception, DataError) and "ocr_letters.npz" in str(without.exception)
    done = CliRunner().invoke(app, [*command, "--data-dir", str(letters.parent / "data")])
    assert done.exit_code == 0 and json.loads(done.stdout)["run"] == str(letters.parent / "run")
    assert os.environ["PERSONAFL_DATA"] == str(letters.parent / "data")


@pytest.mark.parametrize("command", [["run", "letters.toml"], ["reproduce", "selffl-synthetic"]])
def test_a_directory_that_is_not_there_is_named_with_the_option(letters, command):
    done = CliRunner().invoke(app, [*command, "--data-dir", str(letters.parent / "nowhere")])
    assert isinstance(done.exception, DataError)
    assert str(done.exception) == f"--data-dir names {letters.parent / 'nowhere'}, which is not a directory"
