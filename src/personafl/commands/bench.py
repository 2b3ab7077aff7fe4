"""`personafl bench`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from personafl.commands.console import Json, err, out


def bench(
    repeat: Annotated[int, typer.Option(help="Repetitions of each measurement.")] = 9,
    threads: Annotated[int | None, typer.Option(help="torch threads. Default: all cores.")] = None,
    as_json: Json = False,
) -> None:
    """Time a round on each engine, beside hand-written references in the same process."""
    from personafl.bench import run_bench, tables

    results = run_bench(repeat, threads, progress=None if as_json else err.print)
    if as_json:
        print(json.dumps(results))
        return
    for table in tables(results):
        out.print(table)
