"""`personafl watch`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import print_json, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from personafl.runs.watch import Watch, WatchedRun

STYLES = {"starting": "yellow", "going on": "cyan", "stopped": "red", "finished": "green"}


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders of runs such as a comparison's.", metavar="RUN", readable=False),
    ],
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each round.")] = False,
) -> None:
    """Show runs while they go on.

    On a terminal, one run is shown whole and several have a line each. Piped,
    each round is a line, from the first one on. Ends when the runs end: with
    exit code 0 when all are finished, 1 when one has stopped before its end,
    130 by Ctrl-C. The runs do not notice that they are watched.

    Examples:

      personafl watch runs/mnist-selffl-0

      personafl watch runs/mnist-compare --every 5

      personafl watch runs/mnist-selffl-0 --json | jq .personal_accuracy
    """
    from personafl.cli.console import err, out
    from personafl.errors import ConfigError
    from personafl.runs.watch import Watch

    if not (math.isfinite(every) and every >= 0.1):
        raise ConfigError(f"--every {every:g}: must be at least 0.1 seconds")
    watched = Watch(runs)
    try:
        if as_json or not out.is_interactive:
            _print_lines(watched, every, as_json)
        else:
            _show(watched, every)
    except KeyboardInterrupt:
        say(err, "Not watching any more; the runs go on.")
        raise typer.Exit(130) from None
    if not watched.finished:
        for run in watched.look():
            if run.state == "stopped":
                say(err, _how_to_resume(run, alone=run.path in watched.paths))
        raise typer.Exit(1)


def _print_lines(watched: Watch, every: float, as_json: bool) -> None:
    while True:
        runs = watched.look()
        for run in runs:
            for record in run.news():
                if as_json:
                    print_json({"run": str(run.path), **record})
                else:
                    print(_line(run, record), flush=True)
        if watched.over:
            for run in runs:
                if as_json:
                    print_json({"run": str(run.path), "state": run.state})
                else:
                    print(f"{run.path}: {run.state}", flush=True)
            return
        time.sleep(every)


def _show(watched: Watch, every: float) -> None:
    from rich.live import Live

    from personafl.cli.console import out

    with Live(console=out, auto_refresh=False) as live:
        while True:
            runs = watched.look()
            live.update(_one(runs[0]) if len(runs) == 1 else _many(runs), refresh=True)
            if watched.over:
                return
            time.sleep(every)


def _line(run: WatchedRun, record: dict[str, Any]) -> str:
    """A round in plain text."""
    from personafl.metrics.measures import score_in

    parts = [f"{run.path}: round {record['round']} of {run.rounds}"]
    if "round_seconds" in record:
        parts.append(f"{record['round_seconds']:.3g} s")
    for who, word in (("personal", "personalized"), ("global", "global")):
        if (found := score_in(run.manifest, record, who)) is not None:
            parts.append(f"{word} {found[0].label} {found[1]:.4f}")
    if record.get("failed"):
        parts.append(f"{len(record['failed'])} of {record['active']} updates left out")
    return ", ".join(parts)


def _one(run: WatchedRun) -> RenderableType:
    """A run with all that is known about it."""
    from rich.console import Group
    from rich.filesize import decimal
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((str(run.path), "bold"), "  ", (run.state, STYLES[run.state]))
    if not run.manifest:
        return head
    about = f"{run.manifest['algorithm']['name']} on {run.manifest.get('data', {}).get('name', 'own data')}, "
    about += f"{run.manifest['resolved']['clients']:,} clients"
    facts = Table.grid(padding=(0, 2))
    facts.add_row("round", f"{run.round:,} of {run.rounds:,}", ProgressBar(run.rounds, run.round, width=24))
    for who, word in (("personal", "personalized"), ("global", "global model")):
        if curve := run.curve(who):  # type: ignore[arg-type]
            facts.add_row(f"{word} {run.measure.label}", f"{curve[-1]:.4f}", _spark(curve))
    if (each := run.seconds_per_round) is not None:
        facts.add_row("a round takes", f"{each:.3g} s", "")
    if run.state == "going on" and run.left is not None:
        facts.add_row("time left", str(run.left), "")
    if run.failures:
        facts.add_row("left out", f"{run.failures:,} updates", Text("not finite", "red"))
    if run.records:
        last = run.records[-1]
        facts.add_row("sent", f"{decimal(last['bytes_up'])} up", f"{decimal(last['bytes_down'])} down")
    return Group(head, Text(about, "dim"), facts)


def _many(runs: list[WatchedRun]) -> RenderableType:
    """A line for each run; what goes on comes first, because a terminal shows only so many lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("state", "round", "personalized", "", "s a round", "left", "left out"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("state", "") else "right")
    for run in sorted(runs, key=lambda run: list(STYLES).index(run.state)):
        curve, each = run.curve("personal"), run.seconds_per_round
        table.add_row(
            Text(run.path.name),
            Text(run.state, STYLES[run.state]),
            f"{run.round}/{run.rounds}",
            f"{curve[-1]:.4f}" if curve else "–",
            _spark(curve, 8),
            "–" if each is None else f"{each:.3g}",
            str(run.left) if run.state == "going on" and run.left is not None else "",
            str(run.failures or ""),
        )
    return table


def _spark(curve: list[float], width: int = 24) -> str:
    from personafl.runs.watch import sparkline

    return sparkline(curve, width)


def _how_to_resume(run: WatchedRun, alone: bool) -> str:
    where = f"{run.path} has stopped after round {run.round} of {run.rounds}"
    if not alone:
        return f"{where}. Give the command again that made it: what is done is kept."
    if "name" not in run.manifest.get("model", {}):
        return f"{where}. Continue with: train(…, out={str(run.path)!r}, resume=True)"
    return f"{where}. Continue with the same settings: personafl run CONFIG.toml --out {run.path} --resume"
