"""`personafl bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Json, print_json, say


def bench(
    jobs: Annotated[str, typer.Option(help="Which jobs, such as a,b. Default: all, a to k.")] = "a,b,c,d,e,f,g,h,i,j,k",
    repeat: Annotated[int, typer.Option(help="Turns of each contestant, up to ten rounds each.")] = 5,
    threads: Annotated[int | None, typer.Option(help="Threads or processes for each. Default: all cores.")] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Other libraries take part, where they are installed.")
    ] = False,
    peers_python: Annotated[
        str | None, typer.Option(metavar="FILE", help="The interpreter that has the other libraries.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the result: .png, .svg or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Time rounds beside hand-written references, other libraries, and what this machine could do.

    Takes about two minutes, with other libraries half an hour. The machine
    should have nothing else to do.

    Examples:

      personafl bench

      personafl bench --jobs a,b --repeat 3 --threads 1 --json

      personafl bench --peers --picture bench.svg
    """
    from personafl.cli.console import err, out
    from personafl_bench.picture import check_picture
    from personafl_bench.run import draw, find_peers, run_bench, tables

    if picture is not None:
        check_picture(picture)
    found, missing = find_peers(peers_python) if peers or peers_python else ({}, {})
    for name, reason in missing.items():
        say(
            err, f"{name} does not take part: {reason} (pip install 'personafl[peers]', or benchmarks/peers/install.sh)"
        )
    progress = (lambda text: say(err, text)) if err.is_interactive and not as_json else None
    results = run_bench(repeat, threads, [key.strip() for key in jobs.split(",")], found, progress)
    results["missing"] = missing
    if picture is not None:
        draw(results, picture)
    if as_json:
        print_json(results)
        return
    for table in tables(results):
        out.print(table)
