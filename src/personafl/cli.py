"""The command line.

Exit codes: 0 done; 2 something in the input is wrong (one line says what); 3 training broke down (every client
diverged); 130 stopped by Ctrl-C (the run can be resumed).
"""

from __future__ import annotations

import logging
import sys

import typer
from rich.logging import RichHandler

from personafl.commands.bench import bench
from personafl.commands.compare import compare
from personafl.commands.console import err
from personafl.commands.demo import demo
from personafl.commands.export import export
from personafl.commands.gain import gain
from personafl.commands.list import list_
from personafl.commands.partition import partition
from personafl.commands.personalize import personalize
from personafl.commands.reproduce import reproduce
from personafl.commands.run import run
from personafl.version import __version__

app = typer.Typer(
    name="personafl",
    help="Personalized federated learning: a model for each client, with the help of the others.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

for command in (demo, run, compare, partition, personalize, gain, export, reproduce, bench):
    app.command()(command)
app.command("list")(list_)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point: user mistakes become one line and an exit code."""
    # On a terminal, warnings have to make way for the progress bar; elsewhere each is one line.
    handler = RichHandler(console=err, show_time=False, show_path=False) if err.is_terminal else logging.StreamHandler()
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s" if err.is_terminal else "warning: %(message)s", handlers=[handler]
    )
    from personafl.errors import PersonaflError

    try:
        app()
    except PersonaflError as error:
        err.print(f"[bold red]error:[/] {_escaped(error)}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


def _escaped(error: Exception) -> str:
    from rich.markup import escape

    return escape(" ".join(str(error).split()))
