"""`personafl partition`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import DataDir, Json, Overrides, print_json, say

if TYPE_CHECKING:
    from rich.table import Table


def partition(
    config: Annotated[Path, typer.Argument(help="The config, a TOML file.", metavar="CONFIG.toml", readable=False)],
    set_: Overrides = None,
    picture: Annotated[bool, typer.Option("--plot", help="Draw who has how many samples of which class.")] = False,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where the picture goes (.png, .pdf, .svg). Default: <config>-partition.png beside the config.",
            readable=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show how a config divides the data over clients, without training.

    Who has how many samples, how unlike the clients are, and a picture of it.

    Examples:

      personafl partition mnist.toml

      personafl partition mnist.toml -s partition.name=ds1 --plot --out ds1.png
    """
    from personafl.cli.console import out
    from personafl.config import read_config
    from personafl.federation.overview import overview

    target = out_file or config.with_name(f"{config.stem}-partition.png")
    settings = read_config(config, set_ or [])
    if drawn := picture or out_file is not None:
        from personafl.federation.overview_plot import check_target, plot

        check_target(target)  # before the data is read, which may take a while
    federation = settings.federation()
    made = overview(federation)
    if drawn:
        plot(federation, target)
    if as_json:
        print_json({**made, "plot": str(target) if drawn else None})
        return
    out.print(summary_table(made))
    for note in made["notes"]:
        say(out, f"Note: {note}.")
    if drawn:
        say(out, f"Picture: {target}")


def summary_table(made: dict[str, Any]) -> Table:
    """What `overview` says, for people."""
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_row("data", made["name"])
    table.add_row("clients", f"{made['clients']:,}")
    table.add_row("samples", f"{made['samples']:,}")
    table.add_row("samples a client", _spread(made["sizes"]))
    shares = ", ".join(f"{split} {share:.1%}" for split, share in made["shares"].items())
    table.add_row("splits", shares)
    if made["without_test_samples"]:
        table.add_row("without test samples", f"{made['without_test_samples']:,} clients")
    if made["groups"]:
        table.add_row("groups", ", ".join(f"{name} ({clients})" for name, clients in made["groups"].items()))
    if made["classes"] is None:
        table.add_row("classes", "none: a regression")
        return table
    table.add_row("classes", f"{made['classes']:,}")
    table.add_row("classes a client", _spread(made["classes_per_client"]))
    table.add_row(
        "heterogeneity",
        f"{made['heterogeneity']:.3f} (0: all alike; dealt at random it would be "
        f"{made['heterogeneity_by_chance']:.3f})",
    )
    return table


def _spread(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.5g}" for name, value in values.items())
