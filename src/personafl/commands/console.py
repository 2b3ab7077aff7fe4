"""What the commands share: the two consoles, and options that several of them have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)


def say(console: Console, text: str) -> None:
    """A line as it is: no markup, no colours for numbers and paths, no breaks inside of a path or a command."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a key of the config; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def _use_data_dir(folder: Path | None) -> Path | None:
    from personafl.data.files import VARIABLE
    from personafl.errors import DataError

    if folder is not None:
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
