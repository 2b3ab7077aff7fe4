"""`personafl reproduce` on a table that takes a second: searches, stages, what is reused, what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from personafl import cli
from personafl.errors import RunError
from personafl_papers import tables
from personafl_papers.tables import availability
from personafl_papers.tables.claims import Claim, above
from personafl_papers.tables.measures import columns, over_rounds
from personafl_papers.tables.table import Found, Measured, Part, Table, planned, with_settings
from tests.waiting import until

CONFIG = {
    "rounds": 3, "eval_every": 1, "splits": [0.5, 0.2, 0.3], "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5}, "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "steps": 3, "batch_size": 10}, "engine": {"name": "stacked", "threads": 1},
}  # fmt: skip
ROWS = {"fedavg": "FedAvg", "ditto": "Ditto"}


def search(found: Found):
    return [("search", planned(CONFIG, {"ditto": {}}, found.seeds(1, 1), {"ditto": {"algorithm.lam": [0.1, 1.0]}}))]


def train(found: Found):
    own = with_settings({}, found.chosen("search", "ditto"))
    return [("digits", planned(CONFIG, {"fedavg": {}, "ditto": own}, found.seeds(3)))]


def figures(measured: Measured):
    from personafl_papers.tables.figures import curves

    return {"figure1": (curves({"digits": measured.curves}, "accuracy, %"), "Accuracy over the rounds.")}


def measure(found: Found) -> Measured:
    return Measured(
        {"digits": columns(found.runs["digits"], ROWS, {"accuracy": "accuracy"})},
        over_rounds(found.runs["digits"], ROWS),
    )


SMALL = Table(
    about="Digits",
    paper="Ours",
    cost="a second",
    parts={"digits": Part("Digits", "Table 1", {"FedAvg": {"accuracy": 90.0}})},
    stages=(search, train),
    measure=measure,
    figures=figures,
    claims=(Claim("Ditto is above FedAvg", "Table 1", ("digits",), above("digits", "accuracy", "Ditto", ["FedAvg"])),),
)


@pytest.fixture(autouse=True)
def only_small(monkeypatch):
    needy = Table("Photographs", "Ours", "hours", {}, measure, data=("cifar10",))
    monkeypatch.setattr(tables, "TABLES", {"small": SMALL, "needy": needy})
    monkeypatch.delenv("PERSONAFL_DATA", raising=False)


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Where tests of this file share runs: what one of them has trained, the next finds there."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def command(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["personafl", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_what_is_written(command, studies):
    out = studies / "new" / "tables"
    code, told, said = command("reproduce", "small", "--out", out, "--at-once", 1)
    assert (code, said) == (0, "") and "FedAvg" in told and "Ditto is above FedAvg" in told
    assert {path.name for path in (out / "small").iterdir()} == {
        "results.json", "report.html", "figure1.png", "figure1.pdf",
    }  # fmt: skip
    value = json.loads((out / "small" / "results.json").read_text())
    assert value["command"] == "personafl reproduce small" and value["seeds"] == [0, 1, 2] and value["runs"] >= 6
    assert value["numbers"][0]["difference"] == pytest.approx(value["numbers"][0]["mean"] - 90.0)
    [searched] = value["searches"]
    scores = {trial["settings"]["algorithm.lam"]: trial["score"] for trial in searched["trials"]}
    assert searched["chosen"]["algorithm.lam"] == max(scores, key=scores.get)
    assert value["curves"]["Ditto"]["rounds"] == [1, 2, 3]
    chosen = searched["chosen"]["algorithm.lam"]
    final = [path / "run.toml" for path in (out / "runs").glob("ditto-2-*")]
    assert len(final) == 1 and f"lam = {chosen}" in final[0].read_text()


def test_the_same_command_trains_nothing_again_and_says_the_same(command, studies):
    command("reproduce", "small", "--quick", "--out", studies / "quick", "--at-once", 1)
    files = {path: path.stat().st_mtime_ns for path in (studies / "quick" / "runs").glob("*/*.parquet")}
    before = (studies / "quick" / "small" / "results.json").read_bytes()
    one = next(iter(files)).parent
    for rest in ("personal.safetensors", "global.safetensors"):  # as if it had been stopped in its last round
        (one / "models" / rest).unlink()
    code, _, _ = command("reproduce", "small", "--quick", "--out", studies / "quick", "--at-once", 1)
    after = {path: path.stat().st_mtime_ns for path in (studies / "quick" / "runs").glob("*/*.parquet")}
    assert code == 0 and files.keys() == after.keys()
    assert {path.parent for path in files if files[path] != after[path]} <= {one}
    now = json.loads((studies / "quick" / "small" / "results.json").read_text())
    assert now["numbers"] == json.loads(before)["numbers"] and now["claims"] == json.loads(before)["claims"]


def test_all_tables_whose_data_is_here(command, studies):
    code, told, _ = command("reproduce", "--all", "--quick", "--out", studies / "quick", "--at-once", 1)
    assert code == 0 and "small" in told and "needy is left out: data cifar10 is not here." in told


def test_results_of_full_runs_are_kept(command, studies, tmp_path):
    (tmp_path / "results").mkdir()
    code, told, _ = command(
        "reproduce", "small", "--json", "--out", studies / "new" / "tables", "--at-once", 1,
        "--keep", tmp_path / "results",
    )  # fmt: skip
    kept = json.loads((tmp_path / "results" / "small.json").read_text())
    assert code == 0 and json.loads(told)["numbers"] == kept["numbers"] and "curves" not in kept
    code, _, said = command("reproduce", "small", "--quick", "--keep", tmp_path / "results")
    assert code == 2 and "--keep is for full runs" in said


def test_what_is_refused(command, tmp_path):
    code, _, said = command("reproduce", "smal", "--out", tmp_path / "new")
    assert code == 2 and not (tmp_path / "new").exists()
    assert "table = 'smal' is unknown (did you mean 'small'?)" in said
    (tmp_path / "notes.txt").write_text("precious")
    for out in (tmp_path, tmp_path / "notes.txt"):
        code, _, said = command("reproduce", "small", "--out", out)
        assert code == 2 and "exists already and holds other things: name another folder with --out" in said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    code, _, said = command("reproduce", "needy", "--out", tmp_path / "new")
    assert code == 2 and "needy needs data cifar10, which is not here" in said
    code, _, said = command("reproduce", "small", "--out", tmp_path / "new", "--keep", tmp_path / "notes.txt")
    assert code == 2 and "keeping results in" in said and not (tmp_path / "new").exists()  # before anything is run
    for arguments in ([], ["small", "--all"]):
        code, _, said = command("reproduce", *arguments)
        assert code == 2 and "name a table, or give --all" in said
    with pytest.raises(RunError, match="there is no folder"):
        tables.keep({"quick": False, "table": "small"}, tmp_path / "nowhere")


def test_list_tables_says_what_can_be_run(command):
    code, told, _ = command("list", "tables", "--json")
    rows = {row["name"]: row for row in json.loads(told)}
    assert code == 0 and rows["small"]["here"] == "yes" and rows["small"]["cost"] == "a second"
    assert rows["needy"]["here"] == "no cifar10" and rows["small"]["data"] == "drawn"


def test_data_is_here_when_its_files_are(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path))
    assert not any(availability.available(source) for source in availability.FINDERS)
    for name in (
        "mnist.npz",
        "femnist_writers.npz",
        "ocr_letters.npz",
        "cifar10.npz",
        "gzip.zip",
        "speech_commands_8khz_mulaw.npz",
    ):
        (tmp_path / name).touch()
    found = {source for source in availability.FINDERS if availability.available(source)}
    assert found == {"mnist", "femnist", "letters", "cifar10", "emnist", "wakeword"}
    (tmp_path / "gzip.zip").unlink()
    assert not availability.available("emnist")
    (tmp_path / "emnist_byclass_test.npz").touch()
    assert availability.available("emnist")
    monkeypatch.delenv("PERSONAFL_OFFLINE")
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path / ".."))
    assert not availability.available("fmnist") and "PERSONAFL_OFFLINE" not in os.environ, "asking must not download"


SCRIPT = """
import sys
from personafl import cli
from personafl_papers import tables
sys.path.insert(0, {root!r})
from tests.papers.tables.test_reproduce import CONFIG, SMALL
CONFIG["rounds"] = 2000
CONFIG["eval_every"] = 0
tables.TABLES.clear()
tables.TABLES["small"] = SMALL
cli.main()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_leaves_checkpoints_and_no_process(tmp_path):
    """The signal goes to the parent alone; its processes end their rounds, and the command that it prints goes on."""
    root = str(Path(__file__).resolve().parents[3])
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(root=root), "reproduce", "small", "--at-once", "2", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    until(lambda: len(list(out.glob("runs/*/checkpoint/*"))) >= 4, process)
    children = [int(pid) for pid in _children(process.pid)]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.strip().endswith(f"Continue with: personafl reproduce small --at-once 2 --out {out}"), said
    assert "Traceback" not in said
    assert len(children) >= 2
    until(lambda: not any(_alive(child) for child in children))
    for rounds in out.glob("runs/*/rounds.jsonl"):
        last = json.loads(rounds.read_text().splitlines()[-1])["round"]
        assert any(f"{last}" in path.name for path in rounds.parent.glob("checkpoint/*")), "stopped with a checkpoint"


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # one that has ended may wait for its parent to ask


def _children(parent: int) -> list[str]:
    return [child for file in Path(f"/proc/{parent}/task").glob("*/children") for child in file.read_text().split()]
