"""`personafl compare`."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from personafl.cli.console import DataDir, Json, Overrides, say


def compare(
    config: Annotated[Path, typer.Argument(help="The config, a TOML file.", metavar="CONFIG.toml", readable=False)],
    methods: Annotated[
        str,
        typer.Option(
            "-a", "--algorithms", help="Methods, separated by commas; all for every algorithm.", metavar="A,B,…"
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, counting up from the config's.")] = 3,
    set_: Overrides = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=[…]", help="Search these values on validation data; may be repeated."),
    ] = None,
    tune_seeds: Annotated[int, typer.Option(help="How many of the seeds the search uses.")] = 1,
    equal_work: Annotated[
        bool, typer.Option("--equal-work", help="Give every method the gradients of the one that computes most.")
    ] = False,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Where the runs go. Default: runs/<config>-compare.", readable=False)
    ] = None,
    on: Annotated[
        Literal["here", "ray"], typer.Option(help="One run after another, or side by side on Ray.", show_choices=True)
    ] = "here",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster. Default: RAY_ADDRESS, else Ray is started here."),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(metavar="N", help="How many runs may go on at once on Ray. Default: one a CPU.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table there as CSV.", readable=False)] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write the table there for LaTeX.", readable=False)] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compare methods over several seeds: who is better, for whom, and is the difference real?

    Runs what is missing and reuses what exists, so the same command continues
    after an interruption.

    Examples:

      personafl compare mnist.toml -a selffl,ditto,fedamp --seeds 5

      personafl compare mnist.toml -a ditto,fedprox --tune 'ditto.lam=[0.1,1]'

      personafl compare mnist.toml -a selffl,ditto --equal-work

      personafl compare mnist.toml -a all --seeds 10 --on ray
    """
    from personafl.cli.console import err, out
    from personafl.comparison import run_comparison
    from personafl.config import read_tables
    from personafl.errors import ConfigError
    from personafl.files import write_text
    from personafl.signals import exit_code, on_stop
    from personafl.study.launch import in_process
    from personafl.study.plan import plan

    names = [name.strip() for name in methods.split(",") if name.strip()]
    planned = plan(read_tables(config), names, seeds, set_ or [], tune or [], tune_seeds, equal_work)
    folder = out_folder or Path("runs") / f"{config.stem}-compare"
    if on == "here" and (address or at_once):
        raise ConfigError(f"{'--address' if address else '--at-once'} is for runs on Ray: add --on ray")
    try:
        with on_stop():
            if on == "ray":
                from personafl.study.ray_launcher import on_ray
            with on_ray(folder, address, at_once) if on == "ray" else nullcontext(in_process) as launcher:
                found = run_comparison(planned, folder, err, launcher)
    except KeyboardInterrupt as stop:
        words = ["personafl", "compare", str(config), *(["-a", ",".join(names)] if names else [])]
        words += ["--seeds", str(seeds)]
        words += [w for part in set_ or [] for w in ("-s", part)] + [w for part in tune or [] for w in ("--tune", part)]
        words += ["--tune-seeds", str(tune_seeds)] if tune_seeds != 1 else []
        words += ["--equal-work"] if equal_work else []
        words += ["--out", str(out_folder)] if out_folder else []
        words += ["--on", on] if on != "here" else []
        again = {"--address": address, "--at-once": at_once, "--csv": csv, "--latex": latex, "--data-dir": data_dir}
        for option, value in again.items():
            words += [option, str(value)] if value else []
        say(err, f"Stopped; what is done is kept. Continue with: {shlex.join(words)}")
        raise typer.Exit(exit_code(stop)) from None
    for copy, name in ((csv, "table.csv"), (latex, "table.tex")):
        if copy is not None:
            write_text(copy, (folder / name).read_text(encoding="utf-8"), private=False)
    if as_json:
        print((folder / "comparison.json").read_text(encoding="utf-8"), end="")
    else:
        found.show(out)
        say(out, f"Folder: {folder} (comparison.json, table.csv, table.tex and the runs)")
    if found.failures:
        raise typer.Exit(3)
