"""Facts about `personafl partition`: it tells what a config divides, draws it where asked to, and trains nothing."""

import json

import pytest
from typer.testing import CliRunner

from personafl.cli import app
from personafl.errors import ConfigError, DataError


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('seed = 3\ndata = "digits"\n[partition]\nname = "ds1"\n')
    return file


def partition(*words):
    return CliRunner().invoke(app, ["partition", *map(str, words)], env={"COLUMNS": "80"})


def test_the_summary_is_for_people(config):
    done = partition(config)
    assert done.exit_code == 0
    words = " ".join(done.stdout.split())
    for said in (
        "clients 10",
        "classes a client min 4, median 4, mean 4, max 4",
        "dealt at random it would be",
        "Note:",
    ):
        assert said in words
    assert [path.name for path in config.parent.iterdir()] == ["mine.toml"]


def test_json_is_alone_and_overrides_count(config):
    made = json.loads(partition(config, "--json", "-s", "partition.clients=5", "-s", "splits=[0.5,0,0.5]").stdout)
    assert made["clients"] == 5 and made["classes_per_client"]["max"] == 4 and made["plot"] is None
    assert made["shares"]["val"] == 0 and made["shares"]["train"] == pytest.approx(0.5, abs=0.01)
    first, other = (json.loads(partition(config, "--json", "-s", f"seed={seed}").stdout) for seed in (3, 4))
    assert first["heterogeneity"] != other["heterogeneity"]


def test_the_picture_lies_beside_the_config_or_where_it_is_asked_for(config):
    assert json.loads(partition(config, "--plot", "--json").stdout)["plot"] == str(
        config.with_name("mine-partition.png")
    )
    done = partition(config, "--plot")  # again: it is ours
    assert done.exit_code == 0 and "mine-partition.png" in done.stdout
    elsewhere = config.with_name("other.svg")
    assert partition(config, "--out", elsewhere).exit_code == 0 and elsewhere.stat().st_size > 1000


def test_mistakes_are_named_before_the_data_is_read(config):
    taken = config.with_name("mine-partition.png")
    taken.write_text("a letter")
    done = partition(config, "--plot", "-s", "data=mnist")
    assert isinstance(done.exception, DataError) and "exists and is not a picture" in str(done.exception)
    assert taken.read_text() == "a letter"
    for words, error, said in (
        (["-s", "partition.name=natural"], ConfigError, "does not know whose"),
        (["-s", "partition.name=ds5"], ConfigError, "did you mean"),
        (["-s", "partition.clients=9000"], DataError, "needs at least 36000 samples"),
        (["-s", "algorithm=nothing"], ConfigError, "algorithm"),
    ):
        done = partition(config, *words)
        assert isinstance(done.exception, error) and said in str(done.exception)
