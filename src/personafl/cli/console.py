"""What the commands share: the two consoles, and options that several of them have.

The consoles `out` and `err` are made when a command imports them from here, which it does when it runs: `--help` and
completion do without rich.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    out: Console
    err: Console


def __getattr__(name: str) -> Console:
    if name not in ("out", "err"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rich.console import Console

    # FORCE_COLOR asks for colours where there is no terminal, not for bars that move.
    shown = (sys.stderr if name == "err" else sys.stdout).isatty()
    made = globals()[name] = Console(stderr=name == "err", force_interactive=None if shown else False)
    return made


def say(console: Console, text: str) -> None:
    """A line as it is: no markup, no colours for numbers and paths, no breaks inside of a path or a command."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """A line of JSON on standard output. JSON has no word for numbers that are not finite: they are null."""
    print(json.dumps(_finite(value), allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a key of the config; may be repeated."),
]
Module = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:NAME",
        help="Your model, where the run has one of yours: a class or function without arguments. It is imported, "
        "from the current directory as python -m does.",
    ),
]
Backbone = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="The weights of the frozen backbone, where the run has one and they are not where they were.",
        readable=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def _use_data_dir(folder: Path | None) -> Path | None:
    if folder is None:  # completion asks too, and has no time for imports
        return None
    from personafl.data.readers import VARIABLE
    from personafl.errors import DataError

    if not folder.is_dir():
        raise DataError(f"--data-dir names {folder}, which is not a directory")
    os.environ[VARIABLE] = str(folder)
    return folder


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where data sets lie. Default: the environment variable PERSONAFL_DATA, then the cache.",
        readable=False,
        callback=_use_data_dir,
    ),
]
