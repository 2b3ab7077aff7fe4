"""Manners that all commands share: help that can be read, one line for a mistake, nothing but the result when piped."""

import json
import re
import shlex
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from personafl.cli import app, main
from personafl.cli.console import print_json
from tests.cli.test_cli import Shell
from tests.waiting import until

PROGRAM = typer.main.get_command(app)
# `deploy` and `site` have commands of their own, with the same manners.
GROUPS = {name: group.commands for name, group in PROGRAM.commands.items() if hasattr(group, "commands")}
COMMANDS = {name: command for name, command in PROGRAM.commands.items() if name not in GROUPS}
COMMANDS |= {f"{name} {inner}": command for name, group in GROUPS.items() for inner, command in group.items()}
CONFIG = """
rounds = 3
partition = {name = "iid", clients = 5}
model = {name = "mlp", hidden = [8]}
engine = {name = "stacked", threads = 1}
methods = {ditto = {}}
"""


@pytest.fixture(scope="module")
def personafl():
    shell = Shell()
    yield shell
    shell.close()


def docstring(command):
    first, _, rest = (COMMANDS[command].help or "").partition("\n\n")
    return " ".join(first.split()), [line.strip() for line in rest.replace("\\[", "[").splitlines() if line.strip()]


def examples(command):
    return [line for line in docstring(command)[1] if line.startswith("personafl ")]


# --- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal(command):
    """80 columns: no line of the description and no example is broken, and nothing is taken for markup."""
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    first, rest = docstring(command)
    assert first in " ".join(" ".join(shown).split())
    assert "Examples:" in rest
    assert set(rest) <= {line.strip() for line in shown}


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_commands_that_exist(command):
    assert examples(command)
    for example in examples(command):
        _, name, *words = shlex.split(example.partition(" | ")[0])
        if name in GROUPS:
            name, words = f"{name} {words[0]}", words[1:]
        COMMANDS[name].make_context(name, words)  # raises for what cannot be parsed


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"version"}))
def test_what_has_a_result_has_it_in_json(command):
    assert any("--json" in option.opts for option in COMMANDS[command].params)


def test_the_program_alone_is_a_question_for_help(personafl):
    done = personafl()
    assert done.returncode == 0 and done.stderr == ""
    assert all(f" {command} " in done.stdout for command in PROGRAM.commands)


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")])
def test_shells_can_complete(personafl, shell, word):
    script = personafl(_PERSONAFL_COMPLETE=f"source_{shell}")
    assert script.returncode == 0 and word in script.stdout and "_PERSONAFL_COMPLETE" in script.stdout


def test_completion_knows_commands_and_options(personafl):
    asked = {"_PERSONAFL_COMPLETE": "complete_bash"}
    assert personafl(**asked, COMP_WORDS="personafl com", COMP_CWORD="1").stdout.split() == ["compare"]
    assert personafl(**asked, COMP_WORDS="personafl run --res", COMP_CWORD="2").stdout.split() == ["--resume"]


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "no such command 'rum'"),
        (["demo", "--ronds", "3"], "--ronds"),
        (["demo", "--rounds", "many"], "invalid value for '--rounds'"),
        (["run"], "missing argument 'CONFIG.toml' (see personafl run --help)"),
        (["run", "a.toml", "b.toml"], "got unexpected extra argument"),
        (["watch", "runs", "--every", "0"], "--every 0: must be at least 0.1 seconds"),
    ],
)
def test_what_is_mistyped_is_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["personafl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert re.fullmatch(f"error: [^\n]*{re.escape(message)}[^\n]*\n", told.err), told.err


# --- what is piped


def test_json_is_json(capsys):
    print_json({"a": float("nan"), "b": [1.5, float("-inf")], "c": ("x", None, True)})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"a": None, "b": [1.5, None], "c": ["x", None, True]}


def test_colours_can_be_asked_for_where_there_is_no_terminal_and_are_not_bars(personafl, tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    done = personafl("run", "config.toml", cwd=tmp_path, FORCE_COLOR="1")
    assert done.returncode == 0 and done.stderr == "" and "\x1b[" in done.stdout and "\r" not in done.stdout
    watched = personafl("watch", "runs/config-fedavg-0", cwd=tmp_path, FORCE_COLOR="1")
    assert watched.returncode == 0 and watched.stdout.splitlines()[-1] == "runs/config-fedavg-0: finished"
    assert "\x1b" not in watched.stdout + watched.stderr


@pytest.mark.slow
def test_a_reproduction_reports_no_progress_to_a_file(personafl, tmp_path):
    done = personafl("reproduce", "selffl-synthetic", "--quick", "--out", tmp_path / "study")
    assert done.returncode == 0 and done.stderr == "" and f"Folder: {tmp_path / 'study'}" in done.stdout


# --- Ctrl-C


@pytest.mark.slow
def test_ctrl_c_of_a_comparison_says_how_to_go_on(tmp_path, monkeypatch):
    """The command that it prints finishes the comparison, with the methods of the config, from where it was."""
    (tmp_path / "config.toml").write_text(CONFIG.replace("rounds = 3", "rounds = 100"))
    command = [sys.executable, "-c", "from personafl.cli import main; main()", "compare", "config.toml"]
    process = subprocess.Popen(
        [*command, "--seeds", "1", "-s", "eval_every=0", "--csv", "table one.csv"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: any(tmp_path.glob("runs/*/ditto-0-*/rounds.jsonl")), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130 and out == ""
    assert err.startswith("warning: stopping after this round") and "Traceback" not in err
    again = shlex.split(re.search(r"Stopped; what is done is kept\. Continue with: (.*)\n", err)[1])
    assert again[:2] == ["personafl", "compare"] and again[-2:] == ["--csv", "table one.csv"]
    (folder,) = tmp_path.glob("runs/*/ditto-0-*")
    assert len((folder / "rounds.jsonl").read_text().splitlines()) < 100

    monkeypatch.chdir(tmp_path)
    finished = CliRunner().invoke(app, [*again[1:], "--json"])
    assert finished.exit_code == 0, finished.output
    assert json.loads(finished.stdout)["runs"].keys() >= {"ditto"} and (tmp_path / "table one.csv").exists()
    rounds = [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [*range(1, 101)]
