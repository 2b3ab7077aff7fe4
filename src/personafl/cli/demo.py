"""`personafl demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Json, say


def demo(
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 60,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds: federations and trainings.")] = 2,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the runs go. Default: the next free runs/demo-N.", readable=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forty unlike clients, real handwritten digits: does the federation help them?

    Compares six methods and writes a report, in under a minute.

    Examples:

      personafl demo

      personafl demo --rounds 20 --seeds 1 --out runs/first-look
    """
    from personafl.cli.console import err, out
    from personafl.comparison import run_comparison
    from personafl.signals import exit_code, on_stop
    from personafl.study.demo import demo_plan, sentence

    planned = demo_plan(rounds, seed, seeds)
    folder = out_folder or _next_free(Path("runs"))
    try:
        with on_stop():
            found = run_comparison(planned, folder, err)
    except KeyboardInterrupt as stop:
        words = ["--rounds", str(rounds), "--seed", str(seed), "--seeds", str(seeds), "--out", str(folder)]
        say(err, f"Stopped; what is done is kept. Continue with: {shlex.join(['personafl', 'demo', *words])}")
        raise typer.Exit(exit_code(stop)) from None
    page = found.report()
    if as_json:
        print((folder / "comparison.json").read_text(encoding="utf-8"), end="")
        return
    found.show(out)
    say(out, sentence(found))
    say(out, f"Report: {page}")


def _next_free(parent: Path) -> Path:
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
