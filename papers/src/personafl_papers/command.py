"""`personafl reproduce`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import DataDir, Json, print_json, say

if TYPE_CHECKING:
    from rich.table import Table as Shown


def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="Which one, see: personafl list tables", metavar="TABLE", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All tables whose data is here.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, to see that it works.")] = False,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    at_once: Annotated[
        int | None, typer.Option(help="How many runs go on at once, which share the cores. Default: one a core.", min=1)
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Where tables and runs go. Default: runs/reproduce, or runs/reproduce-quick.", readable=False
        ),
    ] = None,
    keep_in: Annotated[
        Path | None, typer.Option("--keep", help="Also write TABLE.json here: papers/results/.", readable=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a table or figure of a paper again: what was published, what comes out here, which claims hold.

    The same command goes on after an interruption. Tables share their runs.

    Examples:

      personafl list tables

      personafl reproduce selffl-table1

      personafl reproduce --all --quick
    """
    from personafl.cli.console import err, out
    from personafl.errors import ConfigError
    from personafl.files import disk_errors
    from personafl.signals import exit_code, on_stop
    from personafl.study.processes import Processes
    from personafl_papers.tables import TABLES, find, keep
    from personafl_papers.tables import reproduce as run_again
    from personafl_papers.tables.show import sentence, tables

    if everything == (table is not None):
        raise ConfigError("name a table, or give --all for all of them: personafl list tables shows them")
    if keep_in is not None and quick:
        raise ConfigError("--keep is for full runs: leave out --quick")
    names = [table] if table is not None else [name for name in TABLES if not find(name).missing]
    if keep_in is not None:  # now, not after hours of training
        with disk_errors(keep_in, "keeping results in"):
            keep_in.mkdir(parents=True, exist_ok=True)
    folder = out_folder or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    found: list[dict[str, Any]] = []
    seconds: list[float] = []
    try:
        with on_stop(), Processes(at_once) as processes, progress(as_json) as tell:
            for name in names:
                begun = time.perf_counter()
                found.append(run_again(name, folder, processes, quick, seed, tell))
                seconds.append(time.perf_counter() - begun)
                if keep_in is not None:
                    keep(found[-1], keep_in)
    except KeyboardInterrupt as stop:
        words = ["personafl", "reproduce", *([table] if table else ["--all"]), *(["--quick"] if quick else [])]
        words += ["--seed", str(seed)] if seed else []
        for option, value in (
            ("--at-once", at_once), ("--out", out_folder), ("--keep", keep_in), ("--data-dir", data_dir)
        ):  # fmt: skip
            words += [option, str(value)] if value else []
        say(err, f"Stopped; what is done is kept. Continue with: {shlex.join(words)}")
        raise typer.Exit(exit_code(stop)) from None
    if as_json:
        print_json(found if everything else found[0])
    elif everything:
        out.print(_overview(found, seconds))
        for name in (name for name in TABLES if name not in names):
            say(out, f"{name} is left out: data {', '.join(find(name).missing)} is not here.")
    else:
        for shown in tables(found[0]):
            out.print(shown)
        for failure in found[0]["failures"]:
            say(out, f"{failure['method']} with seed {failure['seed']} failed: {failure['why']}")
        say(out, sentence(found[0]))
    if not as_json:
        where = folder if everything else folder / names[0]
        say(out, f"Folder: {where} (report.html, results.json, figures)")
    if any(value["failures"] for value in found):
        raise typer.Exit(3)


def _overview(found: list[dict[str, Any]], seconds: list[float]) -> Shown:
    from rich.table import Table as Shown

    from personafl_papers.tables.results import tally

    shown = Shown(title="tables", title_justify="left")
    for column in ("name", "runs", "seconds", "claims"):
        shown.add_column(column, no_wrap=column == "name", overflow="fold")
    for value, took in zip(found, seconds, strict=True):
        counts = tally(claim for claim in value["claims"] if claim["should_hold"]).items()
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts)
        shown.add_row(value["table"], str(value["runs"]), f"{took:.0f}", listed)
    return shown


@contextmanager
def progress(silent: bool) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says what is going on; nothing elsewhere."""
    from personafl.cli.console import err

    if silent or not err.is_interactive:
        yield lambda line: None
        return
    with err.status("") as status:
        yield lambda line: status.update(line)
