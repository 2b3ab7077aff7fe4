"""Studies and tables of papers that can be run again: `personafl reproduce NAME`."""

from __future__ import annotations

import difflib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.table import Table

from personafl.errors import ConfigError, RunError
from personafl.files import disk_errors, write_text
from personafl.tables import selffl_synthetic
from personafl.version import __version__

Progress = Callable[[str], None]


class Study(Protocol):
    """Runs a study and draws its figures into a folder.

    Gives tables to print, their numbers, and all numbers there are; both dictionaries are for JSON.
    """

    def __call__(
        self, out: Path, quick: bool, seed: int, progress: Progress | None
    ) -> tuple[list[Table], dict[str, Any], dict[str, Any]]: ...


@dataclass(frozen=True)
class Reproducible:
    """A study that can be run again.

    Attributes
    ----------
    about, cost, data
        What it is, how long it takes, and what data it needs, in a few words each.
    run
        Runs it.
    """

    about: str
    cost: str
    data: str
    run: Study


TABLES: dict[str, Reproducible] = {
    "selffl-synthetic": Reproducible(
        about="Self-FL preprint, E.1 and E.2 (Figures 3, 4, 5): errors in the two-level Gaussian model",
        cost="half a minute on one core",
        data="drawn",
        run=selffl_synthetic.run,
    ),
}


def reproduce(
    name: str, out: Path, quick: bool = False, seed: int = 0, progress: Progress | None = None
) -> tuple[list[Table], dict[str, Any]]:
    """Run a study of a paper again.

    Parameters
    ----------
    name
        One of `TABLES`.
    out
        A new folder for the figures and results.json, which has all numbers.
    quick
        A small version, to see that it works.
    seed
        The seed of everything.
    progress
        Called with a line now and then.

    Returns
    -------
    tables, summary
        Tables to print; the same numbers as a dictionary, with the files that were written.
    """
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"table = {name!r} is unknown{hint}; known: {', '.join(TABLES)}")
    with disk_errors(out, "creating"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"{out} exists already: name another folder with --out")
        out.mkdir(parents=True, exist_ok=True)
    with disk_errors(out, "writing to"):
        tables, summary, numbers = TABLES[name].run(out, quick, seed, progress)
    command = f"personafl reproduce {name} --seed {seed}" + (" --quick" if quick else "")
    versions = {
        "personafl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    header = {"table": name, "command": command, "seed": seed, "quick": quick, "versions": versions}
    write_text(out / "results.json", json.dumps({**header, **numbers}))
    files = sorted(path.name for path in out.iterdir())
    return tables, {"out": str(out), "files": files, **header, **summary}
