"""docs/your-data.md: its code is that of examples/, its commands run, and its errors are what one sees."""

import doctest
import re
import runpy
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from personafl.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-data.md").read_text("utf-8")
ELSEWHERE = {"own_algorithm.py"}  # of another page
EXAMPLES = {
    path.name: path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.*")) if path.name not in ELSEWHERE
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the examples and the toy data, and nothing else."""
    folder = tmp_path_factory.mktemp("your-data")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path("examples/toy_data.py", run_name="__main__")
    return folder


def test_the_code_of_the_page_is_that_of_the_examples():
    shown = {*blocks("python"), *blocks("toml")}
    assert shown <= set(EXAMPLES.values())
    mentioned = {name for name in EXAMPLES if f"examples/{name}" in PAGE}
    assert mentioned == set(EXAMPLES)


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("python ")])
def test_an_example_runs(place, monkeypatch, command):
    script = command.removeprefix("python ")
    if "huggingface" in script and find_spec("datasets") is None:
        pytest.skip("the extra huggingface is not installed")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HOME", str(place / "cache"))
    shutil.rmtree("runs/own-model", ignore_errors=True)
    made = runpy.run_path(script, run_name="__main__")
    if "run" in made:
        assert made["run"].score["personal_accuracy"] > 0.8
    if "net" in made:  # models agree with the patients' true classes, so labels and features are the right ones
        for name in ("net", "newcomer", "again"):
            right = made[name].eval()(made["x"]).argmax(1).numpy() == made["patients"]["y"]
            assert right.mean() > 0.9, name


def test_the_commands_run(place, monkeypatch):
    monkeypatch.chdir(place)
    commands = [shlex.split(line)[1:] for line in COMMANDS if line.startswith("personafl ")]
    assert [words[0] for words in commands] == ["run", "personalize"]
    for words in commands:
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert (place / "hospital-3.safetensors").exists()
    assert all(line.startswith(("python ", "personafl ", "pip install ")) for line in COMMANDS)


def test_the_errors_are_what_one_sees(place, monkeypatch):
    monkeypatch.chdir(place)
    text = "\n".join(blocks("pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, "your-data.md", None, 0)
    assert len(test.examples) >= 10
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)
