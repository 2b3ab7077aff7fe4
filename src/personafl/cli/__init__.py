"""The command line.

Exit codes: 0 done; 2 something in the input is wrong (one line says what); 3 training broke down (every client
diverged); 130 stopped by Ctrl-C, 143 by SIGTERM (the run can be resumed); 1 `watch` saw a run stop before its end, or
`site check` found what keeps a site from joining.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from personafl.cli.compare import compare
from personafl.cli.console import err
from personafl.cli.demo import demo
from personafl.cli.deploy import deploy
from personafl.cli.export import export
from personafl.cli.gain import gain
from personafl.cli.list import list_
from personafl.cli.partition import partition
from personafl.cli.personalize import personalize
from personafl.cli.report import report
from personafl.cli.run import run
from personafl.cli.site import site
from personafl.cli.watch import watch
from personafl.version import __version__

log = logging.getLogger("personafl")

app = typer.Typer(
    name="personafl",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

for command in (demo, run, compare, report, watch, partition, personalize, gain, export):
    app.command()(command)
app.command("list")(list_)
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")


def _add_installed() -> None:
    """Commands of installed packages, by their entry points `personafl.commands`; none takes the place of ours."""
    own = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    for point in entry_points(group="personafl.commands"):
        if point.name in own:
            continue
        try:
            app.command(point.name)(point.load())
        except Exception as error:  # whatever somebody's package raises: the other commands work without it
            log.warning("the command %s of an installed package cannot be imported: %s", point.name, error)


_add_installed()


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Personalized federated learning: a model for each client, with the help of the others."""


@app.command()
def version() -> None:
    """Print the version.

    Examples:

      personafl version
    """
    print(__version__)


def main() -> None:
    """Entry point: user mistakes become one line and an exit code."""
    # On a terminal, warnings have to make way for the progress bar; elsewhere each is one line.
    handler = (
        RichHandler(console=err, show_time=False, show_path=False) if err.is_interactive else logging.StreamHandler()
    )
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s" if err.is_interactive else "warning: %(message)s",
        handlers=[handler],
    )
    from personafl.errors import PersonaflError

    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="personafl", standalone_mode=False))
    except PersonaflError as error:
        _say_error(str(error))
        sys.exit(error.exit_code)
    except _UsageError as error:
        _say_error(_mistyped(error))
        sys.exit(PersonaflError.exit_code)


# What typer raises for a mistyped command or option. It has no public name, but a public subclass.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _mistyped(error: Any) -> str:
    """What typer has to say, in our manner.

    >>> _mistyped(_UsageError("No such option: --ronds"))
    'no such option: --ronds (see personafl --help)'
    """
    said = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "personafl"
    return f"{said[:1].lower()}{said[1:]} (see {command} --help)"


def _say_error(text: str) -> None:
    from rich.markup import escape

    err.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}", highlight=False, soft_wrap=True)
