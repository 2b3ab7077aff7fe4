"""The command line.

Exit codes: 0 done; 2 something in the input is wrong (one line says what); 3 training broke down (every client
diverged); 130 stopped by Ctrl-C, 143 by SIGTERM (the run can be resumed); 1 `watch` saw a run stop before its end, or
`site check` found what keeps a site from joining.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Annotated, Any

import typer

from personafl.cli.commands import Program
from personafl.version import __version__

app = typer.Typer(
    name="personafl",
    cls=Program,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # typer's coloured help takes longer to import than all else; commands have it for theirs
)


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


class Warnings(logging.Handler):
    """On a terminal, warnings have to make way for the progress bar; elsewhere each is one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one warning."""
        _handler().handle(record)


@cache
def _handler() -> logging.Handler:
    """Made at the first warning: mostly there is none."""
    from personafl.cli.console import err

    handler: logging.Handler
    if err.is_interactive:
        from rich.logging import RichHandler

        handler = RichHandler(console=err, show_time=False, show_path=False)
    else:
        handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if err.is_interactive else "warning: %(message)s"))
    return handler


def main() -> None:
    """Entry point: user mistakes become one line and an exit code."""
    logging.basicConfig(level=logging.WARNING, handlers=[Warnings()])
    from personafl.errors import PersonaflError

    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="personafl", standalone_mode=False))
    except PersonaflError as error:
        _say_error(str(error))
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _say_error("there is not enough memory for this: take fewer clients, samples or parameters at once")
        sys.exit(PersonaflError.exit_code)
    except _UsageError as error:
        _say_error(_mistyped(error))
        sys.exit(PersonaflError.exit_code)


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory was refused: by Python, numpy and pyarrow as a MemoryError, by torch in words.

    >>> _out_of_memory(MemoryError()), _out_of_memory(RuntimeError("no such layer"))
    (True, False)
    """
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


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

    from personafl.cli.console import err

    err.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}", highlight=False, soft_wrap=True)
