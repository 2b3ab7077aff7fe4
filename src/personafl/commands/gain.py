"""`personafl gain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from personafl.commands.console import Json, out


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

    Example: personafl gain runs/mnist-selffl-0
    """
    from personafl.gain import gains, plot, sentence
    from personafl.run import load

    found = gains(load(run_folder), threshold)
    columns = ("clients", "samples", "steps", "sigma2", "weight", "gain", "verdict")
    values = [dict(zip(columns, row, strict=True)) for row in zip(*(getattr(found, c) for c in columns), strict=True)]
    if as_json:
        print(json.dumps([{k: _plain(v) for k, v in row.items()} for row in values]))
        return
    values.sort(key=lambda row: -np.nan_to_num(row["gain"], nan=-np.inf))
    shown = values if len(values) <= 2 * rows else [*values[:rows], None, *values[-rows:]]
    table = Table("client", "samples", "steps", "σ²", "weight", "GAIN", "")
    for row in shown:
        table.add_row(*(["…"] * 7 if row is None else [_brief(row[c]) for c in columns]))
    out.print(table)
    out.print(sentence(found, threshold))
    target = plot_file or run_folder / "gain.png"
    plot(found, target)
    out.print(f"Plot: {target}")


def _plain(value: Any) -> Any:
    """A number for JSON, which has no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
