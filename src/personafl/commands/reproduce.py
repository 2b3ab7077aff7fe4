"""`personafl reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.commands.console import DataDir, Json, err, out, print_json, say


def reproduce(
    table: Annotated[str, typer.Argument(help="Which one, see: personafl list tables", metavar="TABLE")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version in seconds, to see that it works.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of everything.")] = 0,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder. Default: runs/<table>-<seed>, or …-quick.", readable=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a study of a paper again, with its tables and figures.

    What comes out stands beside what the paper published.

    Examples:

      personafl list tables

      personafl reproduce selffl-synthetic --quick
    """
    from personafl.tables import reproduce as run_again

    folder = out_folder or Path("runs") / f"{table}-{seed}{'-quick' if quick else ''}"
    tables, summary = run_again(table, folder, quick, seed, err.print if err.is_interactive and not as_json else None)
    if as_json:
        print_json(summary)
        return
    for shown in tables:
        out.print(shown)
    say(out, f"Folder: {folder} ({', '.join(summary['files'])})")
