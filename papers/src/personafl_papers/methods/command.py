"""`personafl study`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personafl.cli.console import DataDir, Json, print_json, say
from personafl_papers.command import progress

if TYPE_CHECKING:
    from rich.table import Table as Shown

    from personafl_papers.methods.findings import Findings


class SizeName(StrEnum):
    """As in `sizes.SIZES`, which would take imports."""

    small = "small"
    full = "full"


def study(
    size: Annotated[SizeName, typer.Option(help="small: most of an hour; full: some four hours, on two cores.")] = (
        SizeName.small
    ),
    methods: Annotated[str | None, typer.Option(help="Only these, with commas. Default: all algorithms.")] = None,
    federations: Annotated[
        str | None, typer.Option(help="Only these, with commas. Default: all whose data is here.")
    ] = None,
    redo: Annotated[str | None, typer.Option(help="Methods whose runs are made again, with commas.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    at_once: Annotated[
        int | None, typer.Option(help="How many runs go on at once. Default: one a core.", min=1)
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Where runs and results go. Default: runs/study-SIZE.", readable=False)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the page to this file, and its picture to images/ beside it.", readable=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Rank all methods on many federations, each tuned with the same number of tries.

    The tries are chosen on validation data, then all seeds are run. Friedman's
    test says whether the methods differ, Nemenyi's which of them do. The same
    command goes on after an interruption, and reuses the runs of its parts.

    Examples:

      personafl study

      personafl study --methods separate,fedavg,ditto --out runs/three

      personafl study --size full --out runs/all --page all.md
    """
    from personafl.cli.console import err, out
    from personafl.signals import exit_code, on_stop
    from personafl.study.processes import Processes
    from personafl_papers.methods.sizes import SIZES
    from personafl_papers.methods.study import Asked, names, write
    from personafl_papers.methods.study import study as run_study

    folder = out_folder or Path("runs") / f"study-{size}"
    words = ["personafl", "study", "--size", str(size)]
    for option, value in (("--methods", methods), ("--federations", federations), ("--seed", seed)):
        words += [option, str(value)] if value else []
    asked = Asked(SIZES[size], names(methods), names(federations), names(redo), seed, shlex.join(words))
    try:
        with on_stop(), Processes(at_once) as processes, progress(as_json) as tell:
            found = run_study(asked, folder, processes, tell)
    except KeyboardInterrupt as stop:
        places = {"--at-once": at_once, "--out": out_folder, "--page": page, "--data-dir": data_dir}
        for option, place in places.items():
            words += [option, str(place)] if place else []
        say(err, f"Stopped; what is done is kept. Continue with: {shlex.join(words)}")
        raise typer.Exit(exit_code(stop)) from None
    written = write(found, folder, page)
    if as_json:
        print_json({"order": found.order, "means": found.means} if written else {"order": [], "means": {}})
        return
    if written:
        out.print(_shown(found))
    say(out, f"Folder: {folder} (runs.jsonl, results.csv){f'; page: {written}' if written else ''}")


def _shown(found: Findings) -> Shown:
    from rich.table import Table as Shown

    ranking = found.ranking
    shown = Shown(
        title=f"mean ranks on {len(found.outcomes)} federations; Friedman p = {ranking.p:.2g}, critical difference "
        f"{ranking.critical_difference:.1f}",
        title_justify="left",
    )
    for column in ("method", "mean rank", "mean accuracy %"):
        shown.add_column(column)
    for method in found.order:
        known = [outcome.accuracy for outcome in found.of(method) if outcome.accuracies]
        mean = f"{100 * sum(known) / len(known):.1f}" if known else ""
        shown.add_row(method, f"{found.means[method]:.1f}", mean)
    return shown
