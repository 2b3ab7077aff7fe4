"""`personafl gain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from personafl.commands.console import Json, out, print_json, say


def gain(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a Self-FL run.", metavar="RUN", readable=False)],
    threshold: Annotated[float, typer.Option(help="A client profits from this GAIN on.")] = 1.1,
    rows: Annotated[int, typer.Option(help="How many clients to show at each end.")] = 5,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Where the plot goes. Default: gain.png in the run folder.", readable=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell who profits from the federation and by how much, who mainly gives, and who need not join.

    Self-FL learns how unlike the clients are. From that it can be said what
    the others' data is worth to each of them.

    Examples:

      personafl gain runs/mnist-selffl-0

      personafl gain runs/mnist-selffl-0 --threshold 1.5 --plot gain.pdf
    """
    from personafl.gain import gains, plot, sentence
    from personafl.run import load

    found = gains(load(run_folder), threshold)
    columns = ("clients", "samples", "steps", "sigma2", "weight", "gain", "verdict")
    values = [dict(zip(columns, row, strict=True)) for row in zip(*(getattr(found, c) for c in columns), strict=True)]
    if as_json:
        print_json([{k: _plain(v) for k, v in row.items()} for row in values])
        return
    values.sort(key=lambda row: -np.nan_to_num(row["gain"], nan=-np.inf))
    shown = values if len(values) <= 2 * rows else [*values[:rows], None, *values[-rows:]]
    table = Table("client", "samples", "steps", "σ²", "weight", "GAIN", "")
    for row in shown:
        table.add_row(*(["…"] * 7 if row is None else [_brief(row[c]) for c in columns]))
    out.print(table)
    say(out, sentence(found, threshold))
    target = plot_file or run_folder / "gain.png"
    plot(found, target)
    say(out, f"Plot: {target}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
