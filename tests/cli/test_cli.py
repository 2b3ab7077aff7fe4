"""Facts about the command line: mistakes get one line and exit code 2, and what is piped can be read by programs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import tomli_w

from personafl.algorithms import ALGORITHMS
from personafl.data import PARTITIONS, SOURCES
from personafl.engines import ENGINES
from personafl.models import MODELS
from personafl.storage import checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="commands run in forked processes")

SETTINGS = {
    "rounds": 4,
    "eval_every": 2,
    "checkpoint_every": 1,
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"steps": 3},
    "engine": {"name": "stacked", "threads": 1},
}
NOBODY = 65534


# --- commands in processes of their own


class Shell:
    """A process that forks a child for each command, which is much faster than starting Python anew."""

    def __init__(self, *prefix):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def __call__(self, *arguments, user=0, cwd="/", **environment):
        job = {"arguments": list(map(str, arguments)), "user": user, "cwd": str(cwd), "environment": environment}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return subprocess.CompletedProcess(arguments, *json.loads(self.process.stdout.readline()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve():
    """What a shell does: a line on standard input is a command, a line on standard output is what came of it."""
    import rich.progress
    import rich.table  # noqa: F401
    import sklearn.datasets  # noqa: F401  (imported once, not in every child)
    import torch
    import typer.main  # noqa: F401

    import personafl.study.demo  # noqa: F401
    from personafl.config import parse

    torch.set_num_threads(1)  # a process with torch threads cannot be forked
    parse(SETTINGS).federation()  # the checks of settings are made once, too
    if hasattr(os, "sched_setaffinity"):  # and on a busy machine, threads that wait for each other take minutes
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                command_and_exit(job, out, err)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0), err.seek(0)
            print(json.dumps([code, out.read(), err.read()]), flush=True)


def command_and_exit(job, out, err):
    os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    if job["user"]:
        os.setgid(job["user"]), os.setuid(job["user"])
    sys.argv = ["personafl", *job["arguments"]]
    try:
        from personafl.cli import main  # not before the fork: it looks at the environment

        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


@pytest.fixture(scope="module")
def personafl():
    shell = Shell()
    yield shell
    shell.close()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(SETTINGS))
    return path


def assert_refused(done, message):
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(f"error: [^\n]*{message}[^\n]*\n", done.stderr), done.stderr
    assert done.stdout == ""


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def results(folder):
    """What a run found out, without what tells when it ran."""
    of_the_moment = ("run.toml", "timings.jsonl", ".lock", ".timings")
    return {k: v for k, v in contents(folder).items() if not k.endswith(of_the_moment)}


# --- mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ronds=3", "unknown key 'ronds' .did you mean 'rounds'"),
        ("local.stepz=3", "unknown key 'local.stepz' .did you mean 'local.steps'"),
        ("rounds=many", "rounds = 'many'"),
        ("activity=False", "activity = 'False'"),
        ("algorithm=fedavgg", "algorithm = 'fedavgg' is unknown .did you mean 'fedavg'"),
        ("engine.name=turbo", "engine = 'turbo' is unknown"),
        ("splits=[0.5, 0.5, 0.5]", "split"),
        ("splits=[0.0, 0.5, 0.5]", "train"),
        ("partition.clients=5000", "5000"),
        ("data=gaussian", "comes with its own clients: leave out the partition 'iid'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_no_folder(personafl, config, tmp_path, override, message):
    assert_refused(personafl("run", config, "-s", override, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_a_config_that_cannot_be_read(personafl, tmp_path):
    assert_refused(personafl("run", tmp_path / "nowhere.toml"), "there is no config file .*nowhere.toml")
    (tmp_path / "broken.toml").write_text("rounds = [\n\n")
    assert_refused(personafl("run", tmp_path / "broken.toml"), "broken.toml is not a readable TOML file")


def test_nothing_is_overwritten(personafl, config, tmp_path):
    """Not by another run, not by resuming with other settings, not by asking for fewer rounds."""
    folder = tmp_path / "run"
    assert personafl("run", config, "--out", folder).returncode == 0
    before = contents(folder)
    for arguments, message in (
        (
            (),
            r"run already holds a run: continue it with resume=True \(--resume .* with out \(--out\)",
        ),
        (("--resume", "-s", "local.lr=0.3"), "holds another run: its local.lr is 0.05, now it is 0.3"),
        (("--resume", "-s", "seed=1"), "holds another run: its seed is 0, now it is 1"),
        (
            ("--resume", "-s", "algorithm=fedprox"),
            "its algorithm.name is 'fedavg', now it is 'fedprox'",
        ),
        (("--resume", "-s", "rounds=2"), "has 4 rounds already, more than the 2 asked for"),
    ):
        assert_refused(personafl("run", config, "--out", folder, *arguments), message)
        assert contents(folder) == before


def test_a_folder_that_holds_something_else_is_left_alone(personafl, config, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter-1.txt").write_text("precious")
    for resume in ((), ("--resume",)):
        done = personafl("run", config, "--out", folder, *resume)
        assert_refused(done, r"thesis is not empty and holds no run: name another folder with out \(--out\)")
        assert_refused(personafl("run", config, "--out", folder / "chapter-1.txt", *resume), "chapter-1.txt")
    assert (folder / "chapter-1.txt").read_text() == "precious"


def test_a_damaged_run_folder_is_said_to_be_one(personafl, config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text("seed = ")
    assert_refused(personafl("run", config, "--out", tmp_path / "run", "--resume"), "run.toml cannot be read")


def test_an_unwritable_folder(personafl, config, tmp_path):
    assert_refused(personafl("run", config, "--out", config / "run"), "creating .*run failed: Not a directory")
    if Path("/proc/self").exists():
        assert_refused(personafl("run", config, "--out", "/proc/personafl"), "creating /proc/personafl failed: ")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else(personafl):
    with tempfile.TemporaryDirectory() as shared:
        folder = Path(shared)
        folder.chmod(0o755)
        config = folder / "config.toml"
        config.write_text('data = "gaussian"')
        done = personafl("run", config, "--out", folder / "run", user=NOBODY)
        assert_refused(done, "creating .*run failed: Permission denied")
        (folder / "closed").mkdir(mode=0o700)
        for out in (folder / "closed", folder / "closed" / "run"):
            done = personafl("run", config, "--out", out, user=NOBODY)
            assert_refused(done, "closed(/run)? failed: Permission denied")
        config.chmod(0o600)
        assert_refused(personafl("run", config, user=NOBODY), "config.toml is not a readable TOML file: .*ermission")


@pytest.fixture
def small_disk(tmp_path):
    """A shell that sees a disk of 400 kB, and the path by which this process sees it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=400k personafl {disk}"
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode
    ):
        pytest.skip("a small disk can be made by root only")
    shell = Shell("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    assert shell("version").returncode == 0  # so it is mounted
    yield shell, disk, Path(f"/proc/{shell.process.pid}/root{disk}")
    shell.close()


def test_a_full_disk_is_said_and_resumed_from(personafl, small_disk, config, tmp_path):
    """Whichever file it is that does not fit any more."""
    shell, disk, seen = small_disk
    assert personafl("run", config, "-s", "checkpoint_every=0", "--out", tmp_path / "whole").returncode == 0
    expected = results(tmp_path / "whole")
    command, stuck = ("run", config, "-s", "checkpoint_every=0", "--out", disk / "run"), set()
    for free in range(0, 400, 24):
        (seen / "filler").write_bytes(bytes((400 - free) * 1024))
        done = shell(*command)
        if done.returncode == 0:
            break
        assert_refused(done, r"failed: No space left on device; free some space, then continue with resume=True")
        stuck.add(re.search(r"/disk/run/([\w.]+)", done.stderr)[1])
        (seen / "filler").unlink()
        done = shell(*command, "--resume")
        assert done.returncode == 0, done.stderr
        assert results(seen / "run") == expected
        shutil.rmtree(seen / "run")
    assert {"run.toml", "clients.parts", "checkpoint", "models"} <= stuck


# --- training that breaks down


def test_if_every_client_diverges_the_last_good_checkpoint_is_kept(personafl, tmp_path):
    """Squared error with a learning rate of 10: the parameter grows nineteen-fold at every step."""
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text('data = "gaussian"\nengine = "stacked"\ncheckpoint_every = 2\nlocal = {lr = 10, steps = 5}\n')
    for arguments in ((), ("--resume",)):
        done = personafl("run", config, "--out", folder, *arguments)
        assert done.returncode == 3 and done.stdout == ""
        warning, error = done.stderr.splitlines()
        assert warning.startswith("warning: round 3: 20 of 20 updates are not finite and left out: client-0, client-1,")
        assert error.startswith("error: round 3: every active client diverged")
        assert f"the last good checkpoint is kept in {folder / 'checkpoint'}" in error
        assert checkpoint.latest(folder / "checkpoint").round == 2


def test_diverging_at_once_is_said_too(personafl, config, tmp_path):
    done = personafl("run", config, "-s", "local.lr=1e30", "--out", tmp_path / "run")
    assert done.returncode == 3 and "no checkpoint yet" in done.stderr and "Traceback" not in done.stderr


# --- what is printed


def test_a_piped_run_prints_a_table_and_nothing_else(personafl, config, tmp_path):
    done = personafl("run", config, "--out", tmp_path / "run")
    assert done.returncode == 0 and done.stderr == ""
    assert "fedavg" in done.stdout and f"Run folder: {tmp_path / 'run'}\n" in done.stdout
    assert "\x1b" not in done.stdout and "\r" not in done.stdout


def test_a_run_without_test_data_says_so(personafl, config, tmp_path):
    for splits in ("[1, 0, 0]", "[0.8, 0.2, 0]"):
        done = personafl("run", config, "-s", f"splits={splits}", "--out", tmp_path / splits)
        assert done.returncode == 0 and "no client has test samples, so nothing will be scored" in done.stderr
        assert "No client has test data" in done.stdout


def test_json_stands_alone(personafl, config, tmp_path):
    done = personafl("run", config, "--json", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(done.stdout)
    assert told["run"] == "runs/config-fedavg-0" and 0 < told["personal_accuracy"] <= 1
    assert (tmp_path / told["run"] / "clients.parquet").exists()


def test_no_color_is_respected(personafl):
    colors = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    colored = personafl("run", "/nowhere.toml", FORCE_COLOR="1")
    plain = personafl("run", "/nowhere.toml", FORCE_COLOR="1", NO_COLOR="1")
    assert colors.search(colored.stderr) and not colors.search(plain.stderr)


@pytest.mark.parametrize(
    ("what", "known"),
    [
        ("algorithms", ALGORITHMS), ("data", SOURCES), ("partitions", PARTITIONS), ("models", MODELS),
        ("engines", [*ENGINES, "auto", "ray", "flower-sim"]),
    ],
)  # fmt: skip
def test_list(personafl, what, known):
    rows = json.loads(personafl("list", what, "--json").stdout)
    assert [row["name"] for row in rows] == list(known)
    assert all(row["about"] for row in rows)
    plain = personafl("list", what)
    assert plain.returncode == 0 and plain.stderr == ""
    for name in known:
        assert f" {name} " in plain.stdout, "a name that is cut short cannot be copied"


def test_list_of_something_unknown(personafl):
    message = "cannot list 'algos': known are algorithms, data, partitions, tasks, models, engines"
    assert_refused(personafl("list", "algos"), message)


def test_demo(personafl, tmp_path):
    done = personafl("demo", "--rounds", 2, "--seeds", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["runs"]) == {"selffl", "fedamp", "persfl", "ditto", "fedavg", "separate"}
    accuracy = {row["method"]: row["mean"] for row in told["metrics"] if row["metric"] == "accuracy"}
    assert len(accuracy) == 6 and all(0 < value <= 1 for value in accuracy.values())
    assert (tmp_path / "runs" / "demo-1" / "report.html").stat().st_size > 10_000
    done = personafl("demo", "--rounds", 2, "--seeds", 1, "--out", "runs/demo-1", cwd=tmp_path)  # all there already
    assert done.returncode == 0 and "training alone, clients get" in done.stdout
    assert "Report: runs/demo-1/report.html" in done.stdout


def test_demo_refuses_bad_input(personafl, tmp_path):
    assert_refused(personafl("demo", "--rounds", 0, cwd=tmp_path), "rounds = 0: must be at least 1")


def test_compare(personafl, tmp_path):
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**SETTINGS, "splits": [0.6, 0.2, 0.2]}))
    words = ["compare", "c.toml", "-a", "ditto", "--seeds", 1, "--tune", "ditto.lam=[0.1,1.0]"]
    done = personafl(*words, "--csv", "t.csv", "--latex", "t.tex", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert "Best performance:" in done.stdout and "optimistic" in done.stdout
    assert "is the best of 2 on validation accuracy" in done.stdout
    folder = tmp_path / "runs" / "c-compare"
    assert (tmp_path / "t.csv").read_text() == (folder / "table.csv").read_text()
    assert (tmp_path / "t.tex").read_text() == (folder / "table.tex").read_text()
    again = personafl(*words, "--json", cwd=tmp_path)
    told = json.loads(again.stdout)
    assert told["added"] == ["separate", "fedavg"] and len(told["searches"][0]["trials"]) == 2
    assert_refused(personafl("compare", "c.toml", "-a", "dito", cwd=tmp_path), "did you mean 'ditto'")


def test_export(personafl, tmp_path):
    (tmp_path / "c.toml").write_text(tomli_w.dumps(SETTINGS))
    assert personafl("run", "c.toml", "--out", "run", cwd=tmp_path).returncode == 0
    done = personafl("export", "run", "--all", "--json", cwd=tmp_path)
    files = json.loads(done.stdout)["files"]
    assert len(files) == 5 and all((tmp_path / file).exists() for file in files)
    assert_refused(personafl("export", "run", cwd=tmp_path), "--client ID, or take everybody with --all")
    assert_refused(personafl("export", "run", "--all", cwd=tmp_path), "exists already")


def test_help(personafl):
    commands = (
        "run", "fit", "demo", "compare", "report", "watch", "partition", "personalize", "gain", "audit", "export",
        "reproduce", "study", "list", "bench", "version",
    )  # fmt: skip
    top = personafl("--help")
    assert top.returncode == 0 and all(command in top.stdout for command in commands)
    for command in commands:
        done = personafl(command, "--help")
        assert done.returncode == 0 and "Usage: personafl" in done.stdout and done.stderr == ""


def test_version(personafl):
    done = personafl("version")
    assert done.returncode == 0 and re.fullmatch(r"\d+\.\d+\.\d+\S*\n", done.stdout)


if __name__ == "__main__":
    serve()
