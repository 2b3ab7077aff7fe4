"""`personafl bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from personafl.commands.console import Json, err, out, print_json


def bench(
    repeat: Annotated[int, typer.Option(help="Repetitions of each measurement.")] = 9,
    threads: Annotated[int | None, typer.Option(help="torch threads. Default: all cores.")] = None,
    as_json: Json = False,
) -> None:
    """Time a round on each engine, beside hand-written references.

    The machine should have nothing else to do.

    Examples:

      personafl bench

      personafl bench --repeat 3 --threads 1 --json
    """
    from personafl.bench import run_bench, tables

    results = run_bench(repeat, threads, progress=err.print if err.is_interactive and not as_json else None)
    if as_json:
        print_json(results)
        return
    for table in tables(results):
        out.print(table)
