"""The command line.

Exit codes: 0 done; 2 something in the input is wrong (one line says what); 3 training broke down (every client
diverged); 130 stopped by Ctrl-C (the run can be resumed).
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from personafl.commands.compare import compare
from personafl.commands.console import DataDir
from personafl.commands.export import export
from personafl.commands.partition import partition
from personafl.version import __version__

app = typer.Typer(
    name="personafl",
    help="Personalized federated learning: a model for each client, with the help of the others.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console()
err = Console(stderr=True)

Overrides = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a key of the config; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


@app.command()
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
        out.print(_score_table({settings.algorithm.name: done}))
    else:
        out.print("No client has test data, so nothing was measured on it.")
    out.print(f"Run folder: {folder}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 60,
    seed: Annotated[int, typer.Option(help="The seed of everything.")] = 0,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the runs go. Default: the next free runs/demo-N.", readable=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forty unlike clients, real handwritten digits: does the federation help them?"""
    from personafl.demo import run_demo, sentence
    from personafl.events import ProgressBar

    runs = run_demo(
        rounds, seed, out_folder or _next_free(Path("runs")), lambda name: [ProgressBar(err, f"{name:>10}")]
    )
    if as_json:
        print(json.dumps({name: {"run": str(found.path), **found.score} for name, found in runs.items()}))
        return
    out.print(_score_table(runs))
    out.print(sentence(runs))
    out.print(f"Runs: {next(iter(runs.values())).path.parent}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def personalize(
    run_folder: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", readable=False)],
    data: Annotated[
        Path,
        typer.Argument(help="A .npz file with x and y, or a folder with one for each newcomer.", readable=False),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Where the models go (safetensors).", readable=False)] = Path(
        "personalized.safetensors"
    ),
    as_json: Json = False,
) -> None:
    """Make personalized models for clients that were not there for the training.

    Example: personafl personalize runs/mnist-ditto-0 new-hospital.npz --out new-hospital.safetensors
    """
    from personafl.errors import DataError
    from personafl.newcomers import newcomer_engine, newcomer_federation, personalize_newcomers, read_newcomers
    from personafl.run import load

    found = load(run_folder)
    if out_file.exists():
        raise DataError(f"{out_file} exists already: name another file with --out")
    federation = newcomer_federation(found, read_newcomers(data))
    models = personalize_newcomers(found, federation)
    found.save_models(out_file, models, federation.ids)
    sums = newcomer_engine(found, federation).evaluate(models, np.arange(len(federation)), "test")
    rows = [
        {
            "client": name,
            "n_train": int(federation.sizes("train")[k]),
            "n_test": int(n := federation.sizes("test")[k]),
            **{metric: float(values[k] / n) if n else None for metric, values in sums.items()},
        }
        for k, name in enumerate(federation.ids)
    ]
    if as_json:
        print(json.dumps({"models": str(out_file), "newcomers": rows}))
        return
    table = Table(*rows[0], caption="means over their own test samples, where they brought any")
    for row in rows:
        table.add_row(*("–" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()))
    out.print(table)
    out.print(f"Models: {out_file}")


@app.command()
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


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="algorithms, data, partitions, models, engines or tables.")],
    name: Annotated[str | None, typer.Argument(help="Show all about one of them.")] = None,
    as_json: Json = False,
) -> None:
    """Show what there is to choose from.

    Examples:

      personafl list algorithms

      personafl list algorithms fedamp
    """
    from personafl.algorithms import ALGORITHMS
    from personafl.data import PARTITIONS, SOURCES
    from personafl.engines import ENGINES
    from personafl.errors import ConfigError
    from personafl.models import MODELS
    from personafl.tables import TABLES

    engines: dict[str, Any] = {**ENGINES}
    kinds: dict[str, dict[str, Any]] = {
        "algorithms": dict(ALGORITHMS), "data": dict(SOURCES), "partitions": dict(PARTITIONS), "models": dict(MODELS),
        "engines": engines, "tables": dict(TABLES),
    }  # fmt: skip
    if what not in kinds:
        raise ConfigError(f"cannot list {what!r}: known are {', '.join(kinds)}")
    if name is not None and name not in kinds[what]:
        raise ConfigError(f"there is no {name!r} among the {what}: known are {', '.join(kinds[what])}")
    rows = [_describe(key, kind) for key, kind in kinds[what].items() if name in (None, key)]
    if what == "engines" and name is None:
        rows.append({"name": "auto", "about": "Times the others on this model and machine and takes the fastest."})
    if as_json:
        print(json.dumps(rows))
        return
    if name is not None:
        about = Table(show_header=False, box=None)
        for key, value in rows[0].items():
            about.add_row(key.replace("_", " "), _cell(value))
        out.print(about)
        return
    shown = list(rows[0])
    if what == "algorithms":  # the rest is in --json and in docs/algorithms.md
        shown = ["name", "up", "down", "client_keeps", "personalized_model"]
    if what == "partitions":
        shown = ["name", "about", "paper"]
    table = Table(title=what, title_justify="left")
    for column in shown:
        table.add_column(column.replace("_", " "), no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in shown))
    out.print(table)


@app.command()
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

    Example: personafl reproduce selffl-synthetic --quick
    """
    from personafl.tables import reproduce as run_again

    folder = out_folder or Path("runs") / f"{table}-{seed}{'-quick' if quick else ''}"
    tables, summary = run_again(table, folder, quick, seed, None if as_json else err.print)
    if as_json:
        print(json.dumps(summary))
        return
    for shown in tables:
        out.print(shown)
    out.print(f"Folder: {folder} ({', '.join(summary['files'])})", markup=False, highlight=False, soft_wrap=True)


@app.command()
def bench(
    repeat: Annotated[int, typer.Option(help="Repetitions of each measurement.")] = 9,
    threads: Annotated[int | None, typer.Option(help="torch threads. Default: all cores.")] = None,
    as_json: Json = False,
) -> None:
    """Time a round on each engine, beside hand-written references in the same process."""
    from personafl.bench import run_bench, tables

    results = run_bench(repeat, threads, progress=None if as_json else err.print)
    if as_json:
        print(json.dumps(results))
        return
    for table in tables(results):
        out.print(table)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


app.command()(compare)
app.command()(export)
app.command()(partition)


def main() -> None:
    """Entry point: user mistakes become one line and an exit code."""
    # On a terminal, warnings have to make way for the progress bar; elsewhere each is one line.
    handler = RichHandler(console=err, show_time=False, show_path=False) if err.is_terminal else logging.StreamHandler()
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s" if err.is_terminal else "warning: %(message)s", handlers=[handler]
    )
    from personafl.errors import PersonaflError

    try:
        app()
    except PersonaflError as error:
        err.print(f"[bold red]error:[/] {_escaped(error)}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


def _escaped(error: Exception) -> str:
    from rich.markup import escape

    return escape(" ".join(str(error).split()))


def _score_table(runs: dict[str, Any]) -> Table:
    """One row per run: personalized and global model on everybody's test data."""
    from personafl.demo import row

    rows = [row(name, found) for name, found in runs.items()]
    table = Table(*rows[0], caption="on the clients' own test data, after the last round", caption_justify="left")
    for cells in rows:
        table.add_row(*cells.values())
    return table


def _describe(name: str, kind: Any) -> dict[str, Any]:
    if hasattr(kind, "cost"):  # a table of a paper
        return {"name": name, "about": kind.about, "cost": kind.cost, "data": kind.data}
    about = next(line for line in (kind.__doc__ or "").strip().splitlines())
    if not hasattr(kind, "__dataclass_fields__"):
        return {"name": name, "about": about}
    settings = {f.name: None if f.default is MISSING else f.default for f in fields(kind)}
    row = {"name": name, "about": about, "settings": settings}
    if hasattr(kind, "traffic"):
        row |= {
            "up": kind.traffic[0], "down": kind.traffic[1], "client_keeps": kind.keeps,
            "personalized_model": kind.personalized, "newcomer": kind.newcomer, "paper": kind.paper,
        }  # fmt: skip
    elif hasattr(kind, "paper"):  # a partition; its splits are the paper's, or else the data's
        row |= {"paper": kind.paper, "splits": getattr(kind, "splits", None)}
    return row


def _plain(value: Any) -> Any:
    """A number for JSON, which has no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {default!r}" for key, default in value.items())
    return str(value)


def _next_free(parent: Path) -> Path:
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
