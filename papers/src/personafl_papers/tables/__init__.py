"""Tables and figures of papers that can be run again: `personafl reproduce NAME`.

    table.py       what a table is
    claims.py      what a paper says of its numbers, and whether it holds
    availability.py whether a table's data is here
    search.py      searches that end inside their grids
    runs.py        runs what is missing
    measures.py    from runs to numbers
    results.py     published beside measured, as JSON
    show.py        the same for a terminal
    page.py        the same as a page
    summary.py     docs/reproduction.md, from the results that are kept

Everything else is a table each.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from personafl.errors import ConfigError, DataError, RunError
from personafl.files import disk_errors, write_text
from personafl.study.launch import Launcher
from personafl_papers.tables import (
    fedamp_tables,
    persfl_cifar10_efficientnet,
    persfl_tables,
    selffl_activity,
    selffl_augmented,
    selffl_fig1,
    selffl_fig2,
    selffl_fig3,
    selffl_images,
    selffl_sent140,
    selffl_sent140_minilm,
    selffl_synthetic_table,
    selffl_table1,
    selffl_wakeword,
    selffl_wakeword_embedding,
    selffl_writers,
)
from personafl_papers.tables.results import results
from personafl_papers.tables.runs import run_stages
from personafl_papers.tables.table import Found, Table

TABLES: dict[str, Table] = {
    "selffl-table1": selffl_table1.TABLE,
    "selffl-fig1": selffl_fig1.TABLE,
    "selffl-fig1-femnist": selffl_fig1.FEMNIST,
    "selffl-fig2": selffl_fig2.TABLE,
    "selffl-fig3": selffl_fig3.TABLE,
    "selffl-fig3-femnist": selffl_fig3.FEMNIST,
    "selffl-augmented": selffl_augmented.TABLE,
    "selffl-images": selffl_images.TABLE,
    "selffl-writers": selffl_writers.WRITERS,
    "selffl-generator": selffl_writers.GENERATOR,
    "selffl-letters": selffl_writers.LETTERS,
    "selffl-synthetic": selffl_synthetic_table.TABLE,
    "selffl-sent140": selffl_sent140.TABLE,
    "selffl-sent140-minilm": selffl_sent140_minilm.TABLE,
    "selffl-wakeword": selffl_wakeword.TABLE,
    "selffl-wakeword-embedding": selffl_wakeword_embedding.TABLE,
    "selffl-activity": selffl_activity.TABLE,
    "fedamp-tables": fedamp_tables.TABLE,
    "persfl-tables": persfl_tables.TABLE,
    "persfl-cifar10-efficientnet": persfl_cifar10_efficientnet.TABLE,
}

RUNS = "runs"
"""The folder beside the tables' own ones with the run folders, which tables share."""


def reproduce(
    name: str,
    out: Path,
    launcher: Launcher,
    quick: bool = False,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a table of a paper again, or what is missing of it.

    Parameters
    ----------
    name
        One of `TABLES`.
    out
        A folder for tables: this one's results.json, report.html and figures go to `out/name`, run folders to
        `out/runs`.
    launcher
        How runs are made, such as `Processes()` for several at once; see `study.launch.run_plan`.
    quick
        A small version, to see that it works.
    seed
        The first seed.
    tell
        Called with a line now and then.

    Returns
    -------
    dict
        What is in results.json, see `results`, without what figures need.
    """
    from personafl_papers.tables.page import write_page  # matplotlib takes a second to import

    table = find(name)
    if lacking := table.missing:
        raise DataError(
            f"{name} needs data {', '.join(lacking)}, which is not here: docs/data.md says what to put where; "
            "personafl list tables shows what can be run"
        )
    check_folder(out)
    found = Found(quick, seed, tell=lambda line: tell(f"{name}: {line}"))
    run_stages(table.stages, found, out / RUNS, launcher)
    measured = table.measure(found)
    value = results(name, table, found, measured)
    with disk_errors(out, "creating"):
        (out / name).mkdir(parents=True, exist_ok=True)
    write_text(out / name / "results.json", json.dumps({**value, "curves": measured.curves}, ensure_ascii=False) + "\n")
    write_page(value, table.figures(measured) if table.figures else {}, out / name)
    return value


def find(name: str) -> Table:
    """The table of this name."""
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"table = {name!r} is unknown{hint}; known: {', '.join(TABLES)}")
    return TABLES[name]


def check_folder(out: Path) -> None:
    """A folder for tables holds tables and runs, nothing else: other people's files are left alone."""
    if not out.exists():
        return
    with disk_errors(out, "reading"):
        strange = not out.is_dir() or {path.name for path in out.iterdir()} - {RUNS, *TABLES}
    if strange:
        raise RunError(f"{out} exists already and holds other things: name another folder with --out")


def keep(value: dict[str, Any], folder: Path) -> Path:
    """Write the results of a full run where they are kept: `folder/NAME.json`, small and with a line for each entry."""
    if value["quick"]:
        raise ConfigError("--keep is for full runs: leave out --quick")
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder} to keep results in: make it, or name another with --keep")
    path = folder / f"{value['table']}.json"
    write_text(path, kept_text(value))
    return path


def kept_text(value: dict[str, Any]) -> str:
    """JSON with a line for each number, claim and note, so that a change of one is a change of one line."""
    lines = []
    for key, entry in value.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            listed = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in entry)
            lines.append(f"{json.dumps(key)}: [\n{listed}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"
