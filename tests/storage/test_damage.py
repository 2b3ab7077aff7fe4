"""Files of a run that are damaged: nothing is lost in silence, and what can be made again is."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w

from personafl.config import parse
from personafl.errors import RunError
from personafl.jobs import train_config
from personafl.models.weights import load_weights
from personafl.runs.export import export
from personafl.runs.run import Run, load
from personafl.storage.folder import RunFolder
from personafl.training.events import Listener

SETTINGS = {
    "rounds": 8,
    "activity": 0.5,
    "eval_every": 1,
    "checkpoint_every": 2,
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "model": "mclr",
    "local": {"lr": 0.1, "steps": 2},
    "algorithm": "fedamp",  # which writes to evaluations/
    "engine": {"name": "loop", "threads": 1},
}


class PowerCut(BaseException):
    pass


class Cut(Listener):
    """Ends a process in the middle of a round: there are checkpoints of rounds 2 and 4, and records of round 5."""

    def round_ended(self, record, seconds):
        if record["round"] == 5:
            raise PowerCut


def train(folder, resume=True, listeners=(), **more):
    return train_config(parse({**SETTINGS, **more}), folder, resume, listeners)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that was cut, and one that was left alone."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.raises(PowerCut):
        train(folder / "cut", False, [Cut()])
    train(folder / "whole", False)
    return folder


@pytest.fixture
def cut(made, tmp_path):
    shutil.copytree(made / "cut", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def whole(made, tmp_path):
    shutil.copytree(made / "whole", tmp_path / "run")
    return tmp_path / "run"


def flip(path, share=0.5):
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_a_line(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:]))


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def into_a_folder(path):
    path.unlink()
    path.mkdir()


def contents(folder):
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    apart = ("run.toml", "timings.jsonl", ".timings", ".lock")
    return {name: path.read_bytes() for name, path in found.items() if not name.endswith(apart)}


def manifest(folder):
    return {k: v for k, v in tomllib.loads((folder / "run.toml").read_text()).items() if k != "created"}


def assert_whole(folder, made):
    """As if nothing had happened."""
    found, expected = contents(folder), contents(made / "whole")
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert manifest(folder) == manifest(made / "whole")
    timed = [record["round"] for record in RunFolder(folder).timings()]
    assert timed == list(range(1, 9))


def test_a_run_that_was_cut_ends_as_one_that_was_not(cut, made):
    train(cut)
    assert_whole(cut, made)


# --- before going on


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
@pytest.mark.parametrize(
    "damage", [lambda path: flip(path, 0.1), lambda path: path.write_bytes(path.read_bytes()[:50]), lose_a_line, remove]
)
def test_records_that_no_checkpoint_can_do_without_end_it_with_one_line(cut, name, damage):
    damage(cut / name)
    before = contents(cut)
    with pytest.raises(
        RunError, match=rf"cannot go on, because .*run/{name} .*: put back a copy of it, or delete"
    ) as e:
        train(cut)
    assert "\n" not in str(e.value)
    assert contents(cut) == before  # nothing was touched


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_records_between_two_checkpoints_are_made_again_from_the_older(cut, made, name, caplog):
    flip(cut / name, 0.7)  # in round 4
    train(cut)
    assert f"{name} does not match its checksum): using the one before it" in caplog.text
    assert_whole(cut, made)


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_records_after_the_checkpoint_may_be_anything(cut, made, name):
    shorten_last = (cut / name).read_bytes()[:-20]
    (cut / name).write_bytes(shorten_last + b"\x00\xff")
    train(cut)
    assert_whole(cut, made)


@pytest.mark.parametrize("damage", [flip, shorten, remove])
def test_an_evaluation_that_no_checkpoint_can_do_without_ends_it_with_one_line(cut, damage):
    part = cut / "clients.parts" / "round-000001.parquet"
    damage(part)
    with pytest.raises(RunError, match=rf"cannot go on, because {part} is damaged or missing: put back a copy of it"):
        train(cut)


@pytest.mark.parametrize("name", ["clients.parts/round-000004.parquet", "evaluations/round-000004.safetensors"])
@pytest.mark.parametrize("damage", [flip, shorten, remove])
def test_an_evaluation_between_two_checkpoints_is_made_again(cut, made, name, damage):
    damage(cut / name)
    train(cut)
    assert_whole(cut, made)


@pytest.mark.parametrize("what", ["clients.parts", "clients.parts/index.jsonl"])
def test_evaluations_that_are_gone_are_noticed(cut, what):
    remove(cut / what)
    with pytest.raises(
        RunError, match=r"cannot go on, because .*clients.parts has 0 evaluations up to round 4, 4 were"
    ):
        train(cut)


def test_without_checkpoints_it_trains_from_the_beginning(cut, made):
    remove(cut / "rounds.jsonl")
    remove(cut / "checkpoint")
    train(cut)
    assert_whole(cut, made)


@pytest.mark.parametrize("name", ["round-000004.json", "round-000004.safetensors", "clients-000004.safetensors"])
def test_a_folder_in_the_place_of_a_checkpoint_is_no_obstacle(cut, made, name):
    into_a_folder(cut / "checkpoint" / name)
    train(cut)
    remove(cut / "checkpoint" / f"damaged-{name}")
    assert_whole(cut, made)


def test_a_run_of_an_earlier_version_goes_on(cut, made):
    """It has neither checksums of records nor an index of evaluations."""
    remove(cut / "clients.parts" / "index.jsonl")
    for path in (cut / "checkpoint").glob("round-*.timings"):
        path.unlink()
    for path in (cut / "checkpoint").glob("round-*.json"):
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "files"}))
    train(cut)
    assert_whole(cut, made)


# --- after the end


def client(run):
    return run.clients().column("client")[0].as_py()


def test_run_toml_names_what_is_there(whole):
    files = manifest(whole)["files"]
    assert set(files) == {
        "rounds.jsonl", "clients.parquet", "predictions.parquet", "evaluations", "models/personal.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("damage", [flip, shorten])
def test_a_damaged_model_is_not_handed_out(whole, tmp_path, damage):
    damage(whole / "models" / "personal.safetensors")
    run = load(whole)
    with pytest.raises(
        RunError, match=r"models/personal.safetensors is damaged: .* put back a copy of it, or continue"
    ):
        export(run, [client(run)], tmp_path / "exported")
    assert not list((tmp_path / "exported").glob("*.safetensors"))


def test_a_damaged_model_is_not_where_anything_starts_from(tmp_path):
    run = train(tmp_path / "run", False, rounds=1, algorithm="fedavg")
    flip(run.path / "models" / "global.safetensors")
    for use in (run.global_model, lambda: load_weights(run.task.template, run.path / "models" / "global.safetensors")):
        with pytest.raises(RunError, match=r"models/global.safetensors is damaged"):
            use()


@pytest.mark.parametrize("damage", [flip, shorten, remove])
def test_going_on_makes_damaged_models_again(whole, made, damage):
    damage(whole / "models" / "personal.safetensors")
    train(whole)
    assert_whole(whole, made)


@pytest.mark.parametrize("name", ["clients.parquet", "rounds.jsonl", "predictions.parquet"])
def test_damaged_tables_are_not_read(whole, name):
    flip(whole / name)
    run = Run(whole)
    with pytest.raises(RunError, match=rf"{name} is damaged: it does not match its checksum in run.toml"):
        run.clients(), run.rounds(), run.predictions()


@pytest.mark.parametrize("name", ["clients.parquet", "rounds.jsonl", "evaluations/round-000001.safetensors"])
def test_a_finished_run_with_damaged_tables_does_not_go_on(whole, name):
    flip(whole / name)
    with pytest.raises(RunError, match=rf"cannot go on, because .*{name.partition('/')[0]}"):
        train(whole)


def test_a_finished_run_of_an_earlier_version_is_readable(whole):
    old = tomllib.loads((whole / "run.toml").read_text())
    del old["files"]
    (whole / "run.toml").write_text(tomli_w.dumps(old))
    flip(whole / "models" / "personal.safetensors", 0.9)  # nobody can know
    run = load(whole)
    assert len(run.rounds()) == 8
    assert all(np.isfinite(p.detach().numpy()).all() for p in run.personal(client(run)).parameters())


def test_a_line_that_is_being_written_is_no_error_while_a_run_goes_on(cut):
    with open(cut / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 6, "act')
    assert [record["round"] for record in Run(cut).rounds()] == [1, 2, 3, 4, 5]
