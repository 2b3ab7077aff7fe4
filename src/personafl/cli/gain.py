"""`personafl gain`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import Json, print_json, say

if TYPE_CHECKING:
    from personafl.study.gain_check import Check


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

    Self-FL learns how unlike the clients are. From that it estimates what the
    others' data is worth to each of them, and checks the estimate against
    validation data: by chance, and beside a run of separate, if there is one.

    Examples:

      personafl gain runs/mnist-selffl-0

      personafl gain runs/mnist-selffl-0 --threshold 1.5 --plot gain.pdf
    """
    from rich.markup import escape
    from rich.table import Table

    from personafl.cli.console import out
    from personafl.runs.run import load
    from personafl.study.gain import gains, plot, sentence
    from personafl.study.gain_check import check, words

    run = load(run_folder)
    found, measured = gains(run, threshold), check(run)
    columns = ("clients", "samples", "steps", "sigma2", "weight", "gain", "verdict")
    values = [dict(zip(columns, row, strict=True)) for row in zip(*(getattr(found, c) for c in columns), strict=True)]
    if as_json:
        rows_of_check = _measured(measured)
        print_json(
            [{k: _plain(v) for k, v in (row | more).items()} for row, more in zip(values, rows_of_check, strict=True)]
        )
        return
    values.sort(key=lambda row: math.inf if math.isnan(row["gain"]) else -row["gain"])
    shown = values if len(values) <= 2 * rows else [*values[:rows], None, *values[-rows:]]
    table = Table("client", "samples", "steps", "σ²", "weight", "GAIN", "")
    for row in shown:
        table.add_row(*(["…"] * 7 if row is None else [escape(_brief(row[c])) for c in columns]))
    out.print(table)
    said = [sentence(found, threshold), words(measured)]
    for each in reversed(said) if measured.borne_out is False else said:
        say(out, each)
    target = plot_file or run_folder / "gain.png"
    plot(found, target)
    say(out, f"Plot: {target}")


def _measured(found: Check) -> list[dict[str, Any]]:
    """What was measured of each client: its score together and alone, on which data, and the verdict on all."""
    alone = [math.nan] * len(found.n) if found.alone is None else found.alone
    kind = found.measure.name
    return [
        {f"{found.split}_{kind}": mine, f"{found.split}_{kind}_alone": theirs, "borne_out": found.borne_out}
        for mine, theirs in zip(found.together, alone, strict=True)
    ]


def _plain(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) or hasattr(value, "is_integer") else str(value)
