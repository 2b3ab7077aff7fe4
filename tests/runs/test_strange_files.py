"""Single things that strangers' folders and files did: each ends in one line that names the file, and soon."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import _out_of_memory, app
from personafl.cli.watch import _one
from personafl.config import parse
from personafl.errors import DataError, RunError
from personafl.federation.npz import read_npz
from personafl.federation.tabular_files import open_table
from personafl.jobs import train_config
from personafl.report.data import _made
from personafl.report.runs import find_runs
from personafl.runs.export import export, file_name
from personafl.runs.watch import Watch
from personafl.storage.unpacked import VARIABLE
from tests.runs.damage import copied, forget_checksums
from tests.runs.test_strangers_folders import OLD, SETTINGS, Cut, Stop, federation


@pytest.fixture
def old(tmp_path):
    """A run without checksums, as of an earlier version, which a stranger can write too."""
    folder = copied(OLD / "selffl", tmp_path / "run")
    change(folder, lambda manifest: manifest.pop("files"))
    return folder


def change(folder, how):
    manifest = tomllib.loads((folder / "run.toml").read_text())
    how(manifest)
    (folder / "run.toml").write_text(tomli_w.dumps(manifest))


def report(folder):
    return _made(find_runs([folder]))


def test_a_table_that_has_a_column_twice_is_named_by_whoever_resumes(tmp_path):
    out = tmp_path / "run"
    train_config(parse({**SETTINGS, "algorithm": "fedavg"}), out, federation=federation())
    table = pq.read_table(out / "clients.parquet")
    pq.write_table(table.append_column("n_test", table.column("n_test")), out / "clients.parquet")
    forget_checksums(out)
    with pytest.raises(RunError, match=r"clients.parquet cannot be read: it has the column 'n_test' twice"):
        train_config(parse({**SETTINGS, "algorithm": "fedavg", "rounds": 3}), out, True, federation=federation())


def test_a_run_that_forgot_why_it_took_its_engine_goes_on(tmp_path):
    config, out = parse({**SETTINGS, "algorithm": "fedavg"}), tmp_path / "run"
    whole = train_config(config, out, federation=federation())
    change(out, lambda manifest: manifest["resolved"].pop("engine_reason"))
    again = train_config(config, out, True, federation=federation())
    assert again.score == whole.score


def test_an_evaluation_that_is_a_link_to_nothing_is_named(tmp_path):
    """The run was cut before its last evaluation was merged."""
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train_config(parse({**SETTINGS, "algorithm": "fedavg"}), folder, False, [Cut()], federation())
    part = folder / "clients.parts" / "round-000002.parquet"
    part.unlink()
    part.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"round-000002.parquet cannot be read: it is not there"):
        pf.load_run(folder).clients()


def test_a_run_without_data_in_its_run_toml_is_watched(old):
    change(old, lambda manifest: manifest.pop("data"))
    watch = Watch([old])
    assert [str(_one(run)) for run in watch.look()]


@pytest.mark.parametrize(
    "name", ["run.toml", "rounds.jsonl", "timings.jsonl", "clients.parquet", "predictions.parquet"]
)
@pytest.mark.parametrize("what", ["pipe", "endless", "folder"])
def test_what_is_no_file_is_not_waited_for(old, name, what):
    (old / name).unlink()
    {"pipe": os.mkfifo, "endless": lambda p: p.symlink_to("/dev/zero"), "folder": os.mkdir}[what](old / name)
    with pytest.raises(RunError, match=name if name != "run.toml" else "run.toml"):
        report(old)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a" + ".a" * 100_000 + " = 1", "x = {a=" * 2000])
def test_deeply_nested_toml_is_one_line(old, text):
    (old / "run.toml").write_text(text)
    with pytest.raises(RunError, match=r"run\.toml cannot be read"):
        pf.load_run(old)


def test_deeply_nested_json_is_one_line(old):
    (old / "models" / "others.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match=r"others\.json cannot be read"):
        pf.load_run(old).personal("nobody")
    with (old / "rounds.jsonl").open("a") as file:
        file.write('{"a":' * 100_000 + "\n")
    assert len(pf.load_run(old).rounds()) == 3


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("model", "hidden", [100_000, 60_000]),
        ("resolved", "input_shape", [2**40]),
        ("resolved", "outputs", 10**9),
        ("model", "hidden", [10**9]),
    ],
)
def test_run_toml_cannot_make_export_take_memory(old, tmp_path, table, key, value):
    def how(manifest):
        manifest["model"] = {"name": "mlp", "hidden": [8]}
        manifest[table][key] = value

    change(old, how)
    with pytest.raises(RunError, match=r"run\.toml.*(parameters|input_shape|hidden)"):
        export(pf.load_run(old), ["client-1"], tmp_path / "out")


def test_a_large_label_takes_no_memory(old):
    path = old / "predictions.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "label", pa.array([10**9] * len(table), pa.int32())), path)
    assert "shares" not in report(old)["federations"][0]


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl", ".lock", "run.toml.partial"])
def test_a_dangling_link_leads_no_resumed_run_out_of_its_folder(tmp_path, name):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    train_config(parse({**SETTINGS, "algorithm": "fedavg"}), folder, federation=federation())
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(RunError, match="is a link"):
        train_config(parse({**SETTINGS, "algorithm": "fedavg", "rounds": 3}), folder, True, federation=federation())
    assert not outside.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_wide_data_takes_no_quadratic_time(tmp_path, kind):
    """Eight times as many columns: 8 times as long in proportion, 64 times by the square."""

    def seconds(columns):
        table = {"client": ["a", "b"] * 6, "y": [0, 1] * 6, **{f"c{k}": np.arange(12.0) for k in range(columns)}}
        path = tmp_path / f"{columns}.{kind}"
        if kind == "csv":
            rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
            path.write_text("\n".join([",".join(table), *rows]))
        else:
            pq.write_table(pa.table(table), path)
        taken = []
        for _ in range(2):
            begun = time.process_time()
            pf.Federation.from_table(path, client="client", label="y")
            taken.append(time.process_time() - begun)
        return min(taken)

    assert seconds(16_000) < 25 * seconds(2_000)


def test_a_wide_table_of_a_run_is_refused(old):
    table = pq.read_table(old / "clients.parquet")
    wide = pa.table({**{n: table.column(n) for n in table.column_names}, **{f"c{k}": [0.0] * 12 for k in range(5000)}})
    pq.write_table(wide, old / "clients.parquet")
    with pytest.raises(RunError, match=r"clients\.parquet.*columns"):
        report(old)


@pytest.mark.parametrize("kind", ["npz", "csv.gz", "parquet", "texts"])
def test_what_a_small_file_unpacks_to_is_bounded_before_it_is_read(tmp_path, monkeypatch, kind):
    monkeypatch.setenv(VARIABLE, "1")
    many = 1_000_000
    if kind == "npz":
        np.savez_compressed(path := tmp_path / "a.npz", x=np.zeros(many, np.float32))
    elif kind == "csv.gz":
        (path := tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * many))
    else:
        column = pa.array(np.zeros(many)) if kind == "parquet" else pa.array(["x" * 3000] * 1000)
        pq.write_table(pa.table({"a": column, "b": column}), path := tmp_path / "a.parquet")
    assert path.stat().st_size < 40_000

    def read():
        if kind == "npz":
            return len(read_npz(path, {"x": None}, "f")["x"])
        return sum(len(batch) for batch in open_table(path).read(["a", "b"], [] if kind == "texts" else ["a", "b"]))

    with pytest.raises(DataError, match=f"unpack to .* allow it with {VARIABLE}="):
        read()
    monkeypatch.setenv(VARIABLE, "100")
    assert read() == (1000 if kind == "texts" else many)


def test_markup_in_the_name_of_a_client_is_text(old):
    for name in ("clients.parquet", "predictions.parquet"):
        table = pq.read_table(old / name)
        names = [f"[/bold]{client}" for client in table.column("client").to_pylist()]
        pq.write_table(table.set_column(0, "client", pa.array(names)), old / name)
    done = CliRunner().invoke(app, ["gain", str(old)], catch_exceptions=False)
    assert done.exit_code == 0 and "[/bold]" in done.output


def test_a_long_name_has_a_file_that_can_be_written(tmp_path):
    long = "y" * 5000
    assert len(file_name(long)) == 200 and file_name(long) != file_name(long + "y") and file_name("ann") == "ann"
    data = {
        long: (np.zeros((20, 4), np.float32), np.arange(20) % 2),
        "b": (np.ones((20, 4), np.float32), np.arange(20) % 2),
    }
    run = train_config(
        parse({**SETTINGS, "algorithm": "fedavg"}), tmp_path / "run", federation=pf.Federation.from_clients(data)
    )
    (made,) = export(run, [long], tmp_path / "out")
    assert json.loads(made.with_suffix(".json").read_text())["client"] == long


@pytest.mark.slow
@pytest.mark.parametrize(
    "take", ["bytearray(1 << 60)", "__import__('torch').zeros(1 << 50)", "__import__('numpy').zeros(1 << 50)"]
)
def test_out_of_memory_is_one_line(take):
    code = f"import personafl.cli as c; c.app = lambda *a, **k: {take}; c.main()"
    done = subprocess.run([sys.executable, "-c", code, "version"], capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "not enough memory" in done.stderr


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    assert _out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not _out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_the_error_names_file_and_field(old):
    change(old, lambda manifest: manifest["resolved"].pop("clients"))
    with pytest.raises(RunError, match=r"run\.toml is damaged: it lacks resolved\.clients"):
        pf.load_run(old)


def test_damage_follows_from_the_seed(tmp_path):
    from tests.runs.damage import damage

    said = [damage(copied(OLD / "selffl", tmp_path / "run"), random.Random(7)) for _ in range(2)]
    assert said[0] == said[1]


RESAVED = """
import sys
from pathlib import Path
from personafl.storage.unpacked import parquet_table

path = Path(sys.argv[1])
whole, read = path.read_bytes(), 0
for at in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole)):
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(sys.argv[2])]) + whole[at + 1 :])
    try:
        parquet_table(path)
        read += 1
    except Exception:
        pass
print(read)
"""


@pytest.mark.parametrize("bit", [0, 2])
@pytest.mark.parametrize("lists", [False, True])
def test_no_flipped_bit_of_what_a_table_says_of_itself_ends_the_process(tmp_path, bit, lists):
    """pyarrow calls abort() where what is said of a column makes no sense and somebody looks at it."""
    table = {"client": ["a", "b", "c"], "n_test": [1, 2, 3], "loss": [0.1, 0.2, None]}
    table |= {"more": [[1], [2, 3], []]} if lists else {}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    command = [sys.executable, "-c", RESAVED, str(tmp_path / "a.parquet"), str(bit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) > 0) != lists


@pytest.mark.parametrize(
    "key", ["resolved.input_shape", "resolved.input_dtype", "resolved.outputs", "resolved.classes", "local", "versions"]
)
def test_what_run_toml_lacks_of_a_model_is_named_by_whoever_needs_it(old, tmp_path, key):
    table, _, name = key.rpartition(".")
    change(old, lambda manifest: (manifest[table] if table else manifest).pop(name))
    run, damaged = pf.load_run(old), 0
    x, y = np.zeros((6, 64), np.float32), np.arange(6) % 2
    for use in (
        lambda: run.personal("client-1"),
        lambda: run.personalize(x, y),
        lambda: export(run, ["client-1"], tmp_path / "out"),
    ):
        try:
            use()
        except RunError as error:
            assert str(error) == f"{old / 'run.toml'} is damaged: it lacks {key}"
            damaged += 1
    assert damaged


def test_a_run_whose_metrics_are_gone_says_what_it_is(tmp_path):
    run = train_config(parse({**SETTINGS, "algorithm": "fedavg"}), tmp_path / "run", federation=federation())
    change(run.path, lambda manifest: manifest["resolved"].update(metrics={}))
    assert repr(pf.load_run(run.path)).startswith("Run of fedavg: 2 of 2 rounds")


def test_a_score_that_is_null_is_left_out(old):
    lines = [json.loads(line) for line in (old / "rounds.jsonl").read_text().splitlines()]
    lines[-1]["personal_accuracy"] = None
    (old / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = pf.load_run(old)
    assert "personal_accuracy" not in run.score and "personal_loss" in run.score
    assert "personal_loss" in repr(run) and "personal_accuracy" not in repr(run)
