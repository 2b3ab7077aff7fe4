"""`personafl run`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personafl.cli.console import DataDir, Json, Overrides, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from personafl.metrics.measures import Measure
    from personafl.runs.run import Run


def run(
    config: Annotated[Path, typer.Argument(help="The config, a TOML file.", metavar="CONFIG.toml", readable=False)],
    set_: Overrides = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder. Default: runs/<config>-<algorithm>-<seed>.", readable=False),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Short for -s engine.name=NAME; see: personafl list engines.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder after its last checkpoint.")
    ] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write curves for TensorBoard, to a folder in DIR.", readable=False),
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Also tell MLflow there, such as sqlite:///mlflow.db.")
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Also tell Weights & Biases; WANDB_MODE=offline keeps it here."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train what a config describes.

    Ctrl-C or SIGTERM ends the round that is going on and saves; with --resume
    the same command continues after the last checkpoint.

    Examples:

      personafl run mnist.toml -s algorithm.name=fedprox -s local.steps=40

      personafl run mnist.toml --out runs/first --resume

      personafl run mnist.toml --engine flower-sim

      personafl run mnist.toml --tensorboard boards --mlflow sqlite:///mlflow.db
    """
    from personafl.cli.console import err, out
    from personafl.config import read_config
    from personafl.jobs import train_config
    from personafl.runs.trackers import MLflow, TensorBoard
    from personafl.runs.weights_and_biases import WandB
    from personafl.signals import Interrupted, exit_code, on_stop
    from personafl.training.events import ProgressBar

    overrides = [*(set_ or []), *([f"engine.name={engine}"] if engine else [])]
    settings = read_config(config, overrides)
    folder = out_folder or Path("runs") / f"{config.stem}-{settings.algorithm.name}-{settings.seed}"
    name = folder.resolve().name
    boards = [TensorBoard(tensorboard / name)] if tensorboard else []
    trackers = [MLflow(mlflow, name=name)] if mlflow else []
    projects = [WandB(wandb, name=name)] if wandb else []
    try:
        with on_stop():
            done = train_config(settings, folder, resume, [*boards, *trackers, *projects, ProgressBar(err)])
    except KeyboardInterrupt as stop:
        saved = isinstance(stop, Interrupted) and stop.saved
        how = "Stopped" if saved else "Stopped at once; the last checkpoint is kept"
        settings_again = [word for part in overrides for word in ("-s", part)]
        settings_again += ["--tensorboard", str(tensorboard)] if tensorboard else []
        settings_again += ["--mlflow", mlflow] if mlflow else []
        settings_again += ["--wandb", wandb] if wandb else []
        settings_again += ["--data-dir", str(data_dir)] if data_dir else []
        again = shlex.join(["personafl", "run", str(config), *settings_again, "--out", str(folder), "--resume"])
        say(err, f"{how}. Continue with: {again}")
        raise typer.Exit(exit_code(stop)) from None
    if as_json:
        print_json({"run": str(folder), **done.score})
        return
    if "personal_loss" in done.score:
        out.print(score_table(settings.algorithm.name, done))
    else:
        say(out, "No client has test data, so nothing was measured on it.")
    if early := done.manifest.get("stopped"):
        say(out, f"Ended early, after round {early['round']}: {early['why']}.")
    say(out, f"Run folder: {folder}")


def score_table(name: str, run: Run) -> Table:
    """Personalized and global model on everybody's test data."""
    from rich.table import Table

    score, first = run.score, run.primary
    others = [m for m in run.measures if m.name != first.name and f"personal_{m.name}" in score]
    also = ", ".join(f"{m.label} {_written(m, score[f'personal_{m.name}'])}" for m in others)
    said = "on the clients' own test data, after the last round" + (f"; also {also}" if also else "")
    cells = _row(name, run)
    table = Table(*cells, caption=said, caption_justify="left")
    table.add_row(*cells.values())
    return table


def _row(name: str, run: Run) -> dict[str, str]:
    import numpy as np

    from personafl.metrics import worst_accuracy
    from personafl.metrics.measures import LOSS

    score, first, traffic = run.score, run.primary, run.rounds()[-1]
    first = first if f"personal_{first.name}" in score else LOSS
    values = run.clients().column(f"personal_{first.name}").to_numpy(zero_copy_only=False).astype(np.float64)
    sign = first.better or 1
    named = "" if first.name == "accuracy" else f" {first.label}"
    return {
        "algorithm": name,
        f"personalized{named}": _written(first, score[f"personal_{first.name}"]),
        "global model": _written(first, score.get(f"global_{first.name}")),
        "worst 10% of clients": _written(first, sign * worst_accuracy(sign * values)),
        "sent MB": f"{(traffic['bytes_up'] + traffic['bytes_down']) / 1e6:.1f}",
        "seconds": f"{run.seconds:.1f}",
    }


def _written(measure: Measure, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if measure.unit == "%" else f"{value:.4f}"
