"""Tutorials: Python files of cells (`# %%`), run in this process, as pages with outputs and as notebooks.

The files in docs/tutorials are what editors and Jupyter (with jupytext) open as notebooks, and what one can read and
compare as text. `run_cells` gives the outputs, `page` the page of the site, `notebook` the .ipynb to download.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Cell:
    """A piece of a notebook: text in Markdown, or code with what it put out."""

    kind: str
    source: str
    outputs: list[dict[str, str]] = field(default_factory=list)
    """By type, as Jupyter has it: `text/plain`, `text/html`, `image/png` (base64), and `stdout`."""


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file in the format py:percent."""
    cells = []
    for part in re.split(r"^# %%", path.read_text("utf-8"), flags=re.M)[1:]:
        first, _, body = part.partition("\n")
        if "[markdown]" in first:
            cells.append(Cell("markdown", "\n".join(line[2:] for line in body.strip().splitlines())))
        else:
            cells.append(Cell("code", body.strip()))
    return cells


def run_cells(cells: list[Cell], name: str) -> dict[str, Any]:
    """Run the code of a notebook in order, keep the outputs in the cells, and give the names that it defined."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell.kind == "code":
            cell.outputs = list(_outputs(cell.source, f"{name}, cell {number + 1}", names))
    return names


def _outputs(source: str, where: str, names: dict[str, Any]) -> list[dict[str, str]]:
    import matplotlib.pyplot as plt

    tree = ast.parse(source, where)
    shows = not source.rstrip().endswith(";")  # as in Jupyter: a semicolon hides the value
    last = tree.body.pop() if shows and tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, where, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval", dont_inherit=True), names)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    found = [{"stdout": printed.getvalue()}] if printed.getvalue() else []
    if value is not None and not any(value is figure for figure in figures) and not _is_drawn(value):
        found.append(_shown(value))
    for figure in figures:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110, bbox_inches="tight", facecolor="white")
        found.append({"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": "<Figure>"})
    plt.close("all")
    return found


def _is_drawn(value: Any) -> bool:
    """Whether a value is only the handle of something in a figure, such as axes."""
    return type(value).__module__.startswith("matplotlib")


def _shown(value: Any) -> dict[str, str]:
    shown = {"text/plain": repr(value)}
    html = getattr(value, "_repr_html_", None)
    if html is not None and (made := html()):
        shown["text/html"] = str(made)
    return shown


def page(cells: list[Cell], name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook that was run, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if "image/png" in output:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output["image/png"])
                parts.append(f"![What this cell draws]({file}){{ .output }}")
            elif "text/html" in output:
                parts.append(f'<div class="output">{_one_block(output["text/html"])}</div>')
            else:
                text = output.get("stdout") or output["text/plain"]
                parts.append(f"``` {{ .text .output }}\n{text.rstrip()}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    note = f"*This page is a notebook: [download it]({name}.ipynb){{ download }} and run it yourself.*"
    return f"{title}\n\n{note}\n{rest}\n", pictures


def _one_block(html: str) -> str:
    """HTML without empty lines, at which Markdown would end the block."""
    return re.sub(r"\n\s*\n", "\n", html)


def notebook(cells: list[Cell]) -> str:
    """The notebook as Jupyter's .ipynb."""
    made = []
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {"id": f"cell-{number}", "cell_type": cell.kind, "metadata": {}, "source": cell.source}
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": [_jupyter(output) for output in cell.outputs]}
        made.append(entry)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _jupyter(output: dict[str, str]) -> dict[str, Any]:
    if "stdout" in output:
        return {"output_type": "stream", "name": "stdout", "text": output["stdout"]}
    return {"output_type": "display_data", "data": output, "metadata": {}}
