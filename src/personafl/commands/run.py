"""`personafl run`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from personafl.commands.console import DataDir, Json, Overrides, err, out

if TYPE_CHECKING:
    from personafl.run import Run


def run(
    config: Annotated[Path, typer.Argument(help="The config, a TOML file.", metavar="CONFIG.toml", readable=False)],
    set_: Overrides = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder. Default: runs/<config>-<algorithm>-<seed>.", readable=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder after its last checkpoint.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train what a config describes.

    Examples:

      personafl run mnist.toml -s algorithm.name=fedprox -s local.steps=40

      personafl run mnist.toml --out runs/first --resume
    """
    from personafl.config import read_config
    from personafl.events import ProgressBar
    from personafl.runner import Interrupted
    from personafl.train import train_config

    settings = read_config(config, set_ or [])
    folder = out_folder or Path("runs") / f"{config.stem}-{settings.algorithm.name}-{settings.seed}"
    try:
        done = train_config(settings, folder, resume, [ProgressBar(err)])
    except KeyboardInterrupt as stop:
        how = "Stopped" if isinstance(stop, Interrupted) else "Stopped at once; the last checkpoint is kept"
        settings_again = [word for part in set_ or [] for word in ("-s", part)]
        settings_again += ["--data-dir", str(data_dir)] if data_dir else []
        again = shlex.join(["personafl", "run", str(config), *settings_again, "--out", str(folder), "--resume"])
        err.print(f"{how}. Continue with: {again}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({"run": str(folder), **done.score}))
        return
    if "personal_loss" in done.score:
        out.print(score_table(settings.algorithm.name, done))
    else:
        out.print("No client has test data, so nothing was measured on it.")
    out.print(f"Run folder: {folder}", markup=False, highlight=False, soft_wrap=True)


def score_table(name: str, run: Run) -> Table:
    """Personalized and global model on everybody's test data."""
    cells = _row(name, run)
    table = Table(*cells, caption="on the clients' own test data, after the last round", caption_justify="left")
    table.add_row(*cells.values())
    return table


def _row(name: str, run: Run) -> dict[str, str]:
    score, seconds = run.score, run.seconds
    if "personal_accuracy" not in score:
        common = score.get("global_loss")
        return {
            "algorithm": name,
            "personalized loss": f"{score['personal_loss']:.4f}",
            "global loss": "–" if common is None else f"{common:.4f}",
            "seconds": f"{seconds:.1f}",
        }
    from personafl.metrics import worst_accuracy

    accuracy = np.array([a for a in run.clients().column("personal_accuracy").to_pylist() if a is not None])
    traffic = run.rounds()[-1]
    return {
        "algorithm": name,
        "personalized": f"{score['personal_accuracy']:.1%}",
        "global model": f"{score['global_accuracy']:.1%}" if "global_accuracy" in score else "–",
        "worst 10% of clients": f"{worst_accuracy(accuracy):.1%}",
        "sent MB": f"{(traffic['bytes_up'] + traffic['bytes_down']) / 1e6:.1f}",
        "seconds": f"{seconds:.1f}",
    }
