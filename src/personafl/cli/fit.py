"""`personafl fit`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from personafl.cli.console import DataDir, Json, Overrides, print_json, say

if TYPE_CHECKING:
    from personafl.config import Config
    from personafl.fitting.result import Fit


def fit(
    source: Annotated[
        Path,
        typer.Argument(
            help="A config (.toml), a table (.csv, .parquet), or a folder with a .npz for each client.",
            metavar="CONFIG_OR_DATA",
            readable=False,
        ),
    ],
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long it may take, such as 90s, 10m, 1h30m.")] = "10m",
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The folder. Default: runs/<config or data>-fit.", readable=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the fit in the folder.")] = False,
    methods: Annotated[
        str, typer.Option("-a", "--algorithms", help="What to try, in place of the usual methods.", metavar="A,B,…")
    ] = "",
    one_model: Annotated[
        bool, typer.Option("--one-model", help="One model for each client, no mixtures of predictions.")
    ] = False,
    no_refit: Annotated[
        bool, typer.Option("--no-refit", help="Leave the validation data out of the last training.")
    ] = False,
    trials: Annotated[int | None, typer.Option(metavar="N", help="The most candidates, whatever time is left.")] = None,
    at_once: Annotated[
        int | None,
        typer.Option(metavar="N", help="Candidates trained at once. Default: 1; on Ray, as many as CPUs."),
    ] = None,
    on: Annotated[
        Literal["here", "ray"], typer.Option(help="Train candidates here, or on a Ray cluster.", show_choices=True)
    ] = "here",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster. Default: RAY_ADDRESS, else Ray is started here."),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the column of labels.")] = None,
    client: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the column of client ids.")] = None,
    set_: Overrides = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Find the best model for each client, within a budget of time.

    Tries methods and settings, gives bad ones up early, and chooses for each
    client, all on validation data. Test data only tells how good the result is.
    Ctrl-C ends with the best so far; --resume goes on.

    Examples:

      personafl fit mnist.toml --budget 10m --out runs/mnist-fit

      personafl fit patients.csv --label outcome --client hospital

      personafl fit mnist.toml --budget 30m --out runs/mnist-fit --resume
    """
    begun = time.monotonic()
    from personafl.cli.console import err
    from personafl.fitting.config import config_job_to_fit
    from personafl.fitting.fit import fit_job
    from personafl.fitting.trials import TRIALS_FILE
    from personafl.signals import exit_code, on_stop

    config = _config(source, label, client, set_ or [])
    folder = out_folder or Path("runs") / f"{source.name.split('.')[0]}-fit"
    names = [name.strip() for name in methods.split(",") if name.strip()]

    def again() -> str:
        words = ["personafl", "fit", str(source), "--budget", budget, "--out", str(folder), "--resume"]
        words += ["-a", ",".join(names)] if names else []
        words += ["--one-model"] if one_model else []
        words += ["--no-refit"] if no_refit else []
        given: dict[str, Any] = {
            "--trials": trials,
            "--at-once": at_once,
            "--on": on if on != "here" else None,
            "--address": address,
            "--label": label,
            "--client": client,
            "--data-dir": data_dir,
        }
        for option, value in given.items():
            words += [option, str(value)] if value else []
        return shlex.join([*words, *(w for part in set_ or [] for w in ("-s", part))])

    try:
        with on_stop():
            job = config_job_to_fit(config)
            found = fit_job(
                job,
                folder,
                budget,
                names or None,
                not one_model,
                trials,
                resume,
                True,
                begun,
                at_once,
                on,
                address,
                not no_refit,
            )
    except KeyboardInterrupt as stop:
        if (folder / TRIALS_FILE).exists():
            say(err, f"Stopped; what was trained is kept. Continue with: {again()}")
        else:
            say(err, "Stopped before anything was trained far enough to choose from.")
        raise typer.Exit(exit_code(stop)) from None
    tell(found, as_json)
    if found.summary["stopped"]:
        say(err, f"Stopped; this is the best so far. Continue with: {again()}")
        raise typer.Exit(130)


def tell(found: Fit, as_json: bool) -> None:
    """Write the report of a fit, and print what came out."""
    from personafl.cli.console import out

    page = found.report()
    if as_json:
        told = {key: found.summary[key] for key in ("measure", "test", "way")}
        print_json({"fit": str(found.path), "report": str(page), **told})
        return
    found.show(out)
    say(out, f"Folder: {found.path} (models, clients.parquet, chosen.toml for a real federation)")
    say(out, f"Report: {page}")


def _config(source: Path, label: str | None, client: str | None, overrides: list[str]) -> Config:
    """The config, or one for data alone."""
    from personafl.config import for_method, parse, read_tables
    from personafl.errors import ConfigError
    from personafl.federation.tabular_files import is_table

    if source.suffix == ".toml":
        if label or client:
            raise ConfigError(f"--{'label' if label else 'client'} is for a table: a config has its own [data]")
        tables = read_tables(source)
    else:
        if not source.exists():
            raise ConfigError(f"there is no config or data {source}; a relative path starts at the working directory")
        if label is None and is_table(source) and not any(given.startswith("data.label") for given in overrides):
            raise ConfigError(f"--label is missing: name the column of {source} that holds the labels")
        columns = {"label": label, "client": client}
        data = {"name": "files", "path": str(source), **{key: value for key, value in columns.items() if value}}
        tables = {"data": data, "splits": [0.6, 0.2, 0.2]}
    tables.pop("methods", None)
    return parse(for_method(tables, "separate", overrides))
