"""`personafl personalize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from personafl.cli.console import Backbone, Json, Module, print_json, say


def personalize(
    run_folder: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", readable=False)],
    data: Annotated[
        Path,
        typer.Argument(
            help="A .npz file with x (or x.NAME, …) and y, or a folder with one for each newcomer.",
            metavar="DATA",
            readable=False,
        ),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Where the models go (safetensors).", readable=False)] = Path(
        "personalized.safetensors"
    ),
    module: Module = None,
    backbone: Backbone = None,
    as_json: Json = False,
) -> None:
    """Make personalized models for clients that were not there for the training.

    A newcomer gets what the server would send now, and trains on its own data
    as the run's algorithm says. Nothing in the run folder changes.

    Examples:

      personafl personalize runs/mnist-ditto-0 new-hospital.npz

      personafl personalize runs/mnist-ditto-0 newcomers/ --out new.safetensors

      personafl personalize runs/texts new.npz --module mymodels.text:Net
    """
    from rich.markup import escape
    from rich.table import Table

    from personafl.cli.console import out
    from personafl.cli.opened import open_run
    from personafl.errors import DataError
    from personafl.training.newcomers import read_newcomers

    found = open_run(run_folder, module, backbone)
    if out_file.exists():
        raise DataError(f"{out_file} exists already: name another file with --out")
    federation = found.newcomers(read_newcomers(data))
    sums = found.write_newcomers(out_file, federation)
    rows = [
        {
            "client": name,
            "n_train": int(federation.sizes("train")[k]),
            "n_test": int(n := federation.sizes("test")[k]),
            # Losses and hits are sums over samples; other metrics are values already.
            **{
                metric: float(values[k] / (n if metric in ("loss", "correct") else 1)) if n else None
                for metric, values in sums.items()
            },
        }
        for k, name in enumerate(federation.ids)
    ]
    if as_json:
        print_json({"models": str(out_file), "newcomers": rows})
        return
    table = Table(*rows[0], caption="on their own test samples, where they brought any; loss and correct are means")
    for row in rows:
        table.add_row(
            *("–" if v is None else f"{v:.4f}" if isinstance(v, float) else escape(str(v)) for v in row.values())
        )
    out.print(table)
    say(out, f"Models: {out_file}")
