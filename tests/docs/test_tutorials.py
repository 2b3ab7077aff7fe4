"""docs/tutorials: the notebooks run, cell by cell, and end with something to look at."""

import json
import re
from pathlib import Path

import pytest
from scripts.site.notebooks import Cell, notebook, page, read_cells, run_cells

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SLOW = {"rehearse-a-federation"}
"""Starts Flower and Ray; the others run in every `make test`, with fewer rounds."""
WHOLE = {"own-algorithm"}
"""Compares what training ends at with a closed form, which takes its rounds."""


def run(name, folder, monkeypatch, shorter):
    monkeypatch.chdir(folder)
    cells = read_cells(FOLDER / f"{name}.py")
    for cell in cells if shorter else ():
        cell.source = re.sub(r'(\brounds"?[=:] ?)\d+', r"\g<1>2", cell.source)
    run_cells(cells, name)
    assert any("image/png" in output for cell in cells for output in cell.outputs)
    return cells


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SLOW])
def test_it_runs_with_few_rounds(name, tmp_path, monkeypatch):
    run(name, tmp_path, monkeypatch, shorter=name not in WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_it_is(name, tmp_path, monkeypatch):
    cells = run(name, tmp_path, monkeypatch, shorter=False)
    made = json.loads(notebook(cells))
    assert [cell["cell_type"] for cell in made["cells"]] == [cell.kind for cell in cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_whole(name):
    first, *_, last = read_cells(FOLDER / f"{name}.py")
    assert first.kind == last.kind == "markdown" and first.source.startswith("# ") and "](../" in last.source


def test_what_a_cell_puts_out_is_on_the_page_and_in_the_notebook():
    table = "class Table:\n    def _repr_html_(self):\n        return '<b>5</b>'\n\n\nTable()"
    drawn = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    cells = [
        Cell("markdown", "# Title"),
        *(Cell("code", code) for code in ("x = 2", "print(x)", "x + 1", table, drawn)),
    ]
    assert run_cells(cells, "here")["x"] == 2
    text, pictures = page(cells, "here")
    assert text.startswith("# Title\n\n*This page is a notebook") and "\n2\n```" in text and "\n3\n```" in text
    assert '<div class="output"><b>5</b></div>' in text
    assert pictures["here-1.png"].startswith(b"\x89PNG") and "(here-1.png)" in text
    kinds = [
        [output["output_type"] for output in cell.get("outputs", ())] for cell in json.loads(notebook(cells))["cells"]
    ]
    assert kinds == [[], [], ["stream"], ["display_data"], ["display_data"], ["display_data"]]


def test_a_cell_that_fails_says_where():
    with pytest.raises(ZeroDivisionError) as caught:
        run_cells([Cell("markdown", "# Title"), Cell("code", "1 / 0")], "here")
    assert str(caught.traceback[-1].path) == "here, cell 2"
